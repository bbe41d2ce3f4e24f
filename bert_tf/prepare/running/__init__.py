"""How stages run. In: tasks. Out: their results in order, by a process pool or a Dask cluster; manifests."""
