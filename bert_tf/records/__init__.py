"""Instances on disk. In: arrays of ids. Out: TFRecord shards, each with an index; and back."""
