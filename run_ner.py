"""Finds entities in sentences of tokens: fine-tunes, labels, scores. See docs/fine_tuning.md."""

from bert_tf.programs.commands import bert_ner

if __name__ == "__main__":
    bert_ner()
