"""Answers questions about texts (SQuAD 1.1 and 2.0): fine-tunes, predicts, scores. See docs/fine_tuning.md."""

from bert_tf.programs.commands import bert_squad

if __name__ == "__main__":
    bert_squad()
