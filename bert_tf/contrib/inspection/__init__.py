"""Inspecting prepared data. In: the stages' output. Out: samples, shares, and warnings of what looks wrong."""
