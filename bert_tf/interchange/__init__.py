"""Weights in others' formats and in ours, under our names.

Comes before `training`, because a run may start from others' weights; it needs `run` for our own checkpoints.
"""
