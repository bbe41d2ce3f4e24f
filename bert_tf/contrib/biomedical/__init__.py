"""The biomedical wing: PubMed, PubMed Central and ChemProt, from the download to formatted text and tables; BioBERT's
launchers."""
