"""Reads weights in our own and in others' formats, under our names, and exports to others' formats.

Comes before `training`, because a run may start from any of these weights, and after `run`, which has our checkpoints.
"""
