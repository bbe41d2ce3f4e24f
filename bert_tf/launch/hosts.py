"""HOSTS=a:8,b:8: the machines on which mpirun or horovodrun starts the ranks by ssh."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from bert_tf.base.errors import UserError
from bert_tf.base.values import parse_whole


def hosts_of(environ: Mapping[str, str]) -> dict[str, int]:
    """``a:4,b`` -> the number of ranks by host, 1 if it is omitted; empty if HOSTS is not set. Raises `UserError`."""
    hosts: dict[str, int] = {}
    text = environ.get("HOSTS")
    for entry in text.split(",") if text else ():
        name, _, number = entry.strip().partition(":")
        with contextlib.suppress(ValueError):
            # A name that begins with a dash would be an option of ssh.
            if name and name[0] != "-" and name not in hosts and parse_whole(number or "1") > 0:
                hosts[name] = parse_whole(number or "1")
                continue
        raise UserError(f"HOSTS={text}: {entry!r} is not a host's name and number of ranks, once each, as in a:4,b:4")
    return hosts
