"""Shards. In: one document a line. Out: training and test shards, a sentence a line, documents whole."""
