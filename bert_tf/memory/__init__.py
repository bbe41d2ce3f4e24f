"""Memory. In: model, micro-batch, precision, card. Out: bytes, and the micro-batch that fits."""
