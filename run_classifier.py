"""Classifies sentences and pairs of sentences: the nine GLUE tasks and your own files. See docs/fine_tuning.md."""

from bert_tf.programs.commands import bert_classify

if __name__ == "__main__":
    bert_classify()
