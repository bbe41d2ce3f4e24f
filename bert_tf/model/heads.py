"""The encoder's heads (masked LM, next sentence, spans, classes) and the models that are trained."""

from __future__ import annotations

import tensorflow as tf

from bert_tf.bert_config import BertConfig
from bert_tf.model.blocks import Blocks
from bert_tf.model.encoder import BertEncoder, BertLayer, first_free_site, first_positions
from bert_tf.model.randomness import DropoutKey

# The rate before the classifier: a constant in Google's run_classifier.py, independent of the encoder's rates.
CLASSIFIER_DROPOUT = 0.1


class MaskedLanguageModelHead(BertLayer):
    """Logits over the whole vocabulary from the states at the masked positions: [B, P, H] -> float32 [B, P, V]."""

    def __init__(self, config: BertConfig, blocks: Blocks, seed: int):
        super().__init__(config, blocks, seed, "masked_language_model")
        scope = "cls/predictions"
        self.transform = self._dense(f"{scope}/transform/dense", config.hidden_size, config.hidden_size)
        self.norm = self._layer_norm(f"{scope}/transform/LayerNorm", config.hidden_size)
        self.output_bias = self._zeros(f"{scope}/output_bias", config.padded_vocab_size)

    def call(self, masked_BxPxH, word_embeddings_VxH):
        blocks, config = self.blocks, self.config
        masked_RxH = tf.reshape(masked_BxPxH, [-1, config.hidden_size])
        kernel, bias = self.transform
        exact = config.hidden_act == "gelu_exact"
        hidden_RxH = blocks.bias_gelu_norm(blocks.dense(masked_RxH, kernel), bias, *self.norm, exact)
        table = tf.cast(blocks.current(word_embeddings_VxH), blocks.compute_dtype)
        logits_RxV = tf.matmul(hidden_RxH, table, transpose_b=True)
        logits_RxV = blocks.bias_logits(logits_RxV, self.output_bias, config.vocab_size)
        return tf.reshape(logits_RxV, [-1, masked_BxPxH.shape[1], config.vocab_size])


class _ClassifierHead(BertLayer):
    """Linear map to a few classes, stored [classes, H] as in Google's checkpoints: [R, H] -> [R, C].

    `scope` is the prefix of the variables' names, such as "cls/squad/", or empty.
    """

    def __init__(self, config: BertConfig, blocks: Blocks, seed: int, scope: str, num_classes: int):
        super().__init__(config, blocks, seed, scope.rstrip("/").split("/")[-1] or "classifier")
        self.num_classes = num_classes
        self.output_weights = self._weight(f"{scope}output_weights", [num_classes, config.hidden_size])
        self.output_bias = self._zeros(f"{scope}output_bias", num_classes)

    def call(self, x_RxH):
        logits_RxC = self.blocks.dense(x_RxH, tf.transpose(self.output_weights))
        return self.blocks.bias_logits(logits_RxC, self.output_bias, self.num_classes)


class PretrainingModel(tf.keras.Model):
    """Encoder with the masked-language-model and the next-sentence head.

    call(features, dropout=None) -> (mlm_logits [B, P, V], nsp_logits [B, 2]), float32; features as
    for `BertEncoder`, plus "masked_lm_positions" int32 [B, P]. Packed: nsp_logits [B*K, 2].
    """

    def __init__(self, config: BertConfig, blocks: Blocks | None = None, seed: int = 0):
        super().__init__(name="pretraining", autocast=False)
        blocks = blocks or Blocks()
        self.config, self.blocks = config, blocks
        self.bert = BertEncoder(config, blocks, seed)
        self.masked_language_model = MaskedLanguageModelHead(config, blocks, seed)
        self.next_sentence = _ClassifierHead(config, blocks, seed, "cls/seq_relationship/", 2)

    def call(self, features: dict[str, tf.Tensor], dropout: DropoutKey | None = None):
        masked_BxPxH, first_BxKxH = self.bert.states_at(
            features, features["masked_lm_positions"], first_positions(features), dropout=dropout
        )
        mlm_logits_BxPxV = self.masked_language_model(masked_BxPxH, self.bert.embeddings.word_embeddings)
        return mlm_logits_BxPxV, self.next_sentence(self.bert.pooler(first_BxKxH))


class SpanModel(tf.keras.Model):
    """Encoder with the span head of SQuAD: call(features, dropout=None) -> (start [B, S], end [B, S])."""

    def __init__(self, config: BertConfig, blocks: Blocks | None = None, seed: int = 0):
        super().__init__(name="span", autocast=False)
        blocks = blocks or Blocks()
        self.config, self.blocks = config, blocks
        self.bert = BertEncoder(config, blocks, seed)
        self.bert.pooler.trainable = False  # not used here
        self.span = _ClassifierHead(config, blocks, seed, "cls/squad/", 2)

    def call(self, features: dict[str, tf.Tensor], dropout: DropoutKey | None = None):
        sequence_BxSxH = self.bert.hidden_states(features, dropout)[-1]
        _, sequence_length, hidden_size = sequence_BxSxH.shape
        logits_Rx2 = self.span(tf.reshape(sequence_BxSxH, [-1, hidden_size]))
        logits_BxSx2 = tf.reshape(logits_Rx2, [-1, sequence_length, 2])
        return logits_BxSx2[:, :, 0], logits_BxSx2[:, :, 1]


class ClassifierModel(tf.keras.Model):
    """Encoder with a classifier on the pooled output: call(features, dropout=None) -> logits float32 [B, C].

    With one class the logit is the number that a regression predicts. The variables are called
    ``output_weights`` and ``output_bias``, as in Google's run_classifier.py.
    """

    def __init__(self, config: BertConfig, num_classes: int, blocks: Blocks | None = None, seed: int = 0):
        super().__init__(name="classifier", autocast=False)
        blocks = blocks or Blocks()
        self.config, self.blocks = config, blocks
        self.bert = BertEncoder(config, blocks, seed)
        self.classifier = _ClassifierHead(config, blocks, seed, "", num_classes)

    def call(self, features: dict[str, tf.Tensor], dropout: DropoutKey | None = None):
        (first_Bx1xH,) = self.bert.states_at(features, first_positions(features), dropout=dropout)
        pooled_BxH = self.bert.pooler(first_Bx1xH)
        kept = self.blocks.dropout(dropout, first_free_site(self.config), CLASSIFIER_DROPOUT, pooled_BxH.shape)
        return self.classifier(self.blocks.apply_dropout(pooled_BxH, kept))
