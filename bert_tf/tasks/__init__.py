"""Tasks for fine-tuning a pre-trained model. In: questions or sentences. Out: answers or labels, and scores."""
