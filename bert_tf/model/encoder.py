"""BERT (arXiv 1810.04805) as Keras layers and models, with the variable names of Google's checkpoints.

Departures from the textbook encoder, none of which changes the result:
* the masked-LM head computes only the masked positions, and the last layer computes its queries, its residual and
  everything after them only at the positions whose states are needed (`BertEncoder.states_at`);
* the word-embedding table is padded to a multiple of 8 rows; the extra rows are zero, get no gradient
  and are never written to a file;
* 1/sqrt(head size) scales the query, not the scores.
Not used: Keras' Dropout (it keeps generator state) and its mixed-precision policy, also where a
program sets one for its own layers (we cast at the matmuls; parameters stay float32).

Packed rows hold several instances (`packing`): `instance_numbers`, in place of `input_mask`, restrict
attention to a token's own instance; `position_ids` number the positions within each instance, and
`cls_positions` say where each instance begins.

Shape letters: B batch, S sequence, H hidden, N heads, D head size, R = B*S rows, P masked or other
chosen positions, V vocabulary, K instances of a packed row.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

from bert_tf.base.tensorflow import is_called_by_keras_3, is_of_keras_3, keras, tf
from bert_tf.bert_config import TENSOR_CORE_UNIT, BertConfig
from bert_tf.model.backends.plain import Plain, ProductAndBias
from bert_tf.model.elementwise import Dropout, length_of
from bert_tf.model.randomness import DropoutKey, truncated_normal
from bert_tf.model.visibility import Features, VisibleKeys
from bert_tf.model.weight_copies import Copies, WeightCopies

# Dropouts are numbered by site: 0 for the embeddings, then three for each layer, then those of the heads.
_SITES_PER_LAYER = 3
_UNKNOWN_TO_KERAS_3 = (
    "a layer or model of Keras 3 calls the encoder, which is a model of Keras 2: it neither trains nor saves the "
    "encoder's weights; make all of it with what `from bert_tf.base.tensorflow import keras` gives, or set "
    "encoder.trainable = False"
)
Dense = tuple[tf.Variable, tf.Variable]  # kernel, bias
Norm = tuple[tf.Variable, tf.Variable]  # gamma, beta


def first_free_site(config: BertConfig) -> int:
    """The number of the first dropout site after the encoder's."""
    return 1 + _SITES_PER_LAYER * config.num_hidden_layers


class BertLayer(keras.layers.Layer):
    """Base class that names variables as Google does; Keras would prefix them with the layers' names."""

    def __init__(self, config: BertConfig, backend: Plain, seed: int, name: str):
        # Whatever policy a program has set. Autocast would cast bfloat16 inputs back to float32.
        super().__init__(name=name, dtype="float32", autocast=False)
        self.config, self.backend, self.seed = config, backend, seed
        self.built = True  # or Keras' summary would call the weights unused until the first call

    def _weight(self, name: str, shape: list[int], num_zero_rows: int = 0) -> tf.Variable:
        """A random matrix of this shape, followed by rows of zeros."""
        initial = truncated_normal(self.seed, name, shape, self.config.initializer_range)
        initial = tf.pad(initial, [[0, num_zero_rows], [0, 0]])
        return self.add_weight(name=name, shape=initial.shape, initializer=lambda *_, **__: initial)

    def _zeros(self, name: str, size: int, *, trainable: bool = True) -> tf.Variable:
        return self.add_weight(name=name, shape=[size], initializer="zeros", trainable=trainable)

    def _dense(self, scope: str, inputs: int, outputs: int) -> Dense:
        return self._weight(f"{scope}/kernel", [inputs, outputs]), self._zeros(f"{scope}/bias", outputs)

    def _project(self, x_RxI: tf.Tensor, dense: Dense) -> ProductAndBias:
        """x times the kernel, and the bias, which is still to be added."""
        kernel, bias = dense
        return self.backend.dense(x_RxI, kernel), bias

    def _layer_norm(self, scope: str, size: int) -> Norm:
        gamma = self.add_weight(name=f"{scope}/gamma", shape=[size], initializer="ones")
        return gamma, self._zeros(f"{scope}/beta", size)


class Embeddings(BertLayer):
    """Word, position and segment embeddings, summed and normalised."""

    def __init__(self, config: BertConfig, backend: Plain, seed: int):
        super().__init__(config, backend, seed, "embeddings")
        scope, hidden_size, num_words = "bert/embeddings", config.hidden_size, config.vocab_size
        self.word_embeddings = self._weight(
            f"{scope}/word_embeddings", [num_words, hidden_size], num_zero_rows=config.padded_vocab_size - num_words
        )
        self.token_type_embeddings = self._weight(
            f"{scope}/token_type_embeddings", [config.type_vocab_size, hidden_size]
        )
        self.position_embeddings = self._weight(
            f"{scope}/position_embeddings", [config.max_position_embeddings, hidden_size]
        )
        self.norm = self._layer_norm(f"{scope}/LayerNorm", hidden_size)

    def call(self, input_ids_BxS, segment_ids_BxS, position_ids_BxS=None, dropout: DropoutKey | None = None):
        config, length = self.config, length_of(input_ids_BxS)
        word_BxSxH = tf.gather(self.word_embeddings, input_ids_BxS)
        if config.type_vocab_size == 1:  # both segments have the only type
            segment_ids_BxS = tf.zeros_like(segment_ids_BxS)
        segment_BxSxH = self.backend.look_up_segments(segment_ids_BxS, self.token_type_embeddings)
        if position_ids_BxS is None:
            # A slice of the variable itself has an attribute, which TensorFlow up to 2.15 leaks on Python 3.11.
            position = tf.convert_to_tensor(self.position_embeddings)[:length]
        else:
            position = tf.gather(self.position_embeddings, position_ids_BxS)
        drop = self.backend.dropout(dropout, 0, config.hidden_dropout_prob, word_BxSxH.shape)
        return self.backend.embedding_norm(word_BxSxH, position, segment_BxSxH, *self.norm, config.layer_norm_eps, drop)


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

    call(x_RxH, visible, dropout, positions_BxP): `visible` is a `VisibleKeys`. With positions, only the results at
    these are computed, [B*P, H], by the same sums and with the same dropouts as without.
    """

    def __init__(self, config: BertConfig, backend: Plain, seed: int, *, index: int, weight_copies: WeightCopies):
        super().__init__(config, backend, seed, f"layer_{index}")
        self.weight_copies = weight_copies
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

    def call(self, x_RxH, visible, dropout: DropoutKey | None = None, positions_BxP=None):
        weights = tf.nest.map_structure(self.weight_copies.read, self.layer_weights)
        return self.backend.run_layer(self._transform, weights, x_RxH, visible, dropout, positions_BxP)

    def _transform(
        self, weights: _LayerWeights, x_RxH, visible, dropout: DropoutKey | None, positions_BxP=None
    ) -> tf.Tensor:
        config, backend, num_rows = self.config, self.backend, visible.key_numbers_BxS.shape[0]
        num_results = sequence_length = length_of(visible.key_numbers_BxS)
        query_RxH, key_RxH, value_RxH, residual_RxH = backend.fan_out(x_RxH)
        if positions_BxP is not None:
            num_results = positions_BxP.shape[1]
            states_BxSxH = tf.reshape(residual_RxH, [-1, sequence_length, config.hidden_size])
            query_RxH = residual_RxH = tf.reshape(
                backend.gather_positions(states_BxSxH, positions_BxP), [-1, config.hidden_size]
            )
            visible = visible.to_queries(positions_BxP)

        def make_dropout(site: int, rate: float, *shape: int) -> Dropout | None:
            return backend.dropout(dropout, self.first_site + site, rate, [num_rows, *shape], positions_BxP)

        def add_and_norm(x_RxI: tf.Tensor, dense: Dense, residual_RxH: tf.Tensor, norm: Norm, site: int) -> tf.Tensor:
            drop = make_dropout(site, config.hidden_dropout_prob, sequence_length, config.hidden_size)
            projected, epsilon = self._project(x_RxI, dense), config.layer_norm_eps
            return backend.residual_norm(*projected, residual_RxH, *norm, epsilon, num_results, drop)

        num_heads, rate = config.num_attention_heads, config.attention_probs_dropout_prob
        context_RxH = backend.attention(
            [
                self._project(query_RxH, weights.query),
                self._project(key_RxH, weights.key),
                self._project(value_RxH, weights.value),
            ],
            visible,
            make_dropout(0, rate, num_heads, sequence_length, sequence_length),
            num_heads,
            num_results,
        )
        x_RxH = add_and_norm(context_RxH, weights.attention_output, residual_RxH, weights.attention_norm, 1)
        wide_RxI = backend.bias_gelu(*self._project(x_RxH, weights.intermediate), config.hidden_act == "gelu_exact")
        return add_and_norm(wide_RxI, weights.output_dense, x_RxH, weights.output_norm, 2)


class Pooler(BertLayer):
    """tanh(dense(state of [CLS])): [B, K, H] -> [B*K, H]."""

    def __init__(self, config: BertConfig, backend: Plain, seed: int):
        super().__init__(config, backend, seed, "pooler")
        self.dense = self._dense("bert/pooler/dense", config.hidden_size, config.hidden_size)

    def call(self, first_BxKxH):
        first_RxH = tf.reshape(first_BxKxH, [-1, self.config.hidden_size])
        return self.backend.bias_tanh(*self._project(first_RxH, self.dense))


def first_positions(features: Features) -> tf.Tensor:
    """The positions of [CLS]: integers [B, 1], or [B, K] if packed."""
    if "cls_positions" in features:
        return features["cls_positions"]
    return tf.zeros([tf.shape(features["input_ids"])[0], 1], tf.int64)


def _check_features(features: Features, num_positions: int) -> None:
    arrays = features if isinstance(features, Mapping) else {}
    if any(is_of_keras_3(values) for values in arrays.values()):
        raise ValueError(
            "the encoder is a model of Keras 2, and these are inputs of Keras 3: make the inputs and the model with "
            "what `from bert_tf.base.tensorflow import keras` gives"
        )
    shape = tf.TensorShape([None, None])
    try:
        for name in ("input_ids", "segment_ids", "instance_numbers" if "instance_numbers" in arrays else "input_mask"):
            shape = shape.merge_with(list(arrays[name].shape))  # no list, but an error, where the rank is not known
        are_ids = all("int" in _type_name(arrays[name]) for name in ("input_ids", "segment_ids"))
    except (AttributeError, KeyError, ValueError):
        are_ids = False
    if not are_ids or any(isinstance(values, tf.RaggedTensor) for values in arrays.values()):
        raise ValueError(
            "the encoder takes a dictionary of input_ids, input_mask and segment_ids, int32 tensors of one shape, "
            f"[texts, tokens], not {_describe(arrays) or type(features).__name__}; in Hugging Face's models the last "
            "two are called attention_mask and token_type_ids"
        )
    if shape[1] is not None and shape[1] > num_positions:
        raise ValueError(f"rows of {shape[1]} tokens, but the model has {num_positions} positions; shorten the text")


def _type_name(values: Any) -> str:
    """The name of an array's type, such as int32; of anything else its class's."""
    if not hasattr(values, "dtype") or isinstance(values, tf.RaggedTensor):
        return type(values).__name__
    return getattr(values.dtype, "name", str(values.dtype))


def _describe(arrays: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_type_name(each)} {getattr(each, 'shape', '')}".strip() for name, each in arrays.items())


@keras.utils.register_keras_serializable("bert_tf")
class BertEncoder(keras.Model):
    """The encoder. call({"input_ids", "input_mask", "segment_ids"} int32 [B, S], dropout=None) ->
    (sequence [B, S, H], pooled [B, H]) in the compute type. With dropout B and S must be static.
    Packed rows: see the module's docstring; pooled is [B*K, H].

    Args:
      config: the encoder's shape.
      backend: how it computes, from `backends.make_backend`; by default as a plain graph, in float32.
      seed: the initial weights are a function of the seed and of each variable's name.
      has_pooler: without a pooler only `states_at` and `hidden_states` can be called.
      name: Keras' name of the model; the variables' names do not contain it.
    """

    def __init__(
        self,
        config: BertConfig,
        backend: Plain | None = None,
        seed: int = 0,
        *,
        has_pooler: bool = True,
        name: str = "bert",
    ):
        super().__init__(name=name, dtype="float32", autocast=False)
        backend = backend or Plain()
        self.config, self.backend, self.weight_copies = config, backend, WeightCopies(backend)
        self.embeddings = Embeddings(config, backend, seed)
        self.encoder_layers = [
            EncoderLayer(config, backend, seed, index=index, weight_copies=self.weight_copies)
            for index in range(config.num_hidden_layers)
        ]
        if has_pooler:
            self.pooler = Pooler(config, backend, seed)
        self.built = True  # for Keras, which otherwise builds it from shapes alone

    def get_config(self) -> dict[str, Any]:
        """For Keras to copy and load the encoder; the new one has the default backend, whatever this one's is."""
        return {
            "name": self.name,
            "config": self.config.to_dict(),
            "has_pooler": hasattr(self, "pooler"),
            "trainable": [part.trainable for part in (self, *self.layers)],
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: object = None) -> BertEncoder:
        encoder = cls(BertConfig.from_dict(config["config"]), has_pooler=config["has_pooler"], name=config["name"])
        for part, is_trainable in zip((encoder, *encoder.layers), config["trainable"]):
            part.trainable = is_trainable
        return encoder

    def copy_weights(self) -> Copies:
        """Copies of the weights, for `weight_copies.reading_from` within an update."""
        weights = tf.nest.flatten([layer.layer_weights for layer in self.encoder_layers])
        kernels = [weight for weight in weights if len(weight.shape) == 2]
        return self.weight_copies.make(kernels, self.embeddings.word_embeddings)

    def call(self, features: Features, dropout: DropoutKey | None = None):
        sequence_BxSxH = self.hidden_states(features, dropout)[-1]
        first_BxKxH = self.backend.gather_positions(sequence_BxSxH, first_positions(features))
        return sequence_BxSxH, self.pooler(first_BxKxH)

    def states_at(
        self, features: Features, *positions_BxP: tf.Tensor, dropout: DropoutKey | None = None
    ) -> list[tf.Tensor]:
        """The last layer's outputs at these positions of each row, and only these: [B, P, H] for each [B, P]."""
        counts = [positions.shape[1] for positions in positions_BxP]
        # int64, because TensorFlow concatenates int32 on the host, even on GPU machines.
        columns = [tf.cast(positions, tf.int64) for positions in positions_BxP]
        num_unused = -sum(counts) % TENSOR_CORE_UNIT
        columns.append(tf.zeros([tf.shape(columns[0])[0], num_unused], tf.int64))
        states_BxPxH = self.hidden_states(features, dropout, tf.concat(columns, axis=1))[-1]
        return tf.split(states_BxPxH, [*counts, num_unused], axis=1)[:-1]

    def hidden_states(
        self, features: Features, dropout: DropoutKey | None = None, positions_BxP: tf.Tensor | None = None
    ) -> list[tf.Tensor]:
        """The outputs of the embeddings and of every layer: L + 1 tensors [B, S, H].

        With positions, the last one is [B, P, H].

        Raises: ValueError if `features` lacks one of its arrays, or has more positions than the model.
        """
        _check_features(features, self.config.max_position_embeddings)
        if is_called_by_keras_3() and self.trainable_variables:
            warnings.warn(_UNKNOWN_TO_KERAS_3, stacklevel=2)
        visible = VisibleKeys.from_features(features)
        x_BxSxH = self.embeddings(
            features["input_ids"], features["segment_ids"], features.get("position_ids"), dropout=dropout
        )
        sequence_length, hidden_size = length_of(x_BxSxH), self.config.hidden_size
        states, x_RxH = [x_BxSxH], tf.reshape(x_BxSxH, [-1, hidden_size])
        *lower, last = self.encoder_layers
        for layer in lower:
            x_RxH = layer(x_RxH, visible, dropout=dropout)
            states.append(tf.reshape(x_RxH, [-1, sequence_length, hidden_size]))
        x_RxH = last(x_RxH, visible, dropout=dropout, positions_BxP=positions_BxP)
        num_results = sequence_length if positions_BxP is None else positions_BxP.shape[1]
        return [*states, tf.reshape(x_RxH, [-1, num_results, hidden_size])]
