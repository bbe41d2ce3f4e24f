"""Raw data. In: a dataset's name. Out: its files below ``download/``, checked and unpacked."""
