"""Sentences and pairs of sentences: the nine GLUE tasks and users' own files. In: files. Out: classes or numbers."""
