"""Instances on disk. In: ids. Out: token files with pairs, or TFRecord shards with indexes; and back.

`manifest` records what either was made from.

Token files: `token_file` stores the text, `pairs` draws the segments of each instance, `pair_file` stores them.
Records: `schema`, `tfrecord`, `shard`.
"""
