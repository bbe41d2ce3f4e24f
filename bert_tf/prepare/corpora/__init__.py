"""Corpora. In: raw files (dumps, books, PubMed, own text). Out: text, one document per line, without duplicates."""
