"""Corpora. In: raw files (dumps, books, PubMed, own text). Out: text, one document a line, without duplicates."""
