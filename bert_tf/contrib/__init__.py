"""Extras that nobody must read to understand the recipe, one folder per subject. The tables of the other packages name
these modules as text and load them when needed; nothing imports them."""
