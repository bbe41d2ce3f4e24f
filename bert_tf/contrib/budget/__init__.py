"""The best model for a budget of hours. In: hours, a size, a dataset. Out: what a run measures, and two phases."""
