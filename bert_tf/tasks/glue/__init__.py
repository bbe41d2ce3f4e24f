"""Sentences and pairs of sentences: the nine GLUE tasks and files of one's own. In: files. Out: classes or numbers."""
