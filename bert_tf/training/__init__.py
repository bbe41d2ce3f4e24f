"""Training. In: batches and a model. Out: updates, checkpoints, a finished phase."""
