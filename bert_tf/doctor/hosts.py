"""Checks the other hosts of a training: names, ssh, the shared folder, ports and GPUs."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import sys
import tempfile

from bert_tf.base.files import CHECKOUT
from bert_tf.base.machine import count_gpus
from bert_tf.doctor.findings import OK, PROBLEM, Finding, Findings, problems
from bert_tf.doctor.folders import Folder
from bert_tf.doctor.programs import ask
from bert_tf.launch.checks import check_gpus, check_ssh

# Run by bash on the other host; prints the names of the checks that succeed, and at last the number of GPUs.
_LOOK = """
test -f {checkout}/run_pretraining.py && echo checkout
test -x {python} && echo python
test -f {mark} && echo mark
timeout 10 bash -c "exec 3<>/dev/tcp/${{SSH_CONNECTION%% *}}/{port}" 2>/dev/null && echo port
echo "gpus $(nvidia-smi -L 2>/dev/null | grep -c ^GPU)"
"""


def check_host(name: str, num_ranks: int, results: Folder) -> Findings:
    """Checks that `num_ranks` could be started on a host and work in one folder with those here."""
    try:
        address = str(socket.getaddrinfo(name, None, socket.AF_INET)[0][4][0])  # Horovod uses only IPv4
    except (OSError, UnicodeError) as error:  # the latter if a part between dots is empty or too long
        reason = getattr(error, "strerror", error)
        yield Finding(PROBLEM, f"it has no address ({reason}): correct it, or add it to DNS or to /etc/hosts")
        return
    connection, num_gpus = f"{address} is this machine", count_gpus(os.environ)
    if not _is_here(address):
        if no_ssh := problems(check_ssh):
            yield from no_ssh
            return
        reason, lines = _look(name, results)
        if not lines or not lines[-1].startswith("gpus "):
            remedy = f"sshd must run there, and 'ssh {name} true' work without a question (ssh-copy-id, known_hosts)"
            yield Finding(PROBLEM, f"ssh fails ({reason}): {remedy}")
            return
        set_up = "share the checkout with its .venv, or set it up there, same path"
        share = "RESULTS_DIR= must name one on a file system that both share"
        faults = {
            "checkout": f"it has no {CHECKOUT}: {set_up}",
            "python": f"it has no {sys.executable}: {set_up}",
            "mark": f"a file written here in {results.existing} is not seen there: {share}",
            "port": "it cannot connect to a port of this machine: open all ports between the two in the firewall",
        }
        yield from (Finding(PROBLEM, fault) for check, fault in faults.items() if check not in lines)
        connection, num_gpus = f"{address} answers by ssh", int(lines[-1].split()[1])
    too_few = problems(check_gpus, f"{connection}, {num_ranks} rank(s) would start", num_ranks, num_gpus, "there")
    yield from too_few or [Finding(OK, f"{connection}, {num_gpus or 'no'} GPU(s)")]


def _is_here(address: str) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind((address, 0))
        return True
    return False


def _look(name: str, results: Folder) -> tuple[str, list[str]]:
    """What the other host answers to `_LOOK`, after the reason if ssh has failed."""
    with (
        socket.create_server(("", 0)) as server,
        tempfile.NamedTemporaryFile(prefix=".doctor-", dir=results.existing) as mark,
    ):
        paths = {"mark": mark.name, "checkout": CHECKOUT, "python": sys.executable}
        quoted = {key: shlex.quote(str(path)) for key, path in paths.items()}
        script = _LOOK.format(port=server.getsockname()[1], **quoted)
        options = ["-4", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]
        answer = ask(["ssh", *options, name, "bash", "-s"], 60.0, script)
    return answer.reason, answer.out.splitlines()
