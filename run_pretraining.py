"""Pre-trains BERT: one phase, from token files or TFRecords to checkpoints. See docs/training.md."""

from bert_tf.programs.commands import bert_pretrain

if __name__ == "__main__":
    bert_pretrain()
