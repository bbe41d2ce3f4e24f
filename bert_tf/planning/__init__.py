"""How long a cluster would take for the recipe, before anybody rents it."""
