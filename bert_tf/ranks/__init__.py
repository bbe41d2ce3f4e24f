"""Ranks. In: each process's values. Out: values reduced over or broadcast to all; one process needs no library."""
