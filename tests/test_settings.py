import dataclasses
import json
import subprocess
from pathlib import Path

import pytest

from bert_tf.base.command_line import CommandParser, add_tokenizer_arguments
from bert_tf.bert_config import BertConfig
from bert_tf.doctor import machine
from bert_tf.launch import start
from bert_tf.launch.arguments import Positionals, arguments
from bert_tf.launch.environment import LaunchEnvironment
from bert_tf.programs import prepare
from bert_tf.programs.flags import add_option, parse_flags
from bert_tf.programs.settings_page import TABLES, render
from bert_tf.settings.declaration import find_setting, from_variables, setting, with_variable
from bert_tf.settings.preparation import PreparationOptions
from bert_tf.settings.programs import PRETRAINING
from bert_tf.settings.training import FinetuningConfig, PretrainingConfig
from tests.processes import ROOT
from tests.refusals import refused

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


def test_presets_are_the_published_sizes():
    sizes = {"large": (24, 1024, 16), "base": (12, 768, 12), "medium": (8, 512, 8), "small": (4, 512, 8)}
    for name, expected in {**sizes, "mini": (4, 256, 4), "tiny": (2, 128, 2)}.items():
        config = BertConfig.preset(name, 30522)
        assert (config.num_hidden_layers, config.hidden_size, config.num_attention_heads) == expected
        assert config.intermediate_size == 4 * config.hidden_size
    assert config.padded_vocab_size == 30528, "a multiple of 8"


@pytest.mark.parametrize(
    "change, words",
    [
        ({"hidden_size": 100}, "not a multiple"),
        ({"hidden_act": "swish"}, "must be one of"),
        ({"hidden_dropout_prob": 0.999999}, r"\[0, 0.999\]"),
        ({"layer_norm_eps": 0}, r"layer_norm_eps=0 .*\(0, 1\]"),
        ({"max_position_embeddings": 10**30}, "max_position_embeddings=10000.* at most 16777216"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers=1000000 .* at most 1024"),
        ({"hidden_size": "9" * 5000}, "hidden_size='9{39} in the model's"),
        ({"initializer_range": "0.02"}, r"initializer_range='0.02' .*: must be a number in \(0, 1\]"),
        ({"layers": 3}, "unknown field"),
        ({"hidden_size": "left out", "num_attention_heads": "left out"}, "hidden_size, num_attention_heads missing"),
    ],
)
def test_bad_model_configuration_names_file_and_rule(tmp_path, change, words):
    path = tmp_path / "bert_config.json"
    values = {**BertConfig.preset("base", 100).to_dict(), **change}
    path.write_text(json.dumps({name: value for name, value in values.items() if value != "left out"}))
    refused(f"{path}.*{words}|{words}.*{path}", BertConfig.from_json_file, path)


def test_a_tilde_in_a_path_is_the_home_folder(monkeypatch):
    """Shells do not expand that of --name=~/x."""
    monkeypatch.setenv("HOME", "/h")
    typed = ["run", "--model_dir=~/x", "--input_files=~/a,/b~,~/c, ~", "--eval_files=~nobody at all/x"]
    flags = parse_flags(typed, "", *PRETRAINING)
    assert (flags.model_dir, flags.input_files, flags.eval_files) == ("/h/x", "/h/a,/b~,/h/c, /h", "~nobody at all/x")
    assert find_setting("text_column", PreparationOptions).parse("~") == "~"
    environment = LaunchEnvironment({"RESULTS_DIR": "~/r", "INIT_CHECKPOINT": "~/c", "CUDA_VISIBLE_DEVICES": ""})
    assert (environment.value_of("results_dir"), environment.init_checkpoint) == ("/h/r", "/h/c")
    monkeypatch.setenv("BERT_PREP_WORKING_DIR", "~/w")
    assert prepare._working_dir() == machine.find_folder("data", "BERT_PREP_WORKING_DIR").path == Path("/h/w")
    assert ",/h/d:/h/d" in start.container_options({"CONTAINER_IMAGE": "i", "DATA_DIR": "~/d"})[1]
    parser = CommandParser("it", "")
    parser.add_argument("--output", type=Path)
    add_tokenizer_arguments(parser)
    arguments = parser.parse_args(["--output=~/o", "--vocab_file=~/v"])
    assert (arguments.output, arguments.vocab_file) == (Path("/h/o"), "/h/v")


def test_what_is_no_object_is_refused():
    refused("config.json: must be a JSON object with the model's sizes", BertConfig.from_dict, [1], "config.json")


def test_identity_does_not_depend_on_the_split():
    one = PretrainingConfig(**TRAIN)
    split = dict(train_batch_size=64, num_accumulation_steps=1, num_ranks=1, learning_rate=2e-3)
    other = dataclasses.replace(one, **split, xla_scope="step", save_checkpoint_steps=7)
    assert one.identity() == other.identity()
    assert (one.global_batch_size, one.effective_learning_rate) == (64, pytest.approx(2e-3))
    assert one.identity() != dataclasses.replace(one, seed=1).identity()


@pytest.mark.parametrize(
    "change, words",
    [
        ({"warmup_steps": 101}, "warmup_steps=101"),
        ({"decay_steps": 99, "warmup_steps": 2}, "decay_steps=99: more than there are, 100 updates less 2 of warm-up"),
        ({"decay_steps": 9, "continuous_join": True}, "continuous_join has no effect with decay_steps"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"learning_rate": float("inf")}, "learning_rate=inf: must be a number above 0, and at most 100"),
        ({"num_ranks": 999_999}, "num_ranks=999999: must be .* at most 16,384"),
        ({"train_batch_size": 10**6}, "global_batch_size=16000000: must be at most 1,048,576"),
        ({"seed": 10**18}, "seed=1000000000000000000: must be .* at most 999,999,999,999,999,999"),
        ({"adam_bias_correction": True}, "no effect with optimizer_type=lamb"),
        ({"max_predictions_per_seq": 129}, "max_predictions_per_seq=129"),
    ],
)
def test_bad_training_settings_name_the_setting(change, words):
    refused(words, PretrainingConfig, **{**TRAIN, **change})


def test_the_largest_seed_can_be_typed():
    for name, cls in ("seed", PretrainingConfig), ("random_seed", PreparationOptions):
        seed = find_setting(name, cls)
        assert seed.parse(str(seed.at_most)) == seed.at_most < 2**63, "NumPy would round it to a float"


def test_fine_tuning_has_the_same_limits():
    right = dict(learning_rate=1e-5, train_batch_size=4, num_accumulation_steps=1, num_ranks=1, num_train_epochs=2.0)
    assert FinetuningConfig(**right).num_updates(10) == 5
    refused("num_train_epochs=inf", FinetuningConfig, **{**right, "num_train_epochs": float("inf")})
    refused("warmup_proportion", FinetuningConfig, **right, warmup_proportion=1.0)


@pytest.mark.parametrize(
    "changes, joins, decay_start",
    [
        ({}, False, 0),
        ({"optimizer_type": "adamw"}, True, 2),
        ({"optimizer_type": "lars"}, False, 0),
        ({"continuous_join": True}, True, 2),
        ({"optimizer_type": "adamw", "continuous_join": False}, False, 0),
        ({"decay_steps": 20}, False, 80),
    ],
)
def test_the_rate_falls_as_is_usual_for_the_optimizer_or_asked_for(changes, joins, decay_start):
    config = PretrainingConfig(**{**TRAIN, **changes})
    assert (config.identity()["continuous_join"], config.decay_start(2)) == (joins, decay_start)


def test_optimizer_options():
    assert PretrainingConfig(**TRAIN).optimizer_options == {"adapt_excluded": True}
    adam = PretrainingConfig(**TRAIN, optimizer_type="adamw", adam_bias_correction=True)
    assert adam.optimizer_options == {"bias_correction": True}


# --- A new setting is one field ------------------------------------------------------------------

RULE = "must be a whole number of at least 1, and at most 9"


@pytest.fixture
def made_up():
    """Pre-training with one more setting."""
    field = setting(7, "How much of it.", at_least=1, at_most=9, is_fixed=True, variable="MADE_UP")
    return dataclasses.make_dataclass("MadeUp", [("made_up", "int", field)], bases=(PretrainingConfig,), frozen=True)


def test_a_new_setting_is_checked_belongs_to_the_identity_and_is_in_the_documentation(made_up):
    assert made_up(**TRAIN).identity() == {**PretrainingConfig(**TRAIN).identity(), "made_up": 7}
    refused(f"^made_up=10: {RULE}$", made_up, **TRAIN, made_up=10)
    row = f"| `--made_up` | How much of it. | 7 | {RULE.removeprefix('must be ')} | fixed | `MADE_UP` |"
    assert row in render({"Title": (made_up,)})


def test_a_new_setting_is_a_flag(made_up, capsys):
    assert parse_flags(["program", "--made_up=3"], "", made_up).made_up == 3
    assert parse_flags(["program"], "", made_up).made_up == 7
    refused(f"^--made_up=10: {RULE}; see --help$", parse_flags, ["program", "--made_up=10"], "", made_up)
    with pytest.raises(SystemExit):
        parse_flags(["program", "--help"], "", made_up)
    shown = " ".join(capsys.readouterr().out.split())
    assert "--made_up MADE_UP How much of it. (a whole number of at least 1, and at most 9) Default: 7." in shown


def test_a_new_setting_is_an_option_of_preparation_an_argument_and_a_variable(made_up):
    [argument] = arguments("made_up_phase1=5", made_up)
    assert Positionals([argument], ["8"]).values == {"made_up_phase1": 8}
    refused(rf"made_up_phase1 \(position 1\) is '0': {RULE}", Positionals, [argument], ["0"])
    assert from_variables({"MADE_UP": "2"}, made_up) == {"made_up": 2}
    refused(f"^MADE_UP=x: {RULE}$", from_variables, {"MADE_UP": "x"}, made_up)
    parser = CommandParser("program", None)
    add_option(parser, find_setting("made_up", made_up))
    assert parser.parse_args(["--made_up", "4"]).made_up == 4


def test_containers_get_all_variables():
    """launch.sh finds them in the declarations, as there may be no Python beside docker."""
    text = (ROOT / "scripts/docker/launch.sh").read_text()
    code = text[text.index("names=$(") : text.index("for name in $names")]
    script = f"root={ROOT}\n{code}\nprintf '%s\\n' $names"
    shown = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.split()
    classes = {cls for table in TABLES.values() for cls in table}
    assert set(shown) == {each.variable for each in with_variable(*classes)}
