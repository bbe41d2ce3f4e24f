"""How stages run. In: work. Out: results in order from a pool or a Dask cluster; what a killed stage goes on from."""
