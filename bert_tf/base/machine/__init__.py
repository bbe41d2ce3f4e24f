"""This machine: its GPUs, cores and memory, its software, what starts ranks, and what keeps these from being started.

Only the standard library is needed, because the doctor must work where packages are missing.
"""
