"""Checks the other hosts of a training: names, ssh, clocks, the shared folder, ports and GPUs."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import socket
import sys
import tempfile
import time
import uuid

from bert_tf.base.machine import count_gpus
from bert_tf.doctor.finding import OK, PROBLEM, WARNING, Findings, ask
from bert_tf.doctor.folders import Folder
from bert_tf.launch.container import CHECKOUT
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
        address = str(socket.getaddrinfo(name, None, socket.AF_INET)[0][4][0])  # Horovod uses only IPv4
    except (OSError, UnicodeError) as error:  # the latter if a part between dots is empty or too long
        reason = getattr(error, "strerror", error)
        yield PROBLEM, f"the name has no address ({reason}): correct it, or add it to DNS or /etc/hosts"
        return
    found, num_gpus = f"{address} is this machine", count_gpus(os.environ)
    if not _is_here(address):
        if not shutil.which("ssh"):
            yield PROBLEM, "there is no ssh on PATH: apt-get install openssh-client, or start by srun, which needs none"
            return
        before = time.time()
        answer, is_shared = _look(name, results)
        after = time.time()
        if "reason" in answer:
            way_out = f"sshd must run there, and 'ssh {name} true' work without a question (ssh-copy-id, known_hosts)"
            yield PROBLEM, f"ssh fails ({answer['reason']}): {way_out}"
            return
        clock = float(answer["clock"])
        skew = max(before - clock, clock - after)
        if skew > MOST_SKEW_SECS:
            yield WARNING, f"its clock is {skew:.0f} s off, and so are times in logs: set both by chrony or ntpd"
        for key, path in (("checkout", CHECKOUT), ("python", sys.executable)):
            if not answer.get(key):
                yield PROBLEM, f"it has no {path}: share the checkout with its .venv, or set it up there, same path"
        if not is_shared:
            way_out = "RESULTS_DIR= must name one on a file system that both share"
            yield PROBLEM, f"a file written here in {results.existing} is not seen there: {way_out}"
        if not answer.get("port"):
            yield PROBLEM, "it cannot connect to a port of this machine: open all ports between the two in the firewall"
        found, num_gpus = f"{address} answers by ssh", int(answer["gpus"])
    if 0 < num_gpus < num_ranks:
        yield PROBLEM, f"{found} and has {num_gpus} GPU(s) for {num_ranks} ranks: ask for {num_gpus}"
    else:
        yield OK, f"{found}, {num_gpus or 'no'} GPU(s)"


def _is_here(address: str) -> bool:
    with socket.socket() as own, contextlib.suppress(OSError):
        own.bind((address, 0))
        return True
    return False


def _look(name: str, results: Folder) -> tuple[dict[str, str], bool]:
    """The other host's answers by name, or the "reason" why there are none; and whether it sees a file written here."""
    value, place = uuid.uuid4().hex, results.existing
    with (
        socket.create_server(("", 0)) as server,
        tempfile.NamedTemporaryFile("w", prefix=".doctor-", dir=place) as mark,
    ):
        mark.write(value)
        mark.flush()
        paths = {"mark": mark.name, "checkout": CHECKOUT, "python": sys.executable}
        quoted = {key: shlex.quote(str(path)) for key, path in paths.items()}
        script = _LOOK.format(port=server.getsockname()[1], **quoted)
        options = ["-4", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]
        answer = ask(["ssh", *options, name, "bash", "-s"], 60.0, script)
    found = dict(line.partition(" ")[::2] for line in answer.out.splitlines())
    if not re.fullmatch(r"[0-9]+\.[0-9]+ [0-9]+", f"{found.get('clock')} {found.get('gpus')}"):
        return {"reason": answer.reason if answer.code else "bash and date do not answer there as on Linux"}, False
    return found, found.get("mark") == value
