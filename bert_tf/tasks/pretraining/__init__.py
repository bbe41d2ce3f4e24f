"""Pre-training as a task. In: records or token files. Out: batches, and the losses of held-out instances."""
