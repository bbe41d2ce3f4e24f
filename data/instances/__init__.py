"""Instances. In: shards of sentences. Out: a vocabulary; token files with pairs of segments; TFRecords of pre-training instances."""
