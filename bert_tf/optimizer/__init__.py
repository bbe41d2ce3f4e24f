"""The optimizers. In: gradients of one global batch. Out: new weights. Includes learning rate and loss scale."""
