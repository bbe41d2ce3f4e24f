"""What the benchmarks that kill programs at random moments share."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path


def numbers(text: str) -> list[int]:
    """The value of an option such as ``1,2,3``."""
    return list(map(int, text.split(",")))


def flip_bit(path: Path, generator: random.Random) -> None:
    """Damages a file."""
    content = bytearray(path.read_bytes())
    content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
    path.write_bytes(content)


def differences(found: Mapping[str, object], wanted: Mapping[str, object]) -> list[str]:
    """The files, given with their contents or digests, that are not as they should be."""
    return [
        f"{name} is " + ("missing" if name not in found else "left over" if name not in wanted else "different")
        for name in sorted({*found, *wanted})
        if found.get(name) != wanted.get(name)
    ]
