"""Batches. In: shards, a seed, an update's number. Out: this rank's features [A, B, ...], masked, optionally packed."""
