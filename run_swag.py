"""Chooses among several endings or answers (SWAG, your own): fine-tunes, predicts, scores. See docs/fine_tuning.md."""

from bert_tf.programs.commands import bert_swag

if __name__ == "__main__":
    bert_swag()
