"""Finds entities or parts of speech in sentences: fine-tunes, labels, scores. See docs/fine_tuning.md."""

from bert_tf.programs.commands import bert_ner

if __name__ == "__main__":
    bert_ner()
