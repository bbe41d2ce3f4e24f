"""``python -m bert_tf.doctor [--hosts a:4,b:4]``: called by ``scripts/doctor.sh``."""

from __future__ import annotations

import collections
import os
import sys
from collections.abc import Iterator, Sequence

from bert_tf.base.command_parser import CommandParser
from bert_tf.base.errors import exit_on_user_error
from bert_tf.doctor import folders, hosts, machine, software
from bert_tf.doctor.findings import PROBLEM, WARNING, Findings
from bert_tf.launch.hosts import parse_hosts
from bert_tf.settings.declaration import from_variables
from bert_tf.settings.launching import LaunchVariables

_DESCRIPTION = """Says what would keep a training from working on this machine, and on other hosts, and the way out.
Exit code: 0; 1 where there is a problem; 2 for a wrong argument."""


@exit_on_user_error
def main(argv: Sequence[str]) -> int:
    parser = CommandParser("doctor", description=_DESCRIPTION)
    parser.add_argument(
        "--hosts", default=os.environ.get("HOSTS", ""), help="hosts and their ranks, as a:4,b:4 (default: $HOSTS)"
    )
    arguments = parser.parse_args(argv[1:])
    from_variables(os.environ, LaunchVariables)  # refuses what the launchers would refuse
    counts: collections.Counter[str] = collections.Counter()
    for check, findings in _checks(parse_hosts(arguments.hosts)):
        for finding in findings:
            counts[finding.state] += 1
            print(f"{finding.state:<7}  {check}: {finding.message}", flush=True)
    print(f"{counts[PROBLEM]} problem(s), {counts[WARNING]} warning(s)")
    return int(counts[PROBLEM] > 0)


def _checks(ranks_of_hosts: dict[str, int]) -> Iterator[tuple[str, Findings]]:
    data, results = folders.data_folder(), folders.results_folder()
    yield "Python", software.check_python()
    yield "packages", software.check_packages()
    yield "GPU", machine.check_gpus()
    yield "TensorFlow", software.check_tensorflow()
    yield "Horovod", software.check_horovod()
    yield "launcher", software.check_launcher()
    yield "shared memory", machine.check_shared_memory()
    yield "machine", machine.check_cores_and_memory()
    for folder in (data, results):
        yield "file system", folders.check_file_system(folder)
    yield "data", folders.check_data(data)
    yield "disk", folders.check_room_for_results(results)
    for name, num_ranks in ranks_of_hosts.items():
        yield f"host {name}", hosts.check_host(name, num_ranks, results)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
