"""Tasks for fine-tuning a pre-trained model. In: questions or sentences. Out: rows, then answers and scores."""
