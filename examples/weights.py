"""Weights by name, without a model.

    python examples/weights.py FOLDER

FOLDER: weights of this project, Google, NVIDIA or Hugging Face; explained in docs/python.md.
"""

import sys

from bert_tf.interchange.initialise import find_weights

folder = sys.argv[1] if sys.argv[1:] else sys.exit(__doc__)
weights = find_weights(folder)
print(weights.source, weights.config.hidden_size, len(weights.shapes), "variables")
query = weights.read("bert/encoder/layer_0/attention/self/query/kernel")  # [in, out]
print(query.shape)
