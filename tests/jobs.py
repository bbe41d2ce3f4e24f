"""Jobs of fine-tuning tasks, from settings that name both the job's and the task's."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from bert_tf.ranks.workers import Workers
from bert_tf.tasks.job import FinetuningJob, run_task
from bert_tf.tasks.task import Task

DEFAULTS = dict(
    init_checkpoint=None,
    do_lower_case=None,
    strip_accents=None,
    dllog_path=None,
    continue_with_changes=False,
    allow_missing_weights=False,
)


class Job(NamedTuple):
    job: FinetuningJob
    task: Task

    def run(self) -> bool:
        return run_task(*self, Workers())

    def starting_from(self, folder) -> Job:
        return self._replace(job=dataclasses.replace(self.job, init_checkpoint=str(folder)))


def make_job(task_class: type[Task], settings: dict[str, Any]) -> Job:
    names = {field.name for field in dataclasses.fields(FinetuningJob)}
    settings = {**DEFAULTS, **settings}
    job = FinetuningJob(**{name: value for name, value in settings.items() if name in names})
    return Job(job, task_class(**{name: value for name, value in settings.items() if name not in names}))
