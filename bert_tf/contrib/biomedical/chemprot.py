"""ChemProt (BioCreative VI): files of abstracts, entities and relations into sentences with a pair marked in each.

The pairs are those of BLUE (github.com/ncbi-nlp/BLUE_Benchmark, create_chemprot_bert.py): each chemical with each gene
of the same sentence, once for each group of relations that the two are in. Offsets count characters of the title, one
character, and the abstract.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import re
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Callable, NamedTuple

from bert_tf.base.errors import BadRecords, UserError
from bert_tf.base.files import decode_utf8, sha256_of_file, write_text
from bert_tf.prepare.corpora.text_files import download_of, find_text_files, open_bytes, refusing_damage, require_files
from bert_tf.prepare.layout import Layout
from bert_tf.prepare.running.stage import Made, Stage, run_stage
from bert_tf.prepare.sharding.sentences import split_by_rules
from bert_tf.records.manifest import FileEntry, describe_input
from bert_tf.settings.preparation import PreparationOptions

_TABLES = {"training": "train.tsv", "development": "dev.tsv", "test": "test.tsv"}
_FILE = re.compile(r"chemprot_(training|development|test)_(abstracts|entities|relations|gold_standard)(?:_gs)?\.tsv")
_KINDS = {"CHEMICAL": "CHEMICAL", "GENE-Y": "GENE", "GENE-N": "GENE", "GENE": "GENE"}
_ORDER = ["CHEMICAL", "GENE"]  # of a relation's entities
_GROUPS, _NO_RELATION = ("CPR:3", "CPR:4", "CPR:5", "CPR:6", "CPR:9"), "false"
_BOTH = "@CHEM-GENE$"  # for a chemical and a gene that overlap or touch
_Files = dict[str, tuple[str, bytes]]  # of a part, by kind: the name, with the archive that holds it, and the content


class _Entity(NamedTuple):
    kind: str
    start: int
    end: int


class _Article(NamedTuple):
    text: str  # title, one character, abstract
    title_size: int
    entities: dict[str, _Entity]
    relations: dict[tuple[str, str], list[str]]  # of a chemical and a gene

    def sentences(self) -> list[tuple[int, int]]:
        """The first character of each sentence and that after its last; none ends inside an entity."""
        spans: list[tuple[int, int]] = []
        for part in (self.text[: self.title_size], self.text[self.title_size + 1 :]):
            end = spans[-1][1] if spans else 0
            for sentence in split_by_rules(" ".join(part.split())):  # which takes two spaces for a paragraph's end
                match = re.compile(r"\s+".join(map(re.escape, sentence.split()))).search(self.text, end)
                assert match
                start, end = match.span()
                if spans and any(each.start < start and each.end > spans[-1][1] for each in self.entities.values()):
                    start, _ = spans.pop()
                spans.append((start, end))
        return spans

    def examples(self) -> Iterator[tuple[str, str, str]]:
        """A chemical, a gene and the sentence with both marked, for each pair in a sentence."""
        for start, end in self.sentences():
            inside = [name for name, each in self.entities.items() if start <= each.start and each.end <= end]
            by_kind = ([name for name in inside if self.entities[name].kind == kind] for kind in _ORDER)
            for chemical, gene in itertools.product(*by_kind):
                pair = (self.entities[chemical], self.entities[gene])
                first, second = sorted(pair, key=lambda entity: entity.start)
                middle, last = f"@{first.kind}${self.text[first.end : second.start]}@{second.kind}$", second.end
                if second.start <= first.end:
                    middle, last = _BOTH, max(first.end, second.end)
                yield chemical, gene, self.text[start : first.start] + middle + self.text[last:end]


class _Part:
    """The articles of a part of the corpus.

    The functions that add a line's columns raise ValueError or KeyError if they break the rule in `_RULES`.
    """

    def __init__(self) -> None:
        self.articles: dict[str, _Article] = {}
        self.num_not_evaluated = 0

    def add_abstract(self, columns: Sequence[str]) -> None:
        number, title, abstract = columns
        if number in self.articles:
            raise ValueError
        self.articles[number] = _Article(f"{title} {abstract}", len(title), {}, {})

    def add_entity(self, columns: Sequence[str]) -> None:
        number, name, kind, first, last, words = columns
        article, start, end = self.articles[number], int(first), int(last)
        if name in article.entities or not words or start < 0 or article.text[start:end] != words:
            raise ValueError
        article.entities[name] = _Entity(_KINDS[kind], start, end)

    def add_relation(self, columns: Sequence[str]) -> None:
        """A gold standard has group and arguments; a file of relations says between them whether the group is
        evaluated ("Y"), and the kind of relation within it.
        """
        number, group, *between, first, second = map(str.strip, columns)
        article = self.articles[number]
        names = [argument.rpartition(":")[2] for argument in (first, second)]
        chemical, gene = sorted(names, key=lambda name: article.entities[name].kind)
        is_evaluated = between[:1] in ([], ["Y"])
        is_pair = [article.entities[name].kind for name in (chemical, gene)] == _ORDER
        if not is_pair or len(between) not in (0, 2) or (is_evaluated and group not in _GROUPS):
            raise ValueError
        if not is_evaluated:
            self.num_not_evaluated += 1
        elif group not in (labels := article.relations.setdefault((chemical, gene), [])):
            labels.append(group)

    def table(self) -> tuple[list[tuple[str, str, str]], dict[str, int]]:
        """The rows, the header first, and what is counted."""
        rows, num_overlapping = [("index", "sentence", "label")], 0
        for number, article in self.articles.items():
            for chemical, gene, sentence in article.examples():
                labels = article.relations.pop((chemical, gene), [_NO_RELATION])
                rows += [(f"{number}.{chemical}.{gene}", sentence, label) for label in labels]
                num_overlapping += _BOTH in sentence
        left = (labels for article in self.articles.values() for labels in article.relations.values())
        return rows, {
            "num_documents": len(self.articles),
            "num_examples": len(rows) - 1,
            "num_examples_false": sum(label == _NO_RELATION for _, _, label in rows),
            "num_overlapping": num_overlapping,
            "num_relations_not_evaluated": self.num_not_evaluated,
            "num_relations_across_sentences": sum(map(len, left)),
        }


# By the kind of a file, how its lines are read, and what they must hold.
_RULES: dict[str, tuple[Callable[[_Part, Sequence[str]], None], str]] = {
    "abstracts": (_Part.add_abstract, "a number of its own, title, abstract"),
    "entities": (
        _Part.add_entity,
        f"an abstract's number, a name of its own, one of {', '.join(_KINDS)}, where the words begin and end among the "
        "characters of title, one character and abstract, and the words",
    ),
    "relations": (
        _Part.add_relation,
        f"an abstract's number, one of {', '.join(_GROUPS)} (any, if N follows), perhaps Y or N and a kind, and the "
        "names of a chemical and a gene there",
    ),
}


def make_tables(options: PreparationOptions, working_dir: Path) -> None:
    """The stage: a table of each part of the corpus (training, development, test) that is there.

    Raises: UserError for damaged or missing files, two that contradict each other, a table of another origin, and more
      bad lines than allowed.
    """
    layout = Layout(working_dir)
    folder = layout.download_folder(options.dataset)
    remedy = f"{download_of('chemprot')}, or put ChemProt_Corpus.zip, or what is in it, there"
    paths = require_files(
        find_text_files(folder, (".tsv", ".tsv.gz", ".zip")), folder, ".tsv or .zip file", remedy=remedy
    )
    inputs = [describe_input(path, working_dir) for path in paths]
    stage = Stage("text_formatting", options.dataset, layout.formatted_manifest(options.dataset), {}, inputs)
    bad = BadRecords(options.max_bad_records, "line")
    run_stage(stage, "formatted", stage.folder, lambda stage: _write_tables(stage, _read_parts(paths), bad))


def _write_tables(stage: Stage, parts: Mapping[str, _Files], bad: BadRecords) -> Made:
    """Writes the tables by CSV's rules, with tabs."""
    tables = {name: _read_part(parts[part], bad).table() for part, name in _TABLES.items() if part in parts}
    totals: Counter[str] = Counter(num_dropped_bad_records=bad.num)
    for name, (rows, counts) in tables.items():
        text = io.StringIO()
        csv.writer(text, delimiter="\t", lineterminator="\n").writerows(rows)
        path = stage.folder / name
        if not stage.manifest_path.exists() and path.exists() and path.read_bytes() != text.getvalue().encode():
            raise UserError(f"{path} exists, and was not made by this stage: use it as it is, or move it away")
        write_text(path, text.getvalue())
        stage.add(FileEntry(name, path.stat().st_size, sha256_of_file(path), counts))
        totals.update(counts)
    for fault in bad.named:
        print(f"warning: left out: {fault}", file=sys.stderr, flush=True)
    return dict(totals), {"tables": [stage.finished[name] for name in tables]}


def _read_parts(paths: Sequence[Path]) -> dict[str, _Files]:
    """The files of each part that is there."""
    parts: dict[str, _Files] = {}
    for path in paths:
        with open_bytes(path) as file:
            for name, content in _unpacked(str(path), file.read()):
                if match := _FILE.fullmatch(name.rpartition("/")[2]):
                    earlier = parts.setdefault(match[1], {}).setdefault(match[2], (name, content))
                    if earlier[1] != content:
                        raise UserError(f"{name} is not the same as {earlier[0]}: take one of them away")
    if not parts:
        raise UserError(f"{paths[0]} and {len(paths) - 1} more hold no chemprot_training_abstracts.tsv or the like")
    return parts


def _unpacked(name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    with refusing_damage(name, zipfile.BadZipFile, RuntimeError):
        if name.endswith(".zip"):
            with zipfile.ZipFile(io.BytesIO(content)) as packed:
                names = [inside for inside in packed.namelist() if not inside.rpartition("/")[2].startswith(".")]
                for inside in names:
                    yield from _unpacked(f"{name}/{inside}", packed.read(inside))
        else:
            yield name.removesuffix(".gz"), gzip.decompress(content) if name.endswith(".gz") else content


def _read_part(files: _Files, bad: BadRecords) -> _Part:
    part = _Part()
    for kind, (add, rule) in _RULES.items():
        kind = "gold_standard" if kind == "relations" and "gold_standard" in files else kind
        if kind not in files:
            raise UserError(f"{next(iter(files.values()))[0]}: there is no file of {kind} beside it")
        name, content = files[kind]
        for number, line in enumerate(content.split(b"\n"), 1):
            where = f"{name}, line {number}"
            text = decode_utf8(line, where, "utf-8-sig" if number == 1 else "utf-8").rstrip("\r")
            try:
                if text:
                    add(part, text.split("\t"))
            except (ValueError, KeyError):
                bad.add(f"{where}: {text!r:.200}, where columns must be {rule}")
    return part
