"""SQuAD as a task: reads questions, makes windows, scores and writes answers."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_tf.base.errors import UserError
from bert_tf.base.fields import UnreadFields
from bert_tf.base.files import check_file, decoded_lines
from bert_tf.interchange.heads import SPANS
from bert_tf.settings.declaration import pick_settings, settings_of
from bert_tf.settings.training import FinetuningConfig
from bert_tf.tasks.finetuning import EVAL, TRAIN, Ask, Conclusion, FinetuningTask, files_of_mode
from bert_tf.tasks.prompt import typed_lines
from bert_tf.tasks.records import notes_on_file
from bert_tf.tasks.rows import Outputs
from bert_tf.tasks.squad.decode import decode
from bert_tf.tasks.squad.examples import NAME_A_FILE, Example, read_examples, require_answers, sound_answers
from bert_tf.tasks.squad.features import Windows, count_unreachable, make_windows
from bert_tf.tasks.squad.metrics import choose_scoring, score, score_version_2
from bert_tf.tasks.squad.settings import SETTINGS, DecodeSettings, FeatureSettings, SquadOptions
from bert_tf.tasks.task import Facts, Run

_NUM_SHOWN = 4  # at a prompt: the answer and its runners-up


@dataclasses.dataclass
class SquadTask(FinetuningTask):
    """One job of run_squad.py."""

    max_seq_length: int = dataclasses.field(init=False)  # taken from `features`
    features: FeatureSettings = dataclasses.field(default_factory=FeatureSettings)
    decoding: DecodeSettings = dataclasses.field(default_factory=DecodeSettings)
    wants_scores: bool | None = None  # None: score if the file contains answers
    context: str = ""  # the text that questions typed at a prompt are about; "": it is typed, too

    settings, name, head, main_score = SETTINGS, "squad", SPANS, "f1"
    model, objective = "bert_tf.model.heads:SpanModel", "bert_tf.model.losses:SpanObjective"

    def __post_init__(self) -> None:
        self.max_seq_length = self.features.max_seq_length

    @classmethod
    def from_settings(cls, config: FinetuningConfig, options: SquadOptions) -> SquadTask:
        files, context, context_file = files_of_mode(config, options), "", options.context_file
        if EVAL in files and options.eval is False:
            raise UserError("--mode=eval and --eval_steps score, --noeval does not; leave it out")
        if options.mode == "interactive" and context_file:
            check_file(Path(context_file), "name a text file with --context_file")
            context = "".join(line for _, line in decoded_lines(Path(context_file)))
            _check_text(context, f"--context_file={context_file}")
        features, decoding = pick_settings(FeatureSettings, options), pick_settings(DecodeSettings, options)
        return cls(files, features, decoding, wants_scores=options.eval, context=context)

    def read(self, use: str, paths: Sequence[Path]) -> tuple[Sequence[Example], str]:
        """The questions of a file to predict. A file to train on is read by `make_rows`, unless its rows are cached.

        Raises: UserError if the questions are to be scored, and one has no answers to compare with.
        """
        check_file(paths[0], NAME_A_FILE)
        if use == TRAIN:
            return (), ""
        questions, note = self._examples(paths[0])
        if self.wants_scores or use == EVAL:
            remedy = "name another file" if use == EVAL else "pass --noeval for such a file"
            require_answers(questions, paths[0], f"its prediction cannot be scored; {remedy}")
        return questions, note

    def _examples(self, path: Path) -> tuple[list[Example], str]:
        """The questions, and a line about fields that are not read, or ""."""
        unread = UnreadFields()
        examples = read_examples(path, version_2_with_negative=self.decoding.version_2_with_negative, unread=unread)
        return examples, notes_on_file(path, unread.describe())

    def make_rows(self, use: str, run: Run) -> Windows:
        """The windows, from the run folder's cache if it has them."""
        [path], is_training, is_chief = self.files[use], use == TRAIN, run.workers.is_chief

        def make() -> Windows:
            examples: Sequence[Example] = self.contents[use]
            if is_training:
                examples, *notes = self._examples(path)
                examples, left_out = sound_answers(examples, path)
                for note in filter(None, [*notes, left_out]):
                    run.say(note)
            return make_windows(
                examples, self.tokenizer, self.features, is_training=is_training, show_progress=is_chief
            )

        allows_none = self.decoding.version_2_with_negative
        return self.cached(run, Windows, make, path, self.features, allows_none, is_training)

    def remark_on_rows(self, use: str, rows: Windows) -> str:
        limit = self.decoding.max_answer_length
        if not (number := count_unreachable(self.contents[use], rows, limit)):
            return ""
        return (
            f"{number:,} question(s) have only answers of more tokens than --max_answer_length={limit}, so they cannot "
            "be answered rightly; a larger number reaches them"
        )

    def rows_from_content(self, content: Sequence[Example], *, show_progress: bool = False) -> Windows:
        return make_windows(content, self.tokenizer, self.features, is_training=False, show_progress=show_progress)

    def fixed_settings(self) -> Facts:
        return {**dataclasses.asdict(self.features), "version_2_with_negative": self.decoding.version_2_with_negative}

    def recorded_settings(self) -> Facts:
        values = super().recorded_settings()
        for name in ("features", "decoding", "context"):
            del values[name]
        return {**values, **self._answer_settings()}

    def _answer_settings(self) -> Facts:
        return {**dataclasses.asdict(self.features), **dataclasses.asdict(self.decoding)}

    def export_settings(self) -> Facts:
        return {"task": self.name, **self._answer_settings()}

    def with_export_settings(self, settings: Mapping[str, Any]) -> SquadTask:
        features, decoding = (_parse_settings(kind, settings) for kind in (FeatureSettings, DecodeSettings))
        return dataclasses.replace(self, features=features, decoding=decoding)

    def conclude(self, use: str, outputs: Outputs) -> Conclusion:
        """The answers for ``predictions.json``, ``nbest_predictions.json`` and, for version 2.0, ``null_odds.json``,
        scored by the official rules if the job asks for it.

        The scores are shown as one line of JSON.
        """
        questions, is_version_2 = self.contents[use], self.decoding.version_2_with_negative
        starts, ends = outputs
        decoded = decode(questions, self.rows[use], starts, ends, self.decoding, show_progress=True)
        answers: dict[str, Any] = {"predictions.json": decoded.predictions, "nbest_predictions.json": decoded.nbest}
        if is_version_2:
            answers["null_odds.json"] = decoded.null_odds
        as_json = json.JSONEncoder(indent=4).iterencode
        files = {name: itertools.chain(as_json(content), ["\n"]) for name, content in answers.items()}
        description = f"answers to {len(questions):,} questions"
        if self.wants_scores is False:
            return Conclusion(files, description, ["not scored: --noeval"])
        if any(question.answers is None for question in questions):
            return Conclusion(files, description, ["not scored: the questions come without answers"])
        notes = [choose_scoring(questions).note]
        if is_version_2:
            scores = score_version_2(questions, decoded.predictions, decoded.null_odds)
            best, threshold = scores["best_f1"], scores["best_f1_thresh"]
            # SQuAD's script seeks none above the present one, and says 0 where answering nothing is best.
            if best > scores["f1"] and threshold in decoded.null_odds.values():
                notes.append(
                    f"best null threshold: {threshold} (F1 {best:.3f}); use it with --null_score_diff_threshold"
                )
        else:
            scores = score(questions, decoded.predictions)
        return Conclusion(files, description, [*filter(None, notes), json.dumps(scores)], scores)

    def converse(self, ask: Ask) -> None:
        """Answers questions about one text."""
        text = self.context
        if not text:
            text = " ".join(typed_lines("Text (an empty line ends): "))
            _check_text(text, "what was typed")
        for question in typed_lines("\nQuestion (an empty line ends): ", are_last=True):
            print("\n".join(self._answers_to(question, text, ask)), flush=True)

    def _answers_to(self, question: str, text: str, ask: Ask) -> Iterator[str]:
        """Lines with the answer and the runners-up, with their probabilities."""
        examples = [Example("question", question, text, None)]
        windows, (starts, ends) = ask(examples)
        decoded = decode(examples, windows, starts, ends, self.decoding)
        if self.decoding.version_2_with_negative:
            odds = decoded.null_odds["question"]
            verdict = "no answer in the text" if not decoded.predictions["question"] else "there is an answer"
            yield f"{verdict}: null odds {odds:.2f}, threshold {self.decoding.null_score_diff_threshold:g}"
        for entry in decoded.nbest["question"][:_NUM_SHOWN]:
            yield f"{entry['probability']:7.3f}  {entry['text'] or '(no answer)'}"


def _parse_settings(kind: type[Any], settings: Mapping[str, Any]) -> Any:
    """The class of settings `kind` with values from `settings`. Raises `UserError` for one that is missing or wrong."""
    values = {}
    for setting in settings_of(kind):
        try:
            values[setting.name] = setting.parse(str(settings.get(setting.name)))
        except ValueError:
            raise setting.refusal(setting.name, settings.get(setting.name)) from None
    return kind(**values)


def _check_text(text: str, source: str) -> None:
    if not text.strip():
        raise UserError(f"{source}: the text is empty; questions need a text to be answered from")
