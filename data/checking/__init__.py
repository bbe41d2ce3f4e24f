"""Looking at prepared data. In: what the stages left. Out: its state, faults and their repair, warnings about it."""
