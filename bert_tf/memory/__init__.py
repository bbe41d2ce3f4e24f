"""Memory. In: model, micro-batch, precision, GPU. Out: bytes, and the micro-batch that fits."""
