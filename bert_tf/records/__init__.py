"""Instances on disk. In: arrays of ids. Out: TFRecord shards with an index beside each, and their messages back."""
