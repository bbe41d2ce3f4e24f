"""Checking prepared data. In: the stages' output. Out: its state, faults and their repair."""
