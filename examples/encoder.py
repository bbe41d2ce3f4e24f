"""Texts to vectors: the encoder with its tokenizer, its layers, and embeddings of sentences.

    python examples/encoder.py FOLDER

FOLDER: weights of this project, Google, NVIDIA or Hugging Face; explained in docs/python.md.
"""

import sys

import numpy as np

import bert_tf

folder = sys.argv[1] if sys.argv[1:] else sys.exit(__doc__)
bert = bert_tf.from_pretrained(folder)
print(bert.encoder.config.num_hidden_layers, "layers,", bert.tokenizer.vocab_size, "tokens")
print(bert.tokenizer.tokenize("The cat sat."))

features = bert.features(["the cat sat.", "a dog ran in the park."], max_seq_length=16)
sequence, pooled = bert.encoder(features)  # [texts, 16, hidden], [texts, hidden]
layers = bert.encoder.hidden_states(features)  # of the embeddings and of every layer


def embed(texts):
    features = bert.features(texts, max_seq_length=32)
    sequence, _ = bert.encoder.predict(features, batch_size=64, verbose=0)
    mask = features["input_mask"][:, :, np.newaxis]
    means = (sequence * mask).sum(axis=1) / mask.sum(axis=1)
    return means / np.linalg.norm(means, axis=1, keepdims=True)


vectors = embed(["the cat sat.", "the cat ran.", "a dog in the park"])
print(vectors @ vectors.T)
