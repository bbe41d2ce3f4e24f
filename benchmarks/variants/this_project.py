"""This project's side of the comparisons. Imports are inside, because most variants need no TensorFlow."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

from benchmarks.variants.shared import random_batch, span_head
from bert_tf.base.machine.hardware import memory_peak_mib


def update(settings: dict[str, Any]) -> Callable[[], float]:
    """An update of pre-training; settings: scope, precision."""
    from benchmarks.made_up import make_step
    from bert_tf.base.tensorflow import tf
    from bert_tf.bert_config import BertConfig
    from bert_tf.memory.plan import Workload

    sizes = (settings["seq_length"], settings["predictions"])
    work = Workload(BertConfig(**settings["bert_config"]), *sizes, settings["scope"], precision=settings["precision"])
    step, number = make_step(work), iter(range(10**9))
    features = {name: tf.constant(value) for name, value in random_batch(settings).items()}
    return lambda: float(step(features, next(number)).metrics[0])


def instances(settings: dict[str, Any]) -> Callable[[], dict[str, float]]:
    """Records of one shard as a process of create_tfrecord_files makes them."""
    from bert_tf.batches.masking import MaskingRules
    from bert_tf.prepare.instances.instances import RecordSettings, TokenSettings, make_shard
    from bert_tf.records.pairs import PairSettings
    from bert_tf.records.token_file import Shard
    from bert_tf.text.basic_tokenizer import Casing

    whole_words = settings.get("whole_word_masking", False)
    how = RecordSettings(
        TokenSettings(settings["vocab_file"], Casing.from_flags(True)),
        PairSettings(settings["max_seq_length"], settings["dupe_factor"]),
        MaskingRules(max_predictions_per_seq=settings["max_predictions_per_seq"], whole_word_masking=whole_words),
    )

    def make() -> dict[str, float]:
        made = make_shard(Path(settings["text"]), Path(settings["output"]), Shard(0, 0), settings=how)
        return {"instances": made.counts["num_instances"], "peak MiB": memory_peak_mib()}

    return make


def tokens(settings: dict[str, Any]) -> Callable[[], dict[str, float]]:
    """A token file and its pairs of all `lengths`, after `texts_before` have been tokenised, which does not count."""
    from bert_tf.prepare.instances.instances import TokenSettings, make_token_file
    from bert_tf.records.pair_file import make_pairs
    from bert_tf.records.pairs import PairSettings
    from bert_tf.records.token_file import Shard
    from bert_tf.text.basic_tokenizer import Casing

    output, how = settings["output"], TokenSettings(settings["vocab_file"], Casing.from_flags(True))
    for before in settings["texts_before"]:
        make_token_file(Path(before), Path(output), Shard(0, 0), settings=how)

    def make() -> dict[str, float]:
        make_token_file(Path(settings["text"]), Path(output), Shard(0, 0), settings=how)
        made = [make_pairs(Path(output), PairSettings(each, settings["dupe_factor"])) for each in settings["lengths"]]
        return {"instances": sum(counts["num_instances"] for counts in made), "peak MiB": memory_peak_mib()}

    return make


def squad_features(settings: dict[str, Any]) -> Callable[[], dict[str, float]]:
    """SQuAD's JSON to windows in memory."""
    from bert_tf.tasks.squad.examples import read_examples
    from bert_tf.tasks.squad.features import FeatureSettings, make_windows
    from bert_tf.text.wordpiece import FullTokenizer

    def make() -> dict[str, float]:
        tokenizer = FullTokenizer(settings["vocab_file"])
        examples = read_examples(settings["file"], version_2_with_negative=True)
        windows = make_windows(examples, tokenizer, FeatureSettings(), is_training=settings["is_training"])
        return {"questions": len(examples), "windows": len(windows.input_ids)}

    return make


def answers(settings: dict[str, Any]) -> Callable[[], list[str]]:
    """Answers to a file's questions as run_squad.py finds them; settings: precision.

    The lengths of batches are chosen as if compiling cost nothing, since it is done before the clock starts.
    """
    from bert_tf.interchange.initialise import find_weights
    from bert_tf.model.backends import make_backend
    from bert_tf.model.heads import SpanModel
    from bert_tf.ranks.workers import Workers
    from bert_tf.run.variables import load_weights
    from bert_tf.settings.training import compute_dtype
    from bert_tf.tasks.predict import Predictor, compile_model
    from bert_tf.tasks.squad.decode import DecodeSettings, decode
    from bert_tf.tasks.squad.examples import Example
    from bert_tf.tasks.squad.features import FeatureSettings, make_windows
    from bert_tf.text.wordpiece import FullTokenizer

    weights = find_weights(settings["model"])
    model = SpanModel(weights.config, make_backend("blocks", compute_dtype(settings["precision"])), seed=1)
    load_weights(weights, model.variables, weights.config.vocab_size)
    model.classifier.output_weights.assign(span_head(weights.config.hidden_size))
    tokenizer = FullTokenizer(weights.tokenizer.vocab_file)
    windows = FeatureSettings(settings["max_seq_length"])
    decoding = DecodeSettings(max_answer_length=settings["max_answer_length"])
    examples = [
        Example(str(number), question, context, None)
        for number, (question, context) in enumerate(settings["questions"])
    ]
    predictor = Predictor(
        compile_model(model),
        Workers(),
        windows.max_seq_length,
        settings["batch_size"],
        by_position=True,
        rows_per_compilation=1,
    )

    def answer() -> list[str]:
        features = make_windows(examples, tokenizer, windows, is_training=False)
        logits = predictor.compute_all(features).outputs
        return list(decode(examples, features, *logits, decoding).predictions.values())

    return answer
