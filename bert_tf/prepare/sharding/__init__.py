"""Shards. In: one document per line. Out: training and test shards, one sentence per line, no document split."""
