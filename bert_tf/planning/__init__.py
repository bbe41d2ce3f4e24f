"""Predicts how long a cluster would take for the recipe, before anyone rents it."""
