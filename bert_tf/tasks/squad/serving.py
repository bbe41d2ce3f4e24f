"""Uses of a trained SQuAD model: prediction from an export alone, answers at a prompt."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.base.files import check_file, decoded_lines
from bert_tf.bert_config import BertConfig
from bert_tf.interchange.google import CONFIG_FILE
from bert_tf.interchange.saved_model import SETTINGS, ExportedModel, load_exported
from bert_tf.ranks.workers import Workers
from bert_tf.run.run_folder import RunFolder
from bert_tf.run.telemetry import Telemetry
from bert_tf.settings.declaration import settings_of
from bert_tf.tasks.job import FinetuningJob, run_task
from bert_tf.tasks.predict import Predictor, compute_rows
from bert_tf.tasks.prompt import check_one_process, show_prompt, typed_lines
from bert_tf.tasks.squad.decode import DecodeSettings, decode
from bert_tf.tasks.squad.examples import Example, Paragraph
from bert_tf.tasks.squad.features import FeatureSettings, make_windows
from bert_tf.tasks.squad.task import SquadTask
from bert_tf.text.tokenizer import StoredTokenizer, open_stored
from bert_tf.text.vocabulary import VOCABULARY, Tokenizer, check_vocabulary_size

_NUM_SHOWN = 4  # the answer and its runners-up


def _stated(kind: type[Any], settings: Mapping[str, Any], folder: Path) -> Any:
    """The settings of this kind, as the export has them."""
    values = {}
    for each in settings_of(kind):
        try:
            values[each.name] = each.parse(str(settings.get(each.name)))
        except ValueError:
            error = each.refusal(each.name, settings.get(each.name))
            raise UserError(f"{folder / SETTINGS}: {error}; export the model again") from None
    return kind(**values)


def _open_export(task: SquadTask, folder: Path) -> tuple[ExportedModel, Tokenizer, SquadTask]:
    """The model, its tokenizer, and the task with the export's windows and decoding."""
    exported, remedy = load_exported(folder, task.name), "export the model again"
    features, decoding = (_stated(kind, exported.settings, folder) for kind in (FeatureSettings, DecodeSettings))
    check_file(folder / VOCABULARY, remedy)
    tokenizer, _ = open_stored(StoredTokenizer(folder))
    num_rows = BertConfig.from_json_file(folder / CONFIG_FILE).vocab_size
    check_vocabulary_size(tokenizer.vocab_size, num_rows, folder / VOCABULARY, is_models_own=True)
    return exported, tokenizer, dataclasses.replace(task, features=features, decoding=decoding)


def predict_with_export(job: FinetuningJob, task: SquadTask, workers: Workers, flags: Mapping[str, Any]) -> None:
    """Answers the task's questions with an exported model: vocabulary, windows and decoding are the export's."""
    folder = Path(flags["model_export_path"] or job.model_dir / "export")
    _locked = RunFolder(job.model_dir, job.dllog_path, is_chief=workers.is_chief)  # to the end
    with workers.keep_alive():
        exported, tokenizer, task = _open_export(task, folder)
        questions = task.read_questions()
        is_chief = workers.is_chief
        windows = make_windows(questions, tokenizer, task.features, is_training=False, show_progress=is_chief)
    with Telemetry(job.model_dir, is_chief=is_chief, total_updates=0, dllog_path=job.dllog_path) as telemetry:
        settings = {**vars(task.features), **vars(task.decoding)}
        telemetry.note(f"predicting with {folder}: {', '.join(f'{name} {settings[name]}' for name in settings)}")
        telemetry.note(tokenizer.count_unknown(windows.tokens()).describe(task.predict_file))
        predictor = Predictor(
            exported,
            tokenizer,
            workers,
            telemetry=telemetry,
            update=exported.settings.get("updates_applied", 0),
            max_length=task.max_seq_length,
            batch_size=exported.batch_size or job.predict_batch_size,
            rows_per_compilation=None,  # it takes no other length
        )
        task.answer(predictor, questions, windows)


def describe_answers(task: SquadTask, predictor: Predictor, context: str, question: str) -> list[str]:
    """Lines with the answer to a single question and the runners-up, with their probabilities."""
    example = Example("question", question, Paragraph(context), None)
    windows = make_windows([example], predictor.tokenizer, task.features, is_training=False)
    length = task.max_seq_length
    logits = [
        compute_rows(predictor.compute, windows.batch, np.array([row]), length) for row in range(windows.num_windows)
    ]
    starts, ends = (np.concatenate(parts) for parts in zip(*logits))
    decoded = decode([example], windows, starts, ends, task.decoding)
    unknown = predictor.tokenizer.count_unknown(windows.tokens())
    lines = [unknown.describe("text and question")] if unknown.are_many else []
    if task.decoding.version_2_with_negative:
        odds = decoded.null_odds["question"]
        verdict = "no answer in the text" if not decoded.predictions["question"] else "there is an answer"
        lines += [f"{verdict}: null odds {odds:.2f}, threshold {task.decoding.null_score_diff_threshold:g}"]
    return lines + [
        f"{entry['probability']:7.3f}  {entry['text'] or '(no answer)'}"
        for entry in decoded.nbest["question"][:_NUM_SHOWN]
    ]


def converse(job: FinetuningJob, task: SquadTask, workers: Workers, flags: Mapping[str, Any]) -> None:
    """Answers questions from stdin, until an empty line, about the text of a file or one that is typed first."""
    check_one_process(workers)
    context, context_file = "", flags["context_file"]
    if context_file:
        check_file(Path(context_file), "name a text file with --context_file")
        context = "".join(line for _, line in decoded_lines(Path(context_file)))
        _check_text(context, f"--context_file={context_file}")
    run_task(job, _Conversation(task.features, task.decoding, context=context), workers)


@dataclasses.dataclass
class _Conversation(SquadTask):
    """SQuAD with questions that are typed."""

    context: str = ""  # empty: it is typed, too

    def finish(self, predictor: Predictor) -> None:
        text = self.context
        if not text:
            show_prompt("Text, then an empty line:\n")
            text = " ".join(typed_lines(""))
            _check_text(text, "what was typed")
        for question in typed_lines("\nQuestion (an empty line ends): "):
            print("\n".join(describe_answers(self, predictor, text, question)), flush=True)


def _check_text(text: str, source: str) -> None:
    if not text.strip():
        raise UserError(f"{source}: the text is empty; questions need a text to be answered from")
