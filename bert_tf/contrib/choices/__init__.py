"""Questions with several choices, one of them right. In: CSV or JSON lines. Out: the choices' probabilities, scores."""
