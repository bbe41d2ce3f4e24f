"""Runs the actions of bertPrep.py in this process, where a UserError can be caught."""

from __future__ import annotations

import random
from pathlib import Path

from bert_tf.prepare.layout import Layout
from bert_tf.programs import prepare as bertPrep

# Generated words, so that nothing but what is planted occurs twice.
_SYLLABLES = "ba de fi go lu ma ne pi ro su ta ve wi zo ka".split()


def run(working_dir: Path, action: str, *arguments: object, dataset: str = "custom") -> None:
    options = bertPrep.parse(["--action", action, "--dataset", dataset, "--n_processes", "1", *map(str, arguments)])
    bertPrep.ACTIONS[action](options, Layout(working_dir))


def write(path: Path, content: str | bytes) -> Path:
    """Writes a file, and makes the folders that it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def contents(folder: Path) -> dict[str, bytes]:
    """What the files below a folder hold, locks and journals apart, by their names in it."""
    paths = (path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".lock", ".journal"))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def flip(path: Path, place: int) -> None:
    """Changes a bit of a file's byte."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def documents(count: int, seed: int = 0, words: int = 120) -> list[str]:
    """Documents of sentences of made-up words."""
    rng = random.Random(seed)
    vocabulary = ["".join(rng.choices(_SYLLABLES, k=rng.randint(1, 3))) for _ in range(2000)]
    found = []
    for _ in range(count):
        text = rng.choices(vocabulary, k=words)
        for start in range(0, words, 8):
            text[start] = text[start].capitalize()
            text[min(start + 7, words - 1)] += "."
        found.append(" ".join(text))
    return found


def changed(document: str, seed: int = 1) -> str:
    """The document with every thirtieth word replaced, none of them at its beginning."""
    rng = random.Random(seed)
    text = document.split(" ")
    for place in range(rng.randrange(8, 30), len(text), 30):
        text[place] = "zzz"
    return " ".join(text)


def shard(working_dir: Path, texts: list[str], *arguments: object) -> None:
    """Formats (keeping duplicates) and shards documents."""
    source = working_dir / "source.txt"
    source.write_text("\n\n".join(texts), encoding="utf-8")
    run(working_dir, "text_formatting", "--input_files", source, "--keep_duplicates")
    run(working_dir, "sharding", *arguments)
