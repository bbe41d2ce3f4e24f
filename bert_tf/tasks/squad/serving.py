"""Uses of a trained SQuAD model: export for servers, prediction from an export alone, answers at a prompt."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.base.errors import UserError
from bert_tf.base.files import check_file, decoded_lines
from bert_tf.bert_config import BertConfig
from bert_tf.interchange.google import CONFIG_FILE
from bert_tf.interchange.saved_model import INPUTS, SETTINGS, load_exported
from bert_tf.model.heads import SpanModel
from bert_tf.ranks.workers import Workers
from bert_tf.run.run_folder import RunFolder
from bert_tf.run.telemetry import Telemetry
from bert_tf.tasks.job import TaskRun, for_export
from bert_tf.tasks.squad.decode import DecodeSettings, decode
from bert_tf.tasks.squad.examples import Example, Paragraph
from bert_tf.tasks.squad.features import FeatureSettings, make_features
from bert_tf.tasks.squad.run import SPAN_HEAD, Answerer, SquadJob, answer_questions, make_answerer, read_questions
from bert_tf.text.basic_tokenizer import Casing
from bert_tf.text.tokenizer import StoredTokenizer, open_stored
from bert_tf.text.vocabulary import VOCABULARY, Tokenizer, check_vocabulary_size

TASK, OUTPUTS = "squad", ("start_logits", "end_logits")
_NUM_SHOWN = 4  # the answer and its runners-up


def export_squad(job: SquadJob, workers: Workers, folder: Path, batch_size: int | None) -> None:
    """Writes the trained model to `folder`, for servers and `predict_with_export`.

    Args:
      job: its windows, decoding and precision become the export's.
      batch_size: None leaves the batch size variable.
    """
    run = TaskRun(for_export(job, folder), workers, job.features.max_seq_length, predicts_with=SPAN_HEAD)
    settings = {
        "task": TASK,
        "batch_size": batch_size,
        **dataclasses.asdict(job.features),
        **dataclasses.asdict(job.decoding),
    }
    run.export(SpanModel(run.bert_config, run.blocks), folder, OUTPUTS, settings)


def _open_export(job: SquadJob, folder: Path) -> tuple[Answerer, SquadJob]:
    """An answerer made from the export alone, and the job with the export's windows, decoding and batch size."""
    exported = load_exported(folder, TASK)
    settings, windows, decoding = exported.settings, vars(FeatureSettings()), vars(DecodeSettings())
    for name, default in {"updates_applied": 0, **windows, **decoding}.items():
        if not isinstance(settings.get(name), (int, float) if isinstance(default, float) else type(default)):
            raise UserError(f"{folder / SETTINGS} lacks {name}, or has no such value; export the model again")
    try:
        job = dataclasses.replace(
            job,
            predict_batch_size=exported.batch_size or job.predict_batch_size,
            features=FeatureSettings(**{name: settings[name] for name in windows}),
            decoding=DecodeSettings(**{name: settings[name] for name in decoding}),
        )
    except UserError as error:
        raise UserError(f"{folder / SETTINGS}: {error}; export the model again") from None
    tokenizer = _tokenizer_of_export(folder, settings)
    return Answerer(exported, tokenizer, None, settings["updates_applied"]), job


def _tokenizer_of_export(folder: Path, settings: Mapping[str, Any]) -> Tokenizer:
    """Raises: UserError if it is damaged, or has more tokens than the model."""
    way_out = "export the model again"
    check_file(folder / VOCABULARY, way_out)
    lower_case = settings.get("do_lower_case")
    if not isinstance(lower_case, bool):
        raise UserError(f"{folder / SETTINGS} lacks do_lower_case, or has no such value; {way_out}")
    # The casing of exports without a tokenizer_config.json, which earlier versions wrote.
    tokenizer, _ = open_stored(StoredTokenizer(folder, recorded=Casing.of(lower_case)))
    num_rows = BertConfig.from_json_file(folder / CONFIG_FILE).vocab_size
    check_vocabulary_size(tokenizer.vocab_size, num_rows, folder / VOCABULARY, is_models_own=True)
    return tokenizer


def predict_with_export(job: SquadJob, workers: Workers, folder: Path) -> None:
    """Answers the job's questions with an exported model: vocabulary, windows and decoding are the export's."""
    _run_folder = RunFolder(job.model_dir, job.dllog_path) if workers.is_chief else None  # stays locked to the end
    answerer, job = workers.run_keeping_alive(lambda: _open_export(job, folder))
    questions = read_questions(job)
    features = make_features(
        questions, answerer.tokenizer, job.features, is_training=False, show_progress=workers.is_chief
    )
    unknown = answerer.tokenizer.count_unknown(features.tokens()).describe(job.predict_file)
    with Telemetry(job.model_dir, is_chief=workers.is_chief, total_updates=0, dllog_path=job.dllog_path) as telemetry:
        settings = {**vars(job.features), **vars(job.decoding)}
        telemetry.note(f"predicting with {folder}: {', '.join(f'{name} {settings[name]}' for name in settings)}")
        telemetry.note(unknown)
        answer_questions(answerer, questions, features, job, workers, telemetry)


def describe_answers(job: SquadJob, answerer: Answerer, context: str, question: str) -> list[str]:
    """Lines with the answer to a single question and the runners-up, with their probabilities."""
    example = Example("question", question, Paragraph(context), None)
    windows = make_features([example], answerer.tokenizer, job.features, is_training=False)
    logits = []
    for row in range(windows.num_windows):
        inputs = windows.batch(np.array([row]))
        outputs = answerer.compute({name: tf.constant(inputs[name]) for name in INPUTS})
        logits.append([output.numpy() for output in outputs])
    starts, ends = (np.concatenate(parts) for parts in zip(*logits))
    decoded = decode([example], windows, starts, ends, job.decoding)
    unknown = answerer.tokenizer.count_unknown(windows.tokens())
    lines = [unknown.describe("text and question")] if unknown.are_many else []
    if job.decoding.version_2_with_negative:
        odds = decoded.null_odds["question"]
        verdict = "no answer in the text" if not decoded.predictions["question"] else "there is an answer"
        lines += [f"{verdict}: null odds {odds:.2f}, threshold {job.decoding.null_score_diff_threshold:g}"]
    return lines + [
        f"{entry['probability']:7.3f}  {entry['text'] or '(no answer)'}"
        for entry in decoded.nbest["question"][:_NUM_SHOWN]
    ]


def converse(job: SquadJob, workers: Workers, context_file: str | None) -> None:
    """Answers questions from stdin, until an empty line, about the text of a file or one that is typed first."""
    if workers.size > 1:
        raise UserError("--mode=interactive answers in one process; omit --use_horovod")
    context = ""
    if context_file:
        check_file(Path(context_file), "name a text file with --context_file")
        context = "".join(line for _, line in decoded_lines(Path(context_file)))
        _check_text(context, f"--context_file={context_file}")
    run = TaskRun(job, workers, job.features.max_seq_length, predicts_with=SPAN_HEAD)
    model = SpanModel(run.bert_config, run.blocks)

    def answer(telemetry: Telemetry, update: int) -> None:
        answerer = make_answerer(run, model, update)
        text = context
        if not context_file:
            _prompt("Text, then an empty line:\n")
            text = " ".join(_typed_lines(""))
            _check_text(text, "what was typed")
        for question in _typed_lines("\nQuestion (an empty line ends): "):
            print("\n".join(describe_answers(job, answerer, text, question)), flush=True)

    run.carry_out(model, None, answer)


def _check_text(text: str, source: str) -> None:
    if not text.strip():
        raise UserError(f"{source}: the text is empty; questions need a text to be answered from")


def _prompt(text: str) -> None:
    """Shows a prompt in a terminal; a pipe needs none."""
    if sys.stdin.isatty():
        print(text, end="", flush=True)


def _typed_lines(prompt: str) -> Iterator[str]:
    """Lines from stdin, up to an empty line or the end."""
    _prompt(prompt)
    try:
        while line := sys.stdin.readline().strip():
            yield line
            _prompt(prompt)
    except UnicodeDecodeError as error:
        raise UserError(f"what was typed is not {error.encoding.upper()}; type or convert it to that") from None
