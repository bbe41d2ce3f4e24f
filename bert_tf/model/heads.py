"""The encoder's heads (masked words, next sentence, spans, classes, choices) and the models that are trained."""

from __future__ import annotations

from collections.abc import Callable

from bert_tf.base.tensorflow import keras, tf
from bert_tf.bert_config import BertConfig
from bert_tf.model.backends.plain import Plain, WordLogits
from bert_tf.model.encoder import BertEncoder, BertLayer, first_free_site, first_positions
from bert_tf.model.randomness import DropoutKey
from bert_tf.model.visibility import Features

# The rate before a classifier: a constant in Google's run_classifier.py, independent of the encoder's rates.
CLASSIFIER_DROPOUT = 0.1


class MaskedLanguageModelHead(BertLayer):
    """Logits over the whole vocabulary from the states at the masked positions: [B, P, H] -> float32 [B, P, V]."""

    def __init__(self, config: BertConfig, backend: Plain, seed: int):
        super().__init__(config, backend, seed, "masked_language_model")
        scope = "cls/predictions"
        self.transform = self._dense(f"{scope}/transform/dense", config.hidden_size, config.hidden_size)
        self.norm = self._layer_norm(f"{scope}/transform/LayerNorm", config.hidden_size)
        self.output_bias = self._zeros(f"{scope}/output_bias", config.padded_vocab_size)

    def call(self, masked_BxPxH, word_table_WxH):
        logits_RxV = self.backend.bias_logits(*self.logits_before_bias(masked_BxPxH, word_table_WxH))
        return tf.reshape(logits_RxV, [-1, masked_BxPxH.shape[1], self.config.vocab_size])

    def logits_before_bias(self, masked_BxPxH, word_table_WxH) -> WordLogits:
        """The logits without their bias."""
        backend, config = self.backend, self.config
        masked_RxH = tf.reshape(masked_BxPxH, [-1, config.hidden_size])
        projected, norm = self._project(masked_RxH, self.transform), (*self.norm, config.layer_norm_eps)
        hidden_RxH = backend.bias_gelu_norm(*projected, *norm, config.hidden_act == "gelu_exact")
        logits_RxW = backend.dense(hidden_RxH, word_table_WxH, transpose_kernel=True)
        return WordLogits(logits_RxW, self.output_bias, config.vocab_size)


class _ClassifierHead(BertLayer):
    """Linear map to a few classes, stored [classes, H] as in Google's checkpoints: [R, H] -> [R, C].

    `scope` is the prefix of the variables' names, such as "cls/squad/", or empty.
    """

    def __init__(
        self, config: BertConfig, backend: Plain, seed: int, *, scope: str, num_classes: int, trains_bias: bool = True
    ):
        super().__init__(config, backend, seed, scope.rstrip("/").split("/")[-1] or "classifier")
        self.num_classes = num_classes
        self.output_weights = self._weight(f"{scope}output_weights", [num_classes, config.hidden_size])
        self.output_bias = self._zeros(f"{scope}output_bias", num_classes, trainable=trains_bias)

    def call(self, x_RxH):
        logits_RxC = self.backend.dense(x_RxH, tf.transpose(self.output_weights))
        return self.backend.bias_logits(logits_RxC, self.output_bias, self.num_classes)

    def call_at_each_position(self, x_BxSxH):
        """[B, S, H] -> [B, S, C]."""
        _, sequence_length, hidden_size = x_BxSxH.shape
        return tf.reshape(self(tf.reshape(x_BxSxH, [-1, hidden_size])), [-1, sequence_length, self.num_classes])


class _TrainedModel(keras.Model):
    """Base class: the encoder, called `bert`. Arguments as of `BertEncoder`."""

    has_pooler = True

    def __init__(self, name: str, config: BertConfig, backend: Plain | None, seed: int):
        super().__init__(name=name, autocast=False)
        self.config, self.backend = config, backend or Plain()
        self.bert = BertEncoder(config, self.backend, seed, has_pooler=self.has_pooler)


class MaskedWordModel(_TrainedModel):
    """Encoder without a pooler, with the masked-language-model head.

    call(features, dropout=None) -> mlm_logits [B, P, V], float32; features as for `BertEncoder`, plus
    "masked_lm_positions" int32 [B, P].
    """

    has_pooler = False

    def __init__(self, config: BertConfig, backend: Plain | None = None, seed: int = 0):
        super().__init__("pretraining", config, backend, seed)
        self.masked_language_model = MaskedLanguageModelHead(config, self.backend, seed)

    def call(self, features: Features, dropout: DropoutKey | None = None):
        return self._outputs(features, dropout, self.masked_language_model)

    def logits_before_bias(self, features: Features, dropout: DropoutKey | None = None):
        """As `call`, but with `WordLogits` in place of mlm_logits, for losses that add the bias themselves."""
        return self._outputs(features, dropout, self.masked_language_model.logits_before_bias)

    def _outputs(self, features: Features, dropout: DropoutKey | None, word_head: Callable):
        (masked_BxPxH,) = self.bert.states_at(features, features["masked_lm_positions"], dropout=dropout)
        return word_head(masked_BxPxH, self._word_table())

    def _word_table(self):
        return self.bert.weight_copies.read(self.bert.embeddings.word_embeddings)


class PretrainingModel(MaskedWordModel):
    """Encoder with the masked-language-model and the next-sentence head.

    call(features, dropout=None) -> (mlm_logits [B, P, V], nsp_logits [B, 2]), float32; features as
    for `MaskedWordModel`. Packed: nsp_logits [B*K, 2].
    """

    has_pooler = True

    def __init__(self, config: BertConfig, backend: Plain | None = None, seed: int = 0):
        super().__init__(config, backend, seed)
        self.next_sentence = _ClassifierHead(config, self.backend, seed, scope="cls/seq_relationship/", num_classes=2)

    def _outputs(self, features: Features, dropout: DropoutKey | None, word_head: Callable):
        masked_BxPxH, first_BxKxH = self.bert.states_at(
            features, features["masked_lm_positions"], first_positions(features), dropout=dropout
        )
        return word_head(masked_BxPxH, self._word_table()), self.next_sentence(self.bert.pooler(first_BxKxH))


class _ClassifyingModel(_TrainedModel):
    """Base class: the encoder and a linear map to a few classes, called `classifier`."""

    scope, reads_pooled, trains_bias = "", True, True

    def __init__(self, config: BertConfig, num_classes: int, backend: Plain | None = None, seed: int = 0):
        super().__init__("classifier", config, backend, seed)
        self.bert.pooler.trainable = self.reads_pooled
        self.classifier = _ClassifierHead(
            config, self.backend, seed, scope=self.scope, num_classes=num_classes, trains_bias=self.trains_bias
        )

    def _drop(self, x: tf.Tensor, key: DropoutKey | None) -> tf.Tensor:
        """The dropout before the classifier."""
        dropout = self.backend.dropout(key, first_free_site(self.config), CLASSIFIER_DROPOUT, x.shape)
        return self.backend.apply_dropout(x, dropout)


class SpanModel(_ClassifyingModel):
    """Encoder with the span head of SQuAD: call(features, dropout=None) -> (start [B, S], end [B, S])."""

    scope, reads_pooled = "cls/squad/", False

    def __init__(self, config: BertConfig, backend: Plain | None = None, seed: int = 0):
        super().__init__(config, 2, backend, seed)

    def call(self, features: Features, dropout: DropoutKey | None = None):
        logits_BxSx2 = self.classifier.call_at_each_position(self.bert.hidden_states(features, dropout)[-1])
        return logits_BxSx2[:, :, 0], logits_BxSx2[:, :, 1]


class TokenModel(_ClassifyingModel):
    """Encoder with a classifier of each position: call(features, dropout=None) -> logits float32 [B, S, C]."""

    scope, reads_pooled = "cls/token/", False

    def call(self, features: Features, dropout: DropoutKey | None = None):
        sequence_BxSxH = self.bert.hidden_states(features, dropout)[-1]
        return self.classifier.call_at_each_position(self._drop(sequence_BxSxH, dropout))


class ClassifierModel(_ClassifyingModel):
    """Encoder with a classifier on the pooled output: call(features, dropout=None) -> logits float32 [B, C].

    With one class the logit is the number that a regression predicts. The variables are called
    ``output_weights`` and ``output_bias``, as in Google's run_classifier.py.
    """

    def call(self, features: Features, dropout: DropoutKey | None = None):
        (first_Bx1xH,) = self.bert.states_at(features, first_positions(features), dropout=dropout)
        return self.classifier(self._drop(self.bert.pooler(first_Bx1xH), dropout))


class ChoiceModel(ClassifierModel):
    """Encoder with a score for each choice: features [B, N, S], N choices per question -> scores float32 [B, N].

    Features [B, S], of single choices, give [B, 1]. The bias is not trained: it adds the same to all scores of a
    question, so its gradient would be mere rounding errors, which differ with the split of a batch.
    """

    scope, trains_bias = "cls/choice/", False

    def __init__(self, config: BertConfig, backend: Plain | None = None, seed: int = 0):
        super().__init__(config, 1, backend, seed)

    def call(self, features: Features, dropout: DropoutKey | None = None):
        num_choices, sequence_length = (1, *features["input_ids"].shape[1:])[-2:]
        inputs = ("input_ids", "input_mask", "segment_ids")
        rows = {name: tf.reshape(features[name], [-1, sequence_length]) for name in inputs}
        # Every choice is a row with dropouts of its own.
        key = dropout and dropout._replace(first_row=dropout.first_row * num_choices)
        return tf.reshape(super().call(rows, key), [-1, num_choices])
