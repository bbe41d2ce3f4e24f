import dataclasses
import json

import pytest

from bert_tf.base.errors import UserError
from bert_tf.config import BatchSplit, BertConfig, FinetuningConfig, PretrainingConfig, compute_dtype

TRAIN = dict(
    num_train_steps=100,
    warmup_steps=10,
    learning_rate=1e-3,
    train_batch_size=4,
    num_accumulation_steps=8,
    num_ranks=2,
    max_seq_length=128,
    max_predictions_per_seq=20,
)


@pytest.mark.parametrize(
    "name, layers, hidden, heads",
    [
        ("large", 24, 1024, 16),
        ("base", 12, 768, 12),
        ("medium", 8, 512, 8),
        ("small", 4, 512, 8),
        ("mini", 4, 256, 4),
        ("tiny", 2, 128, 2),
    ],
)
def test_presets_are_the_published_sizes(name, layers, hidden, heads):
    config = BertConfig.preset(name, 30522)
    assert (config.num_hidden_layers, config.hidden_size, config.num_attention_heads) == (layers, hidden, heads)
    assert config.intermediate_size == 4 * hidden


def test_vocabulary_is_padded_to_a_multiple_of_eight():
    assert BertConfig.preset("tiny", 30522).padded_vocab_size == 30528
    assert BertConfig.preset("tiny", 32).padded_vocab_size == 32


def test_config_survives_json(tmp_path):
    config = BertConfig.preset("mini", 1000)
    path = tmp_path / "bert_config.json"
    path.write_text(config.to_json())
    assert BertConfig.from_json_file(path) == config


def test_googles_file_is_accepted(tmp_path):
    values = {**BertConfig.preset("base", 21128).to_dict(), "directionality": "bidi", "pooler_fc_size": 768}
    path = tmp_path / "bert_config.json"
    path.write_text(json.dumps(values))
    assert BertConfig.from_json_file(path).vocab_size == 21128


@pytest.mark.parametrize(
    "change, words",
    [
        ({"hidden_size": 100}, "not a multiple"),
        ({"hidden_act": "swish"}, "must be one of"),
        ({"hidden_dropout_prob": 1.0}, r"\[0, 1\)"),
        ({"num_hidden_layers": 0}, ">= 1"),
        ({"type_vocab_size": 1}, ">= 2"),
        ({"num_hidden_layers": 1025}, "num_hidden_layers=1025 .* at most 1024"),
        ({"max_position_embeddings": 10**30}, "max_position_embeddings=10000.* at most 16777216"),
        ({"vocab_size": 10**7, "intermediate_size": 10**7}, r"1\.9e\+11 weights, more than 4e\+10: make vocab_size"),
        ({"hidden_size": "9" * 5000}, "hidden_size='9{39} in the model's"),
        ({"initializer_range": -0.02}, r"initializer_range=-0.02: .*\(0, 1\]"),
        ({"initializer_range": "0.02"}, "must be a number"),
        ({"hidden_dropout_prob": None}, "must be a number"),
        ({"layers": 3}, "unknown field"),
    ],
)
def test_bad_model_configuration_names_file_and_rule(tmp_path, change, words):
    path = tmp_path / "bert_config.json"
    path.write_text(json.dumps({**BertConfig.preset("base", 100).to_dict(), **change}))
    with pytest.raises(UserError, match=words) as caught:
        BertConfig.from_json_file(path)
    assert str(path) in str(caught.value)


def test_a_file_without_a_size_is_refused(tmp_path):
    values = BertConfig.preset("base", 100).to_dict()
    del values["hidden_size"], values["num_attention_heads"]
    (tmp_path / "bert_config.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match="bert_config.json: hidden_size, num_attention_heads missing"):
        BertConfig.from_json_file(tmp_path / "bert_config.json")


@pytest.mark.parametrize("junk", [None, 1, "x", [], [[]], [{"a": 1}]])
def test_what_is_no_object_is_refused(junk):
    with pytest.raises(UserError, match="config.json: must be a JSON object with the model's sizes"):
        BertConfig.from_dict(junk, "config.json")


def test_missing_or_broken_file_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        BertConfig.from_json_file(tmp_path / "none.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(UserError, match="not valid JSON"):
        BertConfig.from_json_file(tmp_path / "broken.json")


def test_derived_batch_and_rate():
    config = PretrainingConfig(**TRAIN)
    assert config.global_batch_size == 64
    assert config.effective_learning_rate == pytest.approx(2e-3)


def test_identity_does_not_depend_on_the_split():
    one = PretrainingConfig(**TRAIN)
    other = dataclasses.replace(
        one,
        train_batch_size=64,
        num_accumulation_steps=1,
        num_ranks=1,
        learning_rate=2e-3,
        xla_scope="step",
        save_checkpoint_steps=7,
    )
    assert one.identity() == other.identity()
    assert one.identity() != dataclasses.replace(one, seed=1).identity()


@pytest.mark.parametrize(
    "change, words",
    [
        ({"warmup_steps": 101}, "warmup_steps=101"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"learning_rate": float("inf")}, "learning_rate=inf: must be positive and at most 100"),
        ({"learning_rate": 1e38}, "at most 100"),
        ({"learning_rate": float("nan")}, "learning_rate=nan"),
        ({"num_ranks": 999_999}, "num_ranks=999999: must be at most 16384"),
        ({"train_batch_size": 10**8}, "global_batch_size=1600000000: must be at most 1048576"),
        ({"eval_batch_size": 10**8}, "eval_batch_size=100000000: must be at most 1048576"),
        ({"seed": 1 << 64}, "seed=18446744073709551616: must be at most"),
        ({"max_seq_length": 0}, "max_seq_length=0"),
        ({"num_train_steps": 0}, "num_train_steps"),
        ({"precision": "fp8"}, "fp8"),
        ({"adam_bias_correction": True}, "no effect with optimizer_type=lamb"),
        ({"max_predictions_per_seq": 129}, "max_predictions_per_seq=129"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_training_settings_name_the_setting(change, words):
    with pytest.raises(UserError, match=words):
        PretrainingConfig(**{**TRAIN, **change})


def test_fine_tuning_has_the_same_limits():
    right = dict(learning_rate=1e-5, train_batch_size=4, num_accumulation_steps=1, num_ranks=1, num_train_epochs=2.0)
    assert FinetuningConfig(**right).num_updates(10) == 5
    for change, words in (
        ({"num_train_epochs": float("inf")}, "num_train_epochs=inf"),
        ({"num_train_epochs": 0.0}, "num_train_epochs=0"),
        ({"warmup_proportion": 1.0}, "warmup_proportion"),
        ({"learning_rate": 101.0}, "learning_rate=101"),
        ({"seed": 1 << 64}, "seed"),
        ({"num_ranks": 20_000}, "num_ranks"),
    ):
        with pytest.raises(UserError, match=words):
            FinetuningConfig(**{**right, **change})


def test_a_split_keeps_its_rows():
    split = BatchSplit(8, 3, num_ranks=2, rank=1)
    assert (split.rows_per_rank, split.global_batch_size) == (24, 48)
    assert split.with_micro_batch(4) == BatchSplit(4, 6, num_ranks=2, rank=1)
    assert PretrainingConfig(**TRAIN).split(rank=1) == BatchSplit(4, 8, 2, 1)


def test_the_rate_joins_as_is_usual_for_the_optimizer():
    def joins(**changes):
        return PretrainingConfig(**{**TRAIN, **changes}).identity()["continuous_join"]

    assert (joins(), joins(optimizer_type="adamw"), joins(optimizer_type="lars")) == (False, True, False)
    assert joins(continuous_join=True) and not joins(optimizer_type="adamw", continuous_join=False)


def test_optimizer_options():
    assert PretrainingConfig(**TRAIN).optimizer_options == {"adapt_excluded": True}
    adam = PretrainingConfig(**TRAIN, optimizer_type="adamw", adam_bias_correction=True)
    assert adam.optimizer_options == {"bias_correction": True}


def test_compute_types():
    assert [compute_dtype(name) for name in ("fp32", "tf32", "fp16", "bf16")] == [
        "float32",
        "float32",
        "float16",
        "bfloat16",
    ]
