"""ChemProt (BioCreative VI): files of abstracts, entities and relations into sentences, each with one pair marked.

The pairs are those of BLUE (github.com/ncbi-nlp/BLUE_Benchmark, create_chemprot_bert.py): each chemical with each gene
of the same sentence, once for each group of relations that the two are in. The offsets of entities count the characters
of the title, one separator, and the abstract.
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
from bert_tf.prepare.corpora.text_files import (
    download_remedy,
    find_text_files,
    open_bytes,
    refusing_damage,
    require_files,
)
from bert_tf.prepare.layout import Layout
from bert_tf.prepare.running.stage import Stage, StageResult, run_stage
from bert_tf.prepare.sharding.sentences import split_by_rules
from bert_tf.records.manifest import FileEntry, describe_input
from bert_tf.settings.preparation import PreparationOptions

_TABLES = {"training": "train.tsv", "development": "dev.tsv", "test": "test.tsv"}
_FILE_NAME = re.compile(
    r"chemprot_(training|development|test)_(abstracts|entities|relations|gold_standard)(?:_gs)?\.tsv"
)
_KINDS = {"CHEMICAL": "CHEMICAL", "GENE-Y": "GENE", "GENE-N": "GENE", "GENE": "GENE"}
_PAIR_KINDS = ["CHEMICAL", "GENE"]  # of the two entities of a relation, in this order
_GROUPS, _NO_RELATION = ("CPR:3", "CPR:4", "CPR:5", "CPR:6", "CPR:9"), "false"
_OVERLAPPING = "@CHEM-GENE$"  # stands for a chemical and a gene that overlap or touch
_PartFiles = dict[str, tuple[str, bytes]]  # kind of file -> its name, with the archive that holds it, and its content


class _Entity(NamedTuple):
    start: int
    end: int
    kind: str


class _Article(NamedTuple):
    text: str  # title, a space, abstract
    title_size: int
    entities: dict[str, _Entity]
    relations: dict[tuple[str, str], list[str]]  # (chemical, gene) -> groups

    def sentences(self) -> list[tuple[int, int]]:
        """The characters start..end (exclusive) of each sentence; sentences are joined where an entity spans both."""
        spans: list[tuple[int, int]] = []
        for part in (self.text[: self.title_size], self.text[self.title_size + 1 :]):
            end = spans[-1][1] if spans else 0
            for sentence in split_by_rules(" ".join(part.split())):  # two spaces would end a paragraph
                match = re.compile(r"\s+".join(map(re.escape, sentence.split()))).search(self.text, end)
                assert match
                start, end = match.span()
                if spans and any(
                    entity.start < start and entity.end > spans[-1][1] for entity in self.entities.values()
                ):
                    start, _ = spans.pop()
                spans.append((start, end))
        return spans

    def examples(self) -> Iterator[tuple[str, str, str]]:
        """The names of a chemical and a gene, and the sentence with both marked, for each pair within a sentence."""
        for start, end in self.sentences():
            names = [name for name, entity in self.entities.items() if start <= entity.start and entity.end <= end]
            by_kind = ([name for name in names if self.entities[name].kind == kind] for kind in _PAIR_KINDS)
            for chemical, gene in itertools.product(*by_kind):
                first, second = sorted((self.entities[chemical], self.entities[gene]))
                marked, pair_end = f"@{first.kind}${self.text[first.end : second.start]}@{second.kind}$", second.end
                if second.start <= first.end:
                    marked, pair_end = _OVERLAPPING, max(first.end, second.end)
                yield chemical, gene, self.text[start : first.start] + marked + self.text[pair_end:end]


class _Part:
    """The articles of one part of the corpus: training, development or test.

    Each method `add_...` takes the columns of a line; it raises ValueError or KeyError if they break its `_RULES`.
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
        article.entities[name] = _Entity(start, end, _KINDS[kind])

    def add_relation(self, columns: Sequence[str]) -> None:
        """In a gold standard, a line has the group and both arguments; in a file of relations, two columns between
        these say whether the group is evaluated ("Y"), and which kind of relation it is.
        """
        number, group, *between, first, second = map(str.strip, columns)
        article = self.articles[number]
        kinds = {article.entities[name].kind: name for name in (arg.rpartition(":")[2] for arg in (first, second))}
        chemical, gene = (kinds[kind] for kind in _PAIR_KINDS)
        is_evaluated = between[:1] in ([], ["Y"])
        if len(between) not in (0, 2) or (is_evaluated and group not in _GROUPS):
            raise ValueError
        if not is_evaluated:
            self.num_not_evaluated += 1
        elif group not in (labels := article.relations.setdefault((chemical, gene), [])):
            labels.append(group)

    def table(self) -> tuple[list[tuple[str, str, str]], dict[str, int]]:
        """The table's rows, the header first, and its counts. Removes the relations that it writes."""
        rows, num_overlapping = [("index", "sentence", "label")], 0
        for number, article in self.articles.items():
            for chemical, gene, sentence in article.examples():
                labels = article.relations.pop((chemical, gene), [_NO_RELATION])
                rows += [(f"{number}.{chemical}.{gene}", sentence, label) for label in labels]
                num_overlapping += _OVERLAPPING in sentence
        unwritten = (labels for article in self.articles.values() for labels in article.relations.values())
        return rows, {
            "num_documents": len(self.articles),
            "num_examples": len(rows) - 1,
            "num_examples_false": sum(label == _NO_RELATION for _, _, label in rows),
            "num_overlapping": num_overlapping,
            "num_relations_not_evaluated": self.num_not_evaluated,
            "num_relations_across_sentences": sum(map(len, unwritten)),
        }


# Kind of file -> the method that adds a line, and the rule for the columns.
_RULES: dict[str, tuple[Callable[[_Part, Sequence[str]], None], str]] = {
    "abstracts": (_Part.add_abstract, "a number that no other abstract has, title, abstract"),
    "entities": (
        _Part.add_entity,
        f"an abstract's number, a name that no other entity in it has, one of {', '.join(_KINDS)}, "
        "where the words begin and end in the text (title, one separator, abstract), and the words",
    ),
    "relations": (
        _Part.add_relation,
        f"an abstract's number, one of {', '.join(_GROUPS)} (any, if N follows), perhaps Y or N and a kind, and the "
        "names of a chemical and a gene of that abstract",
    ),
}


def make_tables(options: PreparationOptions, working_dir: Path) -> None:
    """The stage text_formatting: writes a table for each part of the corpus that has files.

    Raises: UserError where files are missing or damaged, two of them contradict each other, a table exists that this
      stage did not make, or there are more bad lines than allowed.
    """
    layout = Layout(working_dir)
    folder = layout.download_folder(options.dataset)
    remedy = f"{download_remedy('chemprot')}, or put ChemProt_Corpus.zip, or what is in it, there"
    paths = require_files(
        find_text_files(folder, (".tsv", ".tsv.gz", ".zip")), folder, ".tsv or .zip file", remedy=remedy
    )
    inputs = [describe_input(path, working_dir) for path in paths]
    stage = Stage("text_formatting", options.dataset, layout.formatted_manifest(options.dataset), {}, inputs)
    bad = BadRecords(options.max_bad_records, "line")
    run_stage(stage, "formatted", stage.folder, lambda stage: _write_tables(stage, _read_parts(paths), bad))


def _write_tables(stage: Stage, parts: Mapping[str, _PartFiles], bad: BadRecords) -> StageResult:
    """Writes the tables as CSV with tabs; returns total counts and the entries of the tables."""
    tables = {name: _read_part(parts[part], bad).table() for part, name in _TABLES.items() if part in parts}
    totals: Counter[str] = Counter(num_dropped_bad_records=bad.num_left_out)
    for name, (rows, counts) in tables.items():
        text = io.StringIO()
        csv.writer(text, delimiter="\t", lineterminator="\n").writerows(rows)
        path = stage.folder / name
        if not stage.manifest_path.exists() and path.exists() and path.read_bytes() != text.getvalue().encode():
            raise UserError(f"{path} exists, and was not made by this stage: use it as it is, or move it away")
        write_text(path, text.getvalue())
        stage.add(FileEntry(name, path.stat().st_size, sha256_of_file(path), counts))
        totals.update(counts)
    for fault in bad.faults:
        print(f"warning: left out: {fault}", file=sys.stderr, flush=True)
    return dict(totals), {"tables": [stage.finished[name] for name in tables]}


def _read_parts(paths: Sequence[Path]) -> dict[str, _PartFiles]:
    """The files in these paths and archives, by part and kind."""
    parts: dict[str, _PartFiles] = {}
    for path in paths:
        with open_bytes(path) as file:
            for name, content in _unpack(str(path), file.read()):
                if match := _FILE_NAME.fullmatch(name.rpartition("/")[2]):
                    earlier = parts.setdefault(match[1], {}).setdefault(match[2], (name, content))
                    if earlier[1] != content:
                        raise UserError(f"{name} is not the same as {earlier[0]}: take one of them away")
    if not parts:
        raise UserError(f"{paths[0]} and {len(paths) - 1} more hold no chemprot_training_abstracts.tsv or the like")
    return parts


def _unpack(name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    """The name and content of a file, or of each visible file in an archive."""
    with refusing_damage(name, zipfile.BadZipFile, RuntimeError):
        if name.endswith(".zip"):
            with zipfile.ZipFile(io.BytesIO(content)) as packed:
                members = [member for member in packed.namelist() if not member.rpartition("/")[2].startswith(".")]
                for member in members:
                    yield from _unpack(f"{name}/{member}", packed.read(member))
        else:
            yield name.removesuffix(".gz"), gzip.decompress(content) if name.endswith(".gz") else content


def _read_part(files: _PartFiles, bad: BadRecords) -> _Part:
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
