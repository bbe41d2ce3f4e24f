"""Programs that take the place of the machine's own."""

from __future__ import annotations

import os
from pathlib import Path


def programs(folder: Path, **texts: str) -> str:
    """Writes shell scripts by their names, in which "_" stands for "."; returns a PATH that begins with them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_program(folder / name.replace("_", "."), text)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def write_program(path: Path, text: str) -> None:
    path.write_text(text if text.startswith("#!") else f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


def nvidia_smi(folder: Path, *answers: str) -> str:
    """A PATH on which nvidia-smi lists a GPU for each of the answers, and gives these to any question after UUIDs."""
    listed = "\n".join(f"GPU {number}: A GPU (UUID: GPU-{number})" for number, _ in enumerate(answers))
    told = "\n".join(f"GPU-{number}, {each}" for number, each in enumerate(answers))
    text = f"if [[ $1 == -L ]]; then echo '{listed}'; else echo '{told}'; fi"
    return programs(folder, **{"nvidia-smi": text})
