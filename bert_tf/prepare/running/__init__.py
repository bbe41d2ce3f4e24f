"""Running stages. In: tasks. Out: their results in order, from a process pool or a Dask cluster; manifests."""
