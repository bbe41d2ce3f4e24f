"""Where ranks run: on the HOSTS=a:8,b:8 that mpirun or horovodrun reach by ssh, and in which container.

Under Slurm, with NVIDIA's Pyxis plugin, CONTAINER_IMAGE names an image for every rank. The launcher itself stays
outside, so that it can call srun, and every path is the same inside and outside.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping

from bert_tf.base.command_line import parse_whole
from bert_tf.base.errors import UserError
from bert_tf.base.files import CHECKOUT
from bert_tf.settings.declaration import settings_of
from bert_tf.settings.programs import LaunchVariables


def hosts_of(environ: Mapping[str, str]) -> dict[str, int]:
    """``a:4,b`` -> the number of ranks by host, 1 if it is omitted; empty if HOSTS is not set. Raises `UserError`."""
    hosts: dict[str, int] = {}
    text = environ.get("HOSTS")
    for entry in text.split(",") if text else ():
        name, _, number = entry.strip().partition(":")
        with contextlib.suppress(ValueError):
            # A name that begins with a dash would be an option of ssh.
            if name.split() == [name] and name[0] != "-" and name not in hosts and parse_whole(number or "1") > 0:
                hosts[name] = parse_whole(number or "1")
                continue
        raise UserError(f"HOSTS={text}: {entry!r} is not a host's name and number of ranks, once each, as in a:4,b:4")
    return hosts


# Variables that name folders outside the checkout; CONTAINER_MOUNTS names others.
_FOLDERS = [each.variable for each in settings_of(LaunchVariables) if each.variable.endswith("_DIR")]


def uses_container(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("CONTAINER_IMAGE"))


def rank_python(environ: Mapping[str, str]) -> str:
    return "python3" if uses_container(environ) else sys.executable


def container_options(environ: Mapping[str, str]) -> list[str]:
    """srun's options; empty if CONTAINER_IMAGE is not set."""
    if not uses_container(environ):
        return []
    folders = [str(CHECKOUT), *(os.path.abspath(environ[name]) for name in _FOLDERS if environ.get(name))]
    mounts = [f"{folder}:{folder}" for folder in dict.fromkeys(folders)]
    if environ.get("CONTAINER_MOUNTS"):
        mounts.append(environ["CONTAINER_MOUNTS"])
    return [
        f"--container-image={environ['CONTAINER_IMAGE']}",
        f"--container-mounts={','.join(mounts)}",
        f"--container-workdir={CHECKOUT}",
    ]
