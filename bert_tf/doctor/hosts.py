"""Checks the other hosts of a training: names, ssh, clocks, the shared folder, ports and GPUs."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import socket
import sys
import tempfile
import time
import uuid

from bert_tf.base.errors import UserError
from bert_tf.base.files import CHECKOUT
from bert_tf.base.machine import count_gpus
from bert_tf.doctor.folders import Folder
from bert_tf.doctor.programs import ask
from bert_tf.launch.findings import OK, PROBLEM, WARNING, Finding, Findings, check_gpus, check_ssh, find_address
from bert_tf.ranks.rendezvous import MOST_SKEW_SECS

# Run by bash on the other host; each line of its answer is a name and, if that check succeeded, a value.
_LOOK = """
echo "clock $(date +%s.%N)"
echo "mark $(cat {mark} 2>/dev/null)"
echo "checkout $(test -f {checkout}/run_pretraining.py && echo yes)"
echo "python $(test -x {python} && echo yes)"
echo "port $(timeout 10 bash -c "exec 3<>/dev/tcp/${{SSH_CONNECTION%% *}}/{port}" 2>/dev/null && echo yes)"
echo "gpus $(nvidia-smi -L 2>/dev/null | grep -c ^GPU)"
"""


def check_host(name: str, num_ranks: int, results: Folder) -> Findings:
    """Checks that `num_ranks` could be started on a host and work in one folder with those here."""
    try:
        address = find_address(name, socket.AF_INET)  # Horovod uses only IPv4
    except UserError as error:
        yield Finding(PROBLEM, str(error))
        return
    connection, num_gpus = f"{address} is this machine", count_gpus(os.environ)
    if not _is_here(address):
        if problems := list(check_ssh()):
            yield from problems
            return
        before = time.time()
        answer, is_shared = _look(name, results)
        after = time.time()
        if "reason" in answer:
            remedy = f"sshd must run there, and 'ssh {name} true' work without a question (ssh-copy-id, known_hosts)"
            yield Finding(PROBLEM, f"ssh fails ({answer['reason']}): {remedy}")
            return
        clock = float(answer["clock"])
        skew = max(before - clock, clock - after)
        if skew > MOST_SKEW_SECS:
            message = f"its clock is {skew:.0f} s off, and so are times in logs: set both by chrony or ntpd"
            yield Finding(WARNING, message)
        set_up = "share the checkout with its .venv, or set it up there, same path"
        share = "RESULTS_DIR= must name one on a file system that both share"
        faults = {
            f"it has no {CHECKOUT}: {set_up}": not answer.get("checkout"),
            f"it has no {sys.executable}: {set_up}": not answer.get("python"),
            f"a file written here in {results.existing} is not seen there: {share}": not is_shared,
            "it cannot connect to a port of this machine: open all ports between the two in the firewall": (
                not answer.get("port")
            ),
        }
        yield from (Finding(PROBLEM, fault) for fault, is_so in faults.items() if is_so)
        connection, num_gpus = f"{address} answers by ssh", int(answer["gpus"])
    too_few = list(check_gpus(f"{connection}, {num_ranks} rank(s) would start", num_ranks, num_gpus, "there"))
    yield from too_few or [Finding(OK, f"{connection}, {num_gpus or 'no'} GPU(s)")]


def _is_here(address: str) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind((address, 0))
        return True
    return False


def _look(name: str, results: Folder) -> tuple[dict[str, str], bool]:
    """The other host's answers by name, or the "reason" why there are none; and whether it sees a file written here."""
    value = uuid.uuid4().hex
    with (
        socket.create_server(("", 0)) as server,
        tempfile.NamedTemporaryFile("w", prefix=".doctor-", dir=results.existing) as mark,
    ):
        mark.write(value)
        mark.flush()
        paths = {"mark": mark.name, "checkout": CHECKOUT, "python": sys.executable}
        quoted = {key: shlex.quote(str(path)) for key, path in paths.items()}
        script = _LOOK.format(port=server.getsockname()[1], **quoted)
        options = ["-4", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]
        answer = ask(["ssh", *options, name, "bash", "-s"], 60.0, script)
    values = dict(line.partition(" ")[::2] for line in answer.out.splitlines())
    if not re.fullmatch(r"[0-9]+\.[0-9]+ [0-9]+", f"{values.get('clock')} {values.get('gpus')}"):
        return {"reason": answer.reason if answer.code else "bash and date do not answer there as on Linux"}, False
    return values, values.get("mark") == value
