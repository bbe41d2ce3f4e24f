"""Ranks in containers, with NVIDIA's Pyxis plugin for Slurm: CONTAINER_IMAGE names the image for every rank.

The launcher itself stays outside, so that it can call srun, and every path is the same inside and outside.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from bert_tf.base.files import CHECKOUT
from bert_tf.settings.declaration import settings_of
from bert_tf.settings.launching import LaunchVariables

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
