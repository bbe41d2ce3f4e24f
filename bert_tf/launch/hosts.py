"""HOSTS=a:8,b:8: the machines on which mpirun or horovodrun starts the ranks by ssh."""

from __future__ import annotations

import contextlib
import shutil
import socket
from collections.abc import Mapping

from bert_tf.base.errors import UserError
from bert_tf.base.values import parse_whole
from bert_tf.launch.container import uses_container


def parse_hosts(text: str) -> dict[str, int]:
    """``a:4,b:4`` -> the number of ranks by host, 1 if it is omitted. Raises `UserError`."""
    hosts: dict[str, int] = {}
    for entry in text.split(",") if text else ():
        name, _, number = entry.strip().partition(":")
        with contextlib.suppress(ValueError):
            # A name that begins with a dash would be an option of ssh.
            if name and name[0] != "-" and name not in hosts and parse_whole(number or "1") > 0:
                hosts[name] = parse_whole(number or "1")
                continue
        raise UserError(f"hosts {text!r}: {entry!r} is not a host's name and number of ranks, once each, as in a:4,b:4")
    return hosts


def hosts_of(environ: Mapping[str, str]) -> dict[str, int]:
    """The number of ranks of each host in HOSTS; empty if it is not set."""
    return parse_hosts(environ.get("HOSTS", ""))


def check_hosts(hosts: Mapping[str, int], num_ranks: int, environ: Mapping[str, str]) -> None:
    """Raises `UserError` if ranks cannot be started on `hosts`."""
    if uses_container(environ) or environ.get("LAUNCHER") in ("srun", "none"):
        raise UserError(
            "HOSTS is for mpirun and horovodrun; with srun (CONTAINER_IMAGE) sbatch names the hosts: unset it"
        )
    if sum(hosts.values()) != num_ranks:
        raise UserError(f"num_gpus is {num_ranks}, but HOSTS={environ['HOSTS']} has {sum(hosts.values())} rank(s)")
    if not shutil.which("ssh"):
        raise UserError("HOSTS needs ssh, which is not on this machine's PATH: apt-get install openssh-client")


def check_addresses(environ: Mapping[str, str]) -> None:
    """Raises `UserError` if a host's name in HOSTS has no address."""
    for name in hosts_of(environ):
        try:
            socket.getaddrinfo(name, None)
        except (OSError, UnicodeError) as error:  # the latter if a part between dots is empty or too long
            reason = getattr(error, "strerror", error)
            raise UserError(
                f"HOSTS={environ['HOSTS']}: {name} has no address ({reason}); correct it, or add it to DNS or to "
                "/etc/hosts"
            ) from None
