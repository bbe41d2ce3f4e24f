"""``python -m bert_tf.doctor``: called by ``scripts/doctor.sh``."""

from __future__ import annotations

import collections
import os
import sys
from collections.abc import Sequence

from bert_tf.base.command_line import CommandParser
from bert_tf.base.errors import exit_on_user_error
from bert_tf.doctor import machine, software
from bert_tf.doctor.findings import PROBLEM, WARNING, Findings, with_error_as_finding
from bert_tf.settings.declaration import from_variables
from bert_tf.settings.programs import LaunchVariables

_DESCRIPTION = """Says what would keep a training from working on this machine, and the way out.
Exit code: 0; 1 where there is a problem; 2 for a wrong argument."""


def _examinations() -> list[tuple[str, Findings]]:
    """What is examined; each generator does its work only when its findings are asked for."""
    data = machine.find_folder("data", "DATA_DIR", "BERT_PREP_WORKING_DIR")
    results = machine.find_folder("results", "RESULTS_DIR")
    return [
        ("Python", software.examine_python()),
        ("packages", software.examine_packages()),
        ("GPU", machine.examine_gpus()),
        ("TensorFlow", software.examine_tensorflow()),
        ("Horovod", software.examine_horovod()),
        ("launcher", software.examine_launcher()),
        ("shared memory", machine.examine_shared_memory()),
        ("machine", machine.examine_cores_and_memory()),
        ("file system", machine.examine_file_system(data)),
        ("file system", machine.examine_file_system(results)),
        ("data", machine.examine_data(data)),
        ("disk", machine.examine_room_for_results(results)),
    ]


@exit_on_user_error
def main(argv: Sequence[str]) -> int:
    CommandParser("doctor", description=_DESCRIPTION).parse_args(argv[1:])
    from_variables(os.environ, LaunchVariables)  # refuses what the launchers would refuse
    counts: collections.Counter[str] = collections.Counter()
    for subject, findings in _examinations():
        for finding in with_error_as_finding(findings):
            counts[finding.state] += 1
            print(f"{finding.state:<7}  {subject}: {finding.message}", flush=True)
    print(f"{counts[PROBLEM]} problem(s), {counts[WARNING]} warning(s)")
    return int(counts[PROBLEM] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
