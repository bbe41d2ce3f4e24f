"""Data preparation: raw corpora -> token files or TFRecords, in stages that `bertPrep` names and `stages` describes.

In the order in which data flows through them: `fetching` downloads raw files, `corpora` turns them into text with one
document per line, `sharding` turns that into shards of sentences, `instances` makes training instances. `checking`
says what there is and verifies it; `running` holds manifests and worker processes.
"""
