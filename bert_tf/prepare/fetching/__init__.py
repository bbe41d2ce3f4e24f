"""Downloads. In: a dataset's name. Out: its files below ``download/``, verified and unpacked."""
