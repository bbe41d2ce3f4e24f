"""Answers questions about texts (SQuAD 1.1 and 2.0): fine-tunes, predicts, scores. See docs/fine_tuning.md."""

import runpy

if __name__ == "__main__":
    runpy.run_module("bert_tf.programs.squad", run_name="__main__", alter_sys=True)
