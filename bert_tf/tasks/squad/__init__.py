"""SQuAD 1.1 and 2.0. In: JSON. Out: examples, features, and from their logits answers as text, and scores."""
