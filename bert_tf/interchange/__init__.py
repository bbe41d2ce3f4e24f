"""Others' weights and ours, under our names.

It stands before `training`, because a run may begin from others' weights; it needs `run` for our own checkpoints.
"""
