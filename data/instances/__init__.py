"""Instances. In: shards of sentences. Out: a vocabulary, and TFRecords of pre-training instances."""
