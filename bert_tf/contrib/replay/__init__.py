"""One update of a run, made again. In: a run's folder and the number of the update. Out: what it did."""
