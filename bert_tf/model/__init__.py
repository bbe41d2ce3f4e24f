"""The model. In: features [B, S] and a dropout key. Out: sums of losses and metrics; weights with Google's names."""
