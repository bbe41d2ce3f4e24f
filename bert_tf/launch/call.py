"""What the launchers of programs have in common: a call of a script, from what was typed to the end of its programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_tf.base.files import work_folder
from bert_tf.launch.arguments import Typed
from bert_tf.launch.environment import LaunchEnvironment, show, shown
from bert_tf.launch.supervisor import train

Flags = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of a script.

    Attributes:
      kind: part of the name of the results' folder.
    """

    kind: str
    typed: Typed
    environment: LaunchEnvironment

    @property
    def num_ranks(self) -> int:
        return self.typed.values.get(self.typed.name_of("num_ranks"), 1)  # scripts without this argument start one

    @property
    def size(self) -> str:
        """The end of the name of the results' folder."""
        raise NotImplementedError

    @property
    def folder(self) -> Path:
        name = f"tf_bert_{self.kind}_{self.typed['bert_model']}_{self.typed['precision']}_{self.size}"
        return self.environment.path("results_dir", work_folder() / "results" / name)

    def show_plan(self, lines: Sequence[str], data: Sequence[str] = ()) -> None:
        """Shows the arguments, the `lines` that follow from them, where the ranks will run, and with which `data`."""
        device = f"device = {self.environment.describe_device(self.num_ranks)}"
        limits = self.environment.describe_limits()
        show([*self.typed.describe(), *lines, device, *data, f"results_dir = {shown(self.folder)}", *limits])

    def train(self, title: str, program: str, settings: Sequence[type], flags: Mapping[str, Any]) -> int:
        """Runs a program to its end; returns the ranks' exit code."""
        return train(title, self.environment.job(program, settings, flags, self.num_ranks), self.environment)
