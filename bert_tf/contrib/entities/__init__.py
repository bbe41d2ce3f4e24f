"""Entities in sentences of tokens. In: tokens with labels. Out: a label for each token, entities, and scores."""
