"""Predicting with an exported SQuAD model alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_tf.base.errors import UserError
from bert_tf.base.files import check_file
from bert_tf.bert_config import BertConfig
from bert_tf.interchange.google import CONFIG_FILE
from bert_tf.interchange.saved_model import SETTINGS, ExportedModel, load_exported
from bert_tf.ranks.workers import Workers
from bert_tf.run.run_folder import RunFolder
from bert_tf.run.telemetry import Telemetry
from bert_tf.settings.declaration import settings_of
from bert_tf.tasks.job import FinetuningJob
from bert_tf.tasks.predict import Predictor
from bert_tf.tasks.squad.decode import DecodeSettings
from bert_tf.tasks.squad.features import FeatureSettings
from bert_tf.tasks.squad.task import SquadTask
from bert_tf.tasks.task import PREDICT
from bert_tf.text.tokenizer import StoredTokenizer, open_stored
from bert_tf.text.vocabulary import VOCABULARY, Tokenizer, check_vocabulary_size


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


def predict_with_export(job: FinetuningJob, task: SquadTask, workers: Workers, folder: Path) -> None:
    """Answers the task's questions with an exported model: vocabulary, windows and decoding are the export's."""
    _locked = RunFolder(job.model_dir, job.dllog_path, is_chief=workers.is_chief)  # to the end
    with workers.keep_alive():
        exported, tokenizer, task = _open_export(task, folder)
        [questions_file], is_chief = task.files[PREDICT], workers.is_chief
        task.contents[PREDICT], _ = task.read(PREDICT, [questions_file])
        windows = task.rows_of(task.contents[PREDICT], tokenizer, show_progress=is_chief)
        task.rows[PREDICT] = windows
    with Telemetry(job.model_dir, is_chief=is_chief, total_updates=0, dllog_path=job.dllog_path) as telemetry:
        settings = {**vars(task.features), **vars(task.decoding)}
        telemetry.note(f"predicting with {folder}: {', '.join(f'{name} {settings[name]}' for name in settings)}")
        telemetry.note(tokenizer.count_unknown(windows.tokens).describe(questions_file))
        predictor = Predictor(
            exported,
            task,
            tokenizer,
            workers,
            telemetry=telemetry,
            update=exported.settings.get("updates_applied", 0),
            batch_size=exported.batch_size or job.predict_batch_size,
            rows_per_compilation=None,  # it takes no other length
        )
        task.finish(predictor)
