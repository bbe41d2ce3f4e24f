"""Pre-trains BERT: one phase, from token files or TFRecords to checkpoints. See docs/training.md."""

import runpy

if __name__ == "__main__":
    runpy.run_module("bert_tf.programs.pretraining", run_name="__main__", alter_sys=True)
