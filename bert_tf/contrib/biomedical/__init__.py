"""The biomedical wing: PubMed, PubMed Central and ChemProt, from the download to formatted text, tables and a task;
BioBERT's launchers."""
