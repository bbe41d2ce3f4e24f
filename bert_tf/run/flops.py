"""Floating-point operations per sequence, for TFLOP/s and MFU."""

from __future__ import annotations

from bert_tf.bert_config import BertConfig


def pretraining_flops_per_sequence(
    config: BertConfig, seq_length: int, num_predictions: int, *, uses_pooler: bool = True
) -> float:
    """Floating-point operations of one training sequence, MLM and (with the pooler) NSP heads included.

    Training counts as three forward passes (the backward pass needs two matmuls for each one of the
    forward pass). The figure says what the model needs, not what an implementation spends: recomputation
    is not counted, and the last layer counts in full although `BertEncoder.states_at` computes only part of
    it. A multiply-add is two operations. With length s, L layers, width h, feed-forward width i (4h in all
    published sizes), P predictions and V pieces::

        forward = s*L*(8h^2 + 4hi + 4sh)     query, key, value, output; feed-forward; attention
                + P*(2h^2 + 2hV)             MLM transform and the product with the word table
                + 2h^2                       pooler

    V is the real vocabulary: padding rows are not work of the model. The accounting is that of Narayanan
    et al. (arXiv 2104.04473, appendix), less the recomputation counted there.
    BERT-Large: 240.6e9 at s=128, P=20 and 1020.5e9 at s=512, P=80.
    """
    width = config.hidden_size
    head = num_predictions * (2 * width**2 + 2 * width * config.vocab_size)
    head += 2 * width**2 if uses_pooler else 0
    return 3.0 * (_encoder_flops(config, seq_length) + head)


def task_flops_per_sequence(
    config: BertConfig, seq_length: int, num_outputs: int, *, by_position: bool, uses_pooler: bool
) -> float:
    """Floating-point operations of one training sequence with a task's head.

    Like `pretraining_flops_per_sequence`, but the head has `num_outputs` logits, of each token or of the sequence.
    """
    width = config.hidden_size
    head = 2 * width * num_outputs * (seq_length if by_position else 1) + (2 * width**2 if uses_pooler else 0)
    return 3.0 * (_encoder_flops(config, seq_length) + head)


def _encoder_flops(config: BertConfig, seq_length: int) -> int:
    width, inner = config.hidden_size, config.intermediate_size
    a_token = 8 * width**2 + 4 * width * inner + 4 * seq_length * width
    return seq_length * config.num_hidden_layers * a_token
