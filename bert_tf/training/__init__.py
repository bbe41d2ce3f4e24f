"""Training. In: batches and a model. Out: updates, checkpoints and a finished phase."""
