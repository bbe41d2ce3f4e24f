"""BERT pre-training with LAMB in TensorFlow 2: the library behind the programs at the top level."""
