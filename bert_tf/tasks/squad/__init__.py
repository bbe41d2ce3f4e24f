"""SQuAD 1.1 and 2.0 without TensorFlow: JSON to examples to features, and logits back to text."""
