"""Sentences and pairs of sentences: GLUE, ChemProt, users' own files. In: files. Out: classes or numbers."""
