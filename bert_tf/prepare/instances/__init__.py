"""Instances. In: shards of sentences. Out: a vocabulary; token files with pairs; TFRecords of instances."""
