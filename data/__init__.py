"""Data preparation: raw corpora to TFRecords. The stages are named in `bertPrep`."""
