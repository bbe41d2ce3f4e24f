"""The optimizers. In: gradients of one global batch. Out: new weights. Rates and loss scale belong to it."""
