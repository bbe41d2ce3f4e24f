"""Tasks that a pre-trained model is fine-tuned on. In: questions or sentences. Out: rows, then answers and scores."""
