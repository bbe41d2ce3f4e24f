"""The model. In: features [B, S], a dropout key. Out: sums of losses and metrics; weights under Google's names."""
