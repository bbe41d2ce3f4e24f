"""BERT (arXiv 1810.04805) as Keras layers and models, with the variable names of Google's checkpoints.

Departures from the textbook encoder, all of them exact:
* the masked-LM head computes the masked positions only;
* the word-embedding table is padded to a multiple of 8 rows; the extra ones are zero, get no gradient
  and are never written to a file;
* 1/sqrt(head size) scales the query, not the scores.
Not used: Keras' Dropout (it keeps generator state) and its mixed-precision policy (we cast at the
matmuls; parameters stay float32).

Packed rows hold several instances (`packing`): `instance_numbers`, in place of `input_mask`, restrict
attention to a token's own instance; `position_ids` and `cls_positions` give where each one begins.

Shape letters: B batch, S sequence, H hidden, N heads, D head size, R = B*S rows, P masked
positions, V vocabulary, K instances of a packed row.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.model.blocks import Blocks
from bert_tf.model.elementwise import Dropout
from bert_tf.model.randomness import DropoutKey, truncated_normal

# Dropouts are numbered by site: 0 is the embeddings', then three for every layer, then those of heads.
_SITES_PER_LAYER = 3


def first_free_site(config: BertConfig) -> int:
    """The number of the first dropout after the encoder's."""
    return 1 + _SITES_PER_LAYER * config.num_hidden_layers


class BertLayer(tf.keras.layers.Layer):
    """Base class that names variables as Google does; Keras would prefix the names of layers."""

    def __init__(self, config: BertConfig, blocks: Blocks, seed: int, name: str):
        # Keras would cast bfloat16 inputs back to float32.
        super().__init__(name=name, autocast=False)
        self.config, self.blocks, self.seed = config, blocks, seed

    def _weight(self, name: str, shape) -> tf.Variable:
        initial = truncated_normal(self.seed, name, shape, self.config.initializer_range)
        return self.add_weight(name=name, shape=shape, initializer=lambda *_, **__: initial)

    def _zeros(self, name: str, size: int) -> tf.Variable:
        return self.add_weight(name=name, shape=[size], initializer="zeros")

    def _dense(self, scope: str, inputs: int, outputs: int) -> tuple[tf.Variable, tf.Variable]:
        return self._weight(f"{scope}/kernel", [inputs, outputs]), self._zeros(f"{scope}/bias", outputs)

    def _layer_norm(self, scope: str, size: int) -> tuple[tf.Variable, tf.Variable]:
        gamma = self.add_weight(name=f"{scope}/gamma", shape=[size], initializer="ones")
        return gamma, self._zeros(f"{scope}/beta", size)


class Embeddings(BertLayer):
    """Word, position and segment embeddings, summed and normalised."""

    def __init__(self, config: BertConfig, blocks: Blocks, seed: int):
        super().__init__(config, blocks, seed, "embeddings")
        hidden_size = config.hidden_size
        word_name = "bert/embeddings/word_embeddings"
        words = truncated_normal(seed, word_name, [config.vocab_size, hidden_size], config.initializer_range)
        words = tf.pad(words, [[0, config.padded_vocab_size - config.vocab_size], [0, 0]])
        self.word_embeddings = self.add_weight(
            name=word_name, shape=[config.padded_vocab_size, hidden_size], initializer=lambda *_, **__: words
        )
        self.token_type_embeddings = self._weight(
            "bert/embeddings/token_type_embeddings", [config.type_vocab_size, hidden_size]
        )
        self.position_embeddings = self._weight(
            "bert/embeddings/position_embeddings", [config.max_position_embeddings, hidden_size]
        )
        self.gamma, self.beta = self._layer_norm("bert/embeddings/LayerNorm", hidden_size)

    def call(self, input_ids_BxS, segment_ids_BxS, position_ids_BxS=None, dropout: DropoutKey | None = None):
        length = input_ids_BxS.shape[1]
        if length is not None and length > self.config.max_position_embeddings:
            raise ValueError(
                f"sequence length {length} is more than max_position_embeddings={self.config.max_position_embeddings}"
            )
        word_BxSxH = tf.gather(self.word_embeddings, input_ids_BxS)
        segments = tf.one_hot(segment_ids_BxS, self.config.type_vocab_size)
        segment_BxSxH = tf.einsum("bst,th->bsh", segments, self.token_type_embeddings)
        if position_ids_BxS is None:
            position = self.position_embeddings[:length]
        else:
            position = tf.gather(self.position_embeddings, position_ids_BxS)
        return self.blocks.embedding_norm(
            word_BxSxH,
            position,
            segment_BxSxH,
            self.gamma,
            self.beta,
            self.blocks.dropout(dropout, 0, self.config.hidden_dropout_prob, word_BxSxH.shape),
        )


Dense = tuple[tf.Variable, tf.Variable]  # kernel, bias
Norm = tuple[tf.Variable, tf.Variable]  # gamma, beta


class _LayerWeights(NamedTuple):
    """The trainable parameters of an encoder layer."""

    query: Dense
    key: Dense
    value: Dense
    attention_output: Dense
    attention_norm: Norm
    intermediate: Dense
    output_dense: Dense
    output_norm: Norm


class EncoderLayer(BertLayer):
    """One post-norm transformer layer: self-attention, then the feed-forward part. [R, H] -> [R, H].

    `visible`: from `visible_keys`.
    """

    def __init__(self, config: BertConfig, blocks: Blocks, seed: int, index: int):
        super().__init__(config, blocks, seed, f"layer_{index}")
        self.first_site = 1 + _SITES_PER_LAYER * index
        scope, hidden_size = f"bert/encoder/layer_{index}", config.hidden_size
        self.layer_weights = _LayerWeights(
            query=self._dense(f"{scope}/attention/self/query", hidden_size, hidden_size),
            key=self._dense(f"{scope}/attention/self/key", hidden_size, hidden_size),
            value=self._dense(f"{scope}/attention/self/value", hidden_size, hidden_size),
            attention_output=self._dense(f"{scope}/attention/output/dense", hidden_size, hidden_size),
            attention_norm=self._layer_norm(f"{scope}/attention/output/LayerNorm", hidden_size),
            intermediate=self._dense(f"{scope}/intermediate/dense", hidden_size, config.intermediate_size),
            output_dense=self._dense(f"{scope}/output/dense", config.intermediate_size, hidden_size),
            output_norm=self._layer_norm(f"{scope}/output/LayerNorm", hidden_size),
        )

    def call(self, x_RxH, visible, dropout: DropoutKey | None = None):
        weights = tf.nest.map_structure(self.blocks.current, self.layer_weights)
        return self.blocks.layer(self._transform, weights, x_RxH, visible, dropout)

    def _transform(self, weights: _LayerWeights, x_RxH, visible, dropout: DropoutKey | None) -> tf.Tensor:
        config, blocks, sequence_length = self.config, self.blocks, visible.shape[1]

        def hidden_dropout(site: int) -> Dropout | None:
            return blocks.dropout(dropout, site, config.hidden_dropout_prob, [*visible.shape[:2], config.hidden_size])

        *inputs, x_RxH = blocks.fork(x_RxH)
        context_RxH = self._attend(weights, inputs, visible, dropout)
        kernel, bias = weights.attention_output
        x_RxH = blocks.residual_norm(
            blocks.dense(context_RxH, kernel),
            bias,
            x_RxH,
            *weights.attention_norm,
            sequence_length,
            hidden_dropout(self.first_site + 1),
        )
        kernel, bias = weights.intermediate
        wide_RxI = blocks.bias_gelu(blocks.dense(x_RxH, kernel), bias, config.hidden_act == "gelu_exact")
        kernel, bias = weights.output_dense
        return blocks.residual_norm(
            blocks.dense(wide_RxI, kernel),
            bias,
            x_RxH,
            *weights.output_norm,
            sequence_length,
            hidden_dropout(self.first_site + 2),
        )

    def _attend(self, weights: _LayerWeights, inputs, visible, dropout: DropoutKey | None) -> tf.Tensor:
        """Multi-head scaled dot-product attention (arXiv 1706.03762) -> [R, H].

        inputs: of the query, the key and the value, each [R, H].
        """
        config, blocks, sequence_length = self.config, self.blocks, visible.shape[1]

        def heads(x_RxH: tf.Tensor, dense: Dense, scale: float = 1.0) -> tf.Tensor:
            kernel, bias = dense
            return blocks.split_heads(
                blocks.dense(x_RxH, kernel), bias, sequence_length, config.num_attention_heads, scale
            )

        query_RxH, key_RxH, value_RxH = inputs
        num_rows, num_heads = visible.shape[0], config.num_attention_heads
        return blocks.attend(
            heads(query_RxH, weights.query, 1.0 / math.sqrt(config.head_size)),
            heads(key_RxH, weights.key),
            heads(value_RxH, weights.value),
            visible,
            blocks.dropout(
                dropout,
                self.first_site,
                config.attention_probs_dropout_prob,
                [num_rows, num_heads, sequence_length, sequence_length],
            ),
        )


class Pooler(BertLayer):
    """tanh(dense(state of [CLS])): [B, S, H] -> [B, H]; packed, with the positions of K [CLS] -> [B*K, H]."""

    def __init__(self, config: BertConfig, blocks: Blocks, seed: int):
        super().__init__(config, blocks, seed, "pooler")
        self.dense = self._dense("bert/pooler/dense", config.hidden_size, config.hidden_size)

    def call(self, sequence_BxSxH, cls_positions_BxK=None):
        kernel, bias = self.dense
        if cls_positions_BxK is None:
            first_RxH = sequence_BxSxH[:, 0]
        else:
            first_BxKxH = self.blocks.take(sequence_BxSxH, cls_positions_BxK)
            first_RxH = tf.reshape(first_BxKxH, [-1, self.config.hidden_size])
        return self.blocks.bias_tanh(self.blocks.dense(first_RxH, kernel), bias)


def visible_keys(features: dict[str, tf.Tensor]) -> tf.Tensor:
    """The attention mask: of the keys [B, S], or, packed, of each query's keys [B, S, S]."""
    if "instance_numbers" not in features:
        return features["input_mask"]
    numbers_BxS = features["instance_numbers"]
    return numbers_BxS[:, :, tf.newaxis] == numbers_BxS[:, tf.newaxis, :]


class BertEncoder(tf.keras.Model):
    """The encoder. call({"input_ids", "input_mask", "segment_ids"} int32 [B, S], dropout=None) ->
    (sequence [B, S, H], pooled [B, H]) in the compute type. S must be static; B too where dropout is on.
    Packed rows: see the module's docstring; pooled is [B*K, H].

    Args:
      config: the encoder's shape.
      blocks: XLA scope and compute type.
      seed: initial weights are a function of it and of each variable's name.
    """

    def __init__(self, config: BertConfig, blocks: Blocks | None = None, seed: int = 0):
        super().__init__(name="bert", autocast=False)
        blocks = blocks or Blocks()
        self.config = config
        self.embeddings = Embeddings(config, blocks, seed)
        self.encoder_layers = [EncoderLayer(config, blocks, seed, index) for index in range(config.num_hidden_layers)]
        self.pooler = Pooler(config, blocks, seed)

    @property
    def layer_kernels(self) -> list[tf.Variable]:
        """The matrices of all layers."""
        weights = tf.nest.flatten([layer.layer_weights for layer in self.encoder_layers])
        return [weight for weight in weights if len(weight.shape) == 2]

    def call(self, features: dict[str, tf.Tensor], dropout: DropoutKey | None = None):
        sequence_BxSxH = self.hidden_states(features, dropout)[-1]
        return sequence_BxSxH, self.pooler(sequence_BxSxH, features.get("cls_positions"))

    def hidden_states(self, features: dict[str, tf.Tensor], dropout: DropoutKey | None = None):
        """The outputs of the embeddings and of every layer: a list of L + 1 tensors [B, S, H]."""
        visible = visible_keys(features)
        x_BxSxH = self.embeddings(
            features["input_ids"], features["segment_ids"], features.get("position_ids"), dropout=dropout
        )
        _, sequence_length, hidden_size = x_BxSxH.shape
        states, x_RxH = [x_BxSxH], tf.reshape(x_BxSxH, [-1, hidden_size])
        for layer in self.encoder_layers:
            x_RxH = layer(x_RxH, visible, dropout=dropout)
            states.append(tf.reshape(x_RxH, [-1, sequence_length, hidden_size]))
        return states
