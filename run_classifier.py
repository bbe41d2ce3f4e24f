"""Classifies sentences and pairs of sentences: the nine GLUE tasks and your own files. See docs/fine_tuning.md."""

import runpy

if __name__ == "__main__":
    runpy.run_module("bert_tf.programs.classifier", run_name="__main__", alter_sys=True)
