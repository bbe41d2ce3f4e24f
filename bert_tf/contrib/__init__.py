"""What nobody must read to understand the recipe, a folder a subject. The tables of the packages above name it; nothing
imports it."""
