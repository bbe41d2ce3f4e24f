"""A classifier in functional Keras on the encoder, trained by NVLAMB in model.fit.

    python examples/classifier.py FOLDER

FOLDER: weights of this project, Google, NVIDIA or Hugging Face; explained in docs/python.md.
"""

import sys

import numpy as np

import bert_tf
from bert_tf.base.tensorflow import keras
from bert_tf.optimizer.keras_optimizers import NVLAMB
from bert_tf.optimizer.schedule import WarmupPolynomialDecay

folder = sys.argv[1] if sys.argv[1:] else sys.exit(__doc__)
bert = bert_tf.from_pretrained(folder)
names = ("input_ids", "input_mask", "segment_ids")
inputs = {name: keras.Input([16], dtype="int32", name=name) for name in names}
_, pooled = bert.encoder(inputs)
hidden = keras.layers.Dropout(0.1)(pooled)
classifier = keras.Model(inputs, keras.layers.Dense(2, name="classifier")(hidden))

texts = ["the cat sat.", "the cat ran.", "a dog sat.", "the dog ran."] * 8
labels = np.array([0, 0, 1, 1] * 8)
num_updates = 40
classifier.compile(
    optimizer=NVLAMB(WarmupPolynomialDecay(2e-2, warmup_steps=2, total_steps=num_updates)),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = classifier.fit(bert.features(texts, 16), labels, batch_size=16, epochs=20, verbose=0)
print(history.history["loss"][-1])
