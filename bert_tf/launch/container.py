"""Ranks in containers, with NVIDIA's Pyxis plugin for Slurm: CONTAINER_IMAGE names the image for every rank.

The launcher itself stays outside, so that it can call srun, and every path is the same inside and outside.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from bert_tf.base.errors import UserError
from bert_tf.settings.declaration import settings_of
from bert_tf.settings.launching import LaunchVariables

CHECKOUT = Path(__file__).resolve().parents[2]
# Variables that name folders outside the checkout; CONTAINER_MOUNTS names others.
_FOLDERS = [each.variable for each in settings_of(LaunchVariables) if each.variable.endswith("_DIR")]


def uses_container(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("CONTAINER_IMAGE"))


def rank_python(environ: Mapping[str, str]) -> str:
    """The Python that runs the ranks."""
    return "python3" if uses_container(environ) else sys.executable


def container_options(environ: Mapping[str, str]) -> list[str]:
    """srun's options; empty if CONTAINER_IMAGE is not set. Raises `UserError` for a path that Pyxis cannot mount."""
    if not uses_container(environ):
        return []
    folders = [str(CHECKOUT), *(os.path.abspath(environ[name]) for name in _FOLDERS if environ.get(name))]
    for folder in folders:
        if "," in folder or ":" in folder:
            raise UserError(f"{folder}: Pyxis mounts no folder with a comma or a colon in its path; rename it")
    mounts = [f"{folder}:{folder}" for folder in dict.fromkeys(folders)]
    if environ.get("CONTAINER_MOUNTS"):
        mounts.append(environ["CONTAINER_MOUNTS"])
    return [
        f"--container-image={environ['CONTAINER_IMAGE']}",
        f"--container-mounts={','.join(mounts)}",
        f"--container-workdir={CHECKOUT}",
    ]


def check_container(environ: Mapping[str, str]) -> None:
    """Raises `UserError` if ranks cannot be started in a container."""
    if environ.get("LAUNCHER", "srun") != "srun":
        raise UserError(f"LAUNCHER={environ['LAUNCHER']}: only srun starts ranks in CONTAINER_IMAGE; unset one of them")
    if not shutil.which("srun"):
        raise UserError("CONTAINER_IMAGE is set, but there is no srun on this machine's PATH; unset it")
    if b"--container-image" not in subprocess.run(["srun", "--help"], capture_output=True).stdout:
        raise UserError(
            "CONTAINER_IMAGE is set, but this Slurm has no Pyxis (srun --help lists no --container-image); unset it to "
            "run without a container"
        )
