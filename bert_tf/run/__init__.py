"""Run folders. In: a run's settings, weights and metrics. Out: files that survive a kill; and back again."""
