"""Classification of, or a number for, sentences and pairs: GLUE, ChemProt, users' own files."""
