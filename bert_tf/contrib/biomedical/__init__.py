"""Biomedical data: PubMed, PubMed Central and ChemProt, from the download to formatted text or tables; ChemProt as a
task; BioBERT's launchers."""
