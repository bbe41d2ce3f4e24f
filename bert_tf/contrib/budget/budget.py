"""The recipe for a budget of hours: a day on one GPU, or an afternoon on a laptop.

Short runs come first, "measurement_short" and "measurement", which show how many sequences a second this machine
trains. The sequences of an update and the number of updates follow from this rate. Later starts read it from the run
folders of these short runs, so that the recipe, killed and started again or moved to another machine, makes the same
updates, and its schedule ends with them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.base.files import work_folder
from bert_tf.base.machine.hardware import compute_capabilities
from bert_tf.base.signals import STOPPED_EXIT_CODE
from bert_tf.bert_config import GOOGLE_VOCAB_SIZE, PRESETS, BertConfig
from bert_tf.launch.arguments import Positionals, Values, arguments
from bert_tf.launch.call import Recipe, Run
from bert_tf.launch.environment import LaunchEnvironment, short_path, show
from bert_tf.launch.prepared_data import Lengths, PreparedData, choose_data
from bert_tf.launch.pretraining import Phase, Pretraining, lock_folder
from bert_tf.memory.plan import Workload, find_rank_memory, largest_micro_batch
from bert_tf.model.kernels.requirements import OLDEST_CAPABILITY, may_have_kernels
from bert_tf.records.manifest import MANIFEST_NAME, Manifest, read_manifest
from bert_tf.records.token_file import SPLITS, TOKENS_SUFFIX, TokenFile, read_tokens
from bert_tf.run.events import DONE, is_number, read_events
from bert_tf.run.run_folder import CONFIG, describe_differences, read_config
from bert_tf.settings.declaration import Setting
from bert_tf.settings.programs import PRETRAINING

ANY = "any"
_HOURS = Setting("hours", "float", 24.0, above=0, at_most=10_000, is_flag=False)
_CORPUS = Setting("dataset", "str", ANY, is_flag=False)
BUDGET = arguments("hours=24 bert_model=base dataset=any", *PRETRAINING, hours=_HOURS, dataset=_CORPUS)

# Defaults of launcher variables: the choices of Cramming (arXiv 2212.14034) and MosaicBERT (arXiv 2312.17482), where
# there is a setting for them; experiments decided the two lengths, the share of masked tokens, the warm-up, the decay,
# the dropout and the learning rate (docs/LOG.md).
PRESET = {"MASKED_LM_PROB": "0.3", "NO_NEXT_SENTENCE": "1", "DROPOUT": "0", "DATA_FORMAT": "tokens"}


class _Part(NamedTuple):
    """A phase of the training, and the run that measures its rate."""

    name: str
    measurement: str
    max_seq_length: int
    hours_share: float
    batch_factor: int  # the sequences of an update, as a multiple of those in the last part
    warmup_share: float  # of the part's updates

    def lengths(self, environment: LaunchEnvironment) -> Lengths:
        """The tokens of a sequence, and how many of them are predicted."""
        return self.max_seq_length, math.ceil(environment.value_of("masked_lm_prob") * self.max_seq_length)


# The learning rate stays at its peak after the warm-up, and falls in the last part only.
PARTS = (
    _Part("phase_1", "measurement_short", 32, hours_share=1 / 3, batch_factor=2, warmup_share=0.2),
    _Part("phase_2", "measurement", 128, hours_share=2 / 3, batch_factor=1, warmup_share=0.02),
)
LAST = PARTS[-1]
# The best peak learning rate of a model of this width with this many long sequences in an update (docs/LOG.md). It is
# scaled by 1 / width, as trials show, and by the cube root of the sequences: 8.4e-4 for BERT-Base with 4,096, where
# Cramming has 1e-3 and MosaicBERT 5e-4.
RATE, RATE_WIDTH, RATE_BATCH = 1e-3, 128, 32
# The long sequences of an update: the power of two, within these limits, that makes about so many updates.
USUAL_UPDATES, SMALLEST_BATCH, LARGEST_BATCH = 20_000, 32, 4096
# Fewer updates than this teach a model nothing but how often words occur.
FEWEST_UPDATES = 1_000
# The original read its text 40 times (arXiv 1810.04805, A.2).
MOST_EPOCHS = 400
# Packing leaves out whole micro-batches of an update, so there must be several; a measured update has as many.
FEWEST_MICRO_BATCHES = 4
LARGEST_MICRO_BATCH_OF_CPU = 8
MEASURED_UPDATES = 20
# The share of the hours for updates; the rest is for starts, checkpoints and evaluations.
UPDATES_SHARE = 0.97
# The share of a device's memory that a micro-batch may take by the memory plan.
PLANNED_SHARE = 0.85
# This many tokens show how often each piece occurs.
COUNTED_TOKENS = 4_000_000


class Budget(Pretraining):
    """What the measurement and the training have in common."""

    @functools.cached_property  # nvidia-smi takes a second on some machines
    def precision(self) -> str:
        """The fastest one that needs no supervision: bf16 on GPUs that have it, fp16 on older ones, fp32 on CPUs."""
        if not self.environment.num_gpus:
            return "fp32"
        return "bf16" if min(compute_capabilities(), default=(0, 0)) >= OLDEST_CAPABILITY else "fp16"

    @functools.cached_property  # which also asks nvidia-smi
    def micro_batch_size(self) -> int:
        """That of the last part: the largest power of two that fits by the memory plan."""
        if not self.environment.num_gpus:
            return LARGEST_MICRO_BATCH_OF_CPU
        work = Workload(
            BertConfig.preset(self.positionals["bert_model"], GOOGLE_VOCAB_SIZE),
            *LAST.lengths(self.environment),
            "step",
            precision=self.precision,
            has_kernels=may_have_kernels(),
        )
        limit = PLANNED_SHARE * find_rank_memory(None, 1).num_bytes
        return largest_micro_batch(work, limit, LARGEST_BATCH // FEWEST_MICRO_BATCHES)

    @property
    def folder(self) -> Path:
        name = f"tf_bert_budget_{self.positionals['bert_model']}_{self.positionals['hours']:g}h"
        return self.environment.path("results_dir", work_folder() / "results" / name)

    def describe(self) -> list[str]:
        return [f"precision = {self.precision}", *super().describe()]

    def _flags(self, phase: Phase) -> Values:
        return {**super()._flags(phase), "precision": self.precision, "enable_xla": True}


class Measurement(Budget):
    """Measures how fast this machine trains, and then launches the training."""

    def launch(self) -> int:
        code = super().launch()
        if code or self.environment.is_dry_run:
            return code
        if self.environment.signals:
            return STOPPED_EXIT_CODE
        training = make_budget(self.positionals, self.environment)
        if isinstance(training, Measurement):
            raise UserError(
                f"{short_path(self.folder)}: the measurement's metrics.jsonl name no rate; delete its folders"
            )
        return training.launch()

    def describe(self) -> list[str]:
        return [f"precision = {self.precision}", "updates = follow from the rate, which is measured first"]

    def check_measured(self, phase: Phase, text: Manifest | None) -> None:
        """Raises `UserError` if the rate in the phase's folder was measured with other settings.

        The size of the `text`'s vocabulary counts, too, unless initial weights decide it.
        """
        recorded, differences = read_config(self.run_folder(phase)), self.describe_changes(phase)
        assert recorded, "it was measured"
        if not differences and text and text.vocab and not self.environment.init_checkpoint:
            model = recorded["identity"]["bert_config"]
            differences = describe_differences(model, {**model, "vocab_size": text.vocab.size})
        if differences:
            raise UserError(
                f"{short_path(self.run_folder(phase))} was measured with other settings ({differences}): name another "
                "RESULTS_DIR, to measure with these"
            )

    def runs(self) -> list[Run]:
        """An interrupted measurement begins anew: continued, it would measure little more than compilation."""
        runs = super().runs()
        if not self.environment.is_dry_run:
            for phase in self.phases:
                if self.has_begun(phase) and not self.reason_to_skip(phase):
                    with lock_folder(self.run_folder(phase)):  # ranks of a killed launcher may still save
                        shutil.rmtree(self.run_folder(phase) / "checkpoints", ignore_errors=True)
        return runs

    def _run(self, phase: Phase, data: PreparedData) -> Run:
        run, unscored = super()._run(phase, data), dict.fromkeys(("eval_files", "eval_steps", "early_stopping"))
        return run._replace(flags={**run.flags, **unscored})

    def results(self, runs: Sequence[Run]) -> Sequence[str]:
        return []


class Training(Budget):
    """The training, which takes the hours."""

    def describe(self) -> list[str]:
        return [*super().describe(), *_time_so_far(self)]

    def identity(self, phase: Phase) -> Values:
        """Without the precision, which the machine decides: a run that is finished is so on any machine."""
        return {name: value for name, value in super().identity(phase).items() if name != "precision"}

    def _choose_data(self) -> list[PreparedData]:
        prepared = super()._choose_data()
        _describe_text(self, prepared[0])
        return prepared

    def _flags(self, phase: Phase) -> Values:
        is_last = phase.name == LAST.name
        return {**super()._flags(phase), "decay_steps": phase.num_updates - phase.warmup_steps if is_last else 1}


def make_budget(positionals: Positionals, environment: LaunchEnvironment) -> Budget:
    """The measurement, if the results folder has no measured rates yet, else the training."""
    dataset = {} if positionals["dataset"] == ANY else {"DATASET": positionals["dataset"]}
    environment = environment.with_defaults(PRESET).with_variables(dataset)
    text = _manifest_of_text(environment)
    # Pack by default if two documents fit into one sequence, on average; longer documents fill their sequences.
    if text and 2 * text.counts["num_tokens"] <= LAST.max_seq_length * text.counts["num_documents"]:
        environment = environment.with_defaults({"PACKING": "1"})
    call = Measurement("budget", positionals, environment, "adamw", [])
    size = call.micro_batch_size
    rate = _peak_rate(positionals["bert_model"], size * FEWEST_MICRO_BATCHES)
    measurements = [
        Phase(
            part.measurement,
            *part.lengths(environment),
            _num_sequences(part, size),
            FEWEST_MICRO_BATCHES,
            num_ranks=1,
            learning_rate=rate,
            warmup_steps=0,
            num_updates=MEASURED_UPDATES,
        )
        for part in PARTS
    ]
    rates = list(filter(None, (_measured_rate(call, phase) for phase in measurements)))
    if len(rates) < len(PARTS):
        return dataclasses.replace(call, phases=measurements)
    # A training that has begun records its settings and data, and may continue on a machine with other rates.
    num_tokens = math.inf
    if not (call.folder / PARTS[0].name / CONFIG).exists():
        num_tokens = _num_tokens(text) if text else num_tokens
        for phase in measurements:
            call.check_measured(phase, text)
    _check_hours(positionals, rates, num_tokens)
    return Training("budget", positionals, environment, "adamw", _phases_of_training(call, rates))


def _num_tokens(text: Manifest) -> int:
    """The tokens of the text to train on; those of all text if the manifest does not name these."""
    return text.counts.get("num_tokens_training", text.counts["num_tokens"])


def _manifest_of_text(environment: LaunchEnvironment) -> Manifest | None:
    """The manifest of the chosen data; None if no data can be chosen."""
    lengths = [part.lengths(environment) for part in PARTS]
    value_of = environment.value_of
    with contextlib.suppress(UserError):  # `Pretraining.runs` raises it again
        data = choose_data(environment.data_dir, value_of("dataset"), lengths, value_of("data_format"))
        return read_manifest(data[-1].folder / MANIFEST_NAME, "create_token_files")
    return None


def _check_hours(positionals: Positionals, rates: Sequence[float], num_tokens: float) -> None:
    """Raises `UserError` if the hours, at these measured rates, are too few for a model or too many for the text."""
    hours, secs = positionals["hours"], 3600 * UPDATES_SHARE
    min_hours = FEWEST_UPDATES * SMALLEST_BATCH / (secs * rates[-1])
    tokens_per_hour = secs * sum(part.hours_share * rate * part.max_seq_length for part, rate in zip(PARTS, rates))
    max_hours = MOST_EPOCHS * num_tokens / tokens_per_hour
    if min_hours <= hours <= max_hours:
        return
    enough = math.ceil(100 * min_hours) / 100
    if hours < min_hours:
        fault = (
            f"fewer than {FEWEST_UPDATES:,} updates of {SMALLEST_BATCH} sequences, at the {rates[-1]:,.1f} a second "
            "measured here, teach a model little"
        )
        remedy = f"give at least {enough:g} hours, or take a smaller model"
    else:
        fault = f"read more than {MOST_EPOCHS} times, the {num_tokens:,} tokens of the text have nothing left to teach"
        remedy = f"prepare more text, or give {math.floor(100 * max_hours) / 100:g} hours"
    if enough > max_hours:
        needed = math.ceil(tokens_per_hour * enough / MOST_EPOCHS)
        remedy = f"prepare at least {needed:,} tokens of text, which are enough for {enough:g} hours"
    raise UserError(f"{positionals.title('hours')} is {hours:g}: {fault}: {remedy}")


def _num_sequences(part: _Part, num_last: int) -> int:
    """How many of the part's sequences have as many tokens as `num_last` of the last part."""
    return num_last * LAST.max_seq_length // part.max_seq_length


def _phases_of_training(call: Budget, rates: Sequence[float]) -> list[Phase]:
    """The parts as phases, with as many updates as fit into the hours; `rates`: measured sequences a second of each."""
    positionals, environment = call.positionals, call.environment
    fewest = FEWEST_MICRO_BATCHES if environment.value_of("packing") else 1
    secs = 3600 * positionals["hours"] * UPDATES_SHARE
    sequences = rates[-1] * secs
    exponent = round(math.log2(max(sequences / USUAL_UPDATES, 1)))
    batch = min(max(2**exponent, SMALLEST_BATCH), LARGEST_BATCH)
    peak = _peak_rate(positionals["bert_model"], batch)

    phases: list[Phase] = []
    for number, (part, rate) in enumerate(zip(PARTS, rates), 1):
        global_batch = part.batch_factor * batch
        size = min(_num_sequences(part, call.micro_batch_size), global_batch // fewest)
        num_updates = int(part.hours_share * secs * rate / global_batch)
        phases.append(
            Phase(
                part.name,
                *part.lengths(environment),
                size,
                global_batch // size,
                num_ranks=1,
                learning_rate=peak,
                warmup_steps=round(part.warmup_share * num_updates),
                num_updates=num_updates,
                argument_suffix=f"_phase{number}",
                starts_after=phases[-1].name if phases else None,
            )
        )
    return phases


def _peak_rate(bert_model: str, batch: int) -> float:
    _, width = PRESETS[bert_model]
    return float(f"{RATE * RATE_WIDTH / width * (batch / RATE_BATCH) ** (1 / 3):.2g}")


def _measured_rate(call: Budget, phase: Phase) -> float | None:
    """The last recorded sequences a second of a finished measurement; None if there are none."""
    events = read_events(call.run_folder(phase)) if call.end_reason(phase) == DONE else []
    rates: list[Any] = [event.get("throughput_train") for event in events if event["event"] == "train"]
    return rates[-1] if rates and is_number(rates[-1]) and 0 < rates[-1] < math.inf else None


def _describe_text(call: Training, data: PreparedData) -> None:
    """Shows how often the text is read, and the loss that follows from the frequency of pieces alone."""
    manifest = read_manifest(data.folder / MANIFEST_NAME, "create_token_files")
    assert manifest, "without one, the data were not chosen"
    num_tokens = _num_tokens(manifest)
    num_read = sum(phase.num_sequences * phase.max_seq_length for phase in call.phases)
    loss = _loss_of_frequencies(data.folder)
    if not call.environment.value_of("no_next_sentence"):
        loss += math.log(2)  # that of guessing
    show(
        f"epochs = {num_read / num_tokens:.3g} of {num_tokens:,} tokens",
        f"loss_to_beat = {loss:.2f} with no more than how often each piece occurs; "
        f"the loss should be lower after {call.phases[0].num_updates // 5:,} updates",
    )


def _loss_of_frequencies(folder: Path) -> float:
    """The masked words' loss, in nats, of a model that knows nothing but how often each piece occurs."""
    counts = np.zeros(1, np.int64)
    for path in sorted((folder / SPLITS[0]).glob(f"*{TOKENS_SUFFIX}")):
        file, num_left = TokenFile(path), COUNTED_TOKENS - int(counts.sum())
        if num_left <= 0:
            break
        first, num_tokens = np.zeros(1, np.int64), np.array([min(file.num_tokens, num_left)])
        counts = counts + np.bincount(read_tokens([file], first, first, num_tokens), minlength=file.vocab_size)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def _time_so_far(call: Training) -> list[str]:
    """A line about the hours that an interrupted training has used, without the time between its starts."""
    runs = [read_events(call.run_folder(phase)) for phase in call.phases]
    events = [event for run in runs for event in run]
    if not events:
        return []
    num_updates = sum(max((event["update"] for event in run), default=0) for run in runs)
    num_starts, used_secs, lost_secs = 1, 0.0, 0.0
    for before, event in zip(events, events[1:]):
        secs = event["time_unix"] - before["time_unix"]
        if event["event"] == "start":
            num_starts, lost_secs = num_starts + 1, lost_secs + secs
        else:
            used_secs += secs
    return [
        f"so_far = {num_updates:,} updates in {used_secs / 3600:.2f} of {call.positionals['hours']:g} hours; "
        f"{lost_secs / 3600:.2f} between its {num_starts} start(s) are not counted (MAX_HOURS stops it earlier)"
    ]


RECIPES = {"pretraining_budget": Recipe(BUDGET, make_budget)}
