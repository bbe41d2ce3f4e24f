"""Data preparation: raw corpora -> token files or TFRecords, in stages that `bertPrep` names and `stages` describes.

Data flows through four packages: `fetching` downloads raw files, `corpora` turns them into text with one document per
line, `sharding` turns that into shards of sentences, `instances` makes vocabularies and training instances. `checking`
reports and verifies what has been prepared; `running` runs stages, with their manifests and worker processes.
"""
