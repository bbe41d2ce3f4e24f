"""Data preparation: raw corpora -> token files or TFRecords, in stages that `bertPrep` names and `stages` describes.

In the order of the work: `fetching` brings raw files, `corpora` turns them into one document a line,
`sharding` into shards of sentences, `instances` into training records; `checking` looks at what is
there, `running` holds manifests and worker processes.
"""
