"""ChemProt (BioCreative VI): files of abstracts, entities and relations into sentences with a pair marked in each.

The pairs are those of BLUE (github.com/ncbi-nlp/BLUE_Benchmark, create_chemprot_bert.py): each chemical with each gene
of the same sentence, once for each group of relations that the two are in. Offsets count characters of the title, one
character, and the abstract.
"""

from __future__ import annotations

import csv
import dataclasses
import gzip
import hashlib
import io
import re
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bert_tf.base.errors import BadRecords, UserError
from bert_tf.base.files import atomic_file, decode_utf8
from bert_tf.prepare.corpora.text_files import download_of, find_text_files, open_bytes, refusing_damage, require_files
from bert_tf.prepare.layout import Layout
from bert_tf.prepare.running.stage import Made, Stage, run_stage
from bert_tf.prepare.sharding.sentences import split_by_rules
from bert_tf.records.manifest import FileEntry, describe_input
from bert_tf.settings.preparation import PreparationOptions

_TABLES = {"training": "train.tsv", "development": "dev.tsv", "test": "test.tsv"}
_FILE = re.compile(r"chemprot_(training|development|test)_(abstracts|entities|relations|gold_standard)(?:_gs)?\.tsv")
_KINDS = {"CHEMICAL": "CHEMICAL", "GENE-Y": "GENE", "GENE-N": "GENE", "GENE": "GENE"}
_GROUPS, _NO_RELATION = ("CPR:3", "CPR:4", "CPR:5", "CPR:6", "CPR:9"), "false"
_BOTH = "@CHEM-GENE$"  # for a chemical and a gene that overlap or touch
_Files = dict[str, tuple[str, bytes]]  # of a part, by kind: the name, with the archive that holds it, and the content


class _Entity(NamedTuple):
    kind: str
    start: int
    end: int


@dataclasses.dataclass
class _Article:
    title: str
    abstract: str
    entities: dict[str, _Entity] = dataclasses.field(default_factory=dict)
    relations: dict[tuple[str, str], list[str]] = dataclasses.field(default_factory=dict)  # of a chemical and a gene

    def __post_init__(self) -> None:
        self.text = f"{self.title} {self.abstract}"

    def sentences(self) -> list[tuple[int, int]]:
        """The first character of each sentence and that after its last; none ends inside an entity."""
        found: list[tuple[int, int]] = []
        for part, place in ((self.title, 0), (self.abstract, len(self.title) + 1)):
            for sentence in split_by_rules(" ".join(part.split())):  # which takes two spaces for a paragraph's end
                match = re.compile(r"\s+".join(map(re.escape, sentence.split()))).search(self.text, place)
                assert match
                start, place = match.span()
                if found and any(each.start < start and each.end > found[-1][1] for each in self.entities.values()):
                    start, _ = found.pop()
                found.append((start, place))
        return found

    def examples(self) -> Iterator[tuple[str, str, str]]:
        """A chemical, a gene and the sentence with both marked, for each pair in a sentence."""
        for start, end in self.sentences():
            inside = [(name, each) for name, each in self.entities.items() if start <= each.start and each.end <= end]
            for chemical in (pair for pair in inside if pair[1].kind == "CHEMICAL"):
                for gene in (pair for pair in inside if pair[1].kind == "GENE"):
                    first, second = sorted((chemical[1], gene[1]), key=lambda entity: entity.start)
                    middle, last = f"@{first.kind}${self.text[first.end : second.start]}@{second.kind}$", second.end
                    if second.start <= first.end:
                        middle, last = _BOTH, max(first.end, second.end)
                    yield chemical[0], gene[0], self.text[start : first.start] + middle + self.text[last:end]


class _Table(NamedTuple):
    rows: Sequence[Sequence[str]]  # the header first
    counts: Mapping[str, int]


def make_tables(options: PreparationOptions, working_dir: Path) -> None:
    """The stage: a table of each part of the corpus (training, development, test) that is there.

    Raises: UserError for damaged or missing files, two that contradict each other, a table of another origin, and more
      bad lines than allowed.
    """
    layout = Layout(working_dir)
    folder = layout.download_folder(options.dataset)
    ways_out = f"{download_of('chemprot')}, or put ChemProt_Corpus.zip, or what is in it, there"
    paths = require_files(
        find_text_files(folder, (".tsv", ".tsv.gz", ".zip")), folder, ".tsv or .zip file", ways_out=ways_out
    )
    inputs = [describe_input(path, working_dir) for path in paths]
    stage = Stage("text_formatting", options.dataset, layout.formatted_manifest(options.dataset), {}, inputs)
    bad = BadRecords(options.max_bad_records, "line")
    run_stage(stage, "formatted", stage.folder, lambda stage: _write_tables(stage, _read_tables(paths, bad), bad))


def _write_tables(stage: Stage, tables: Mapping[str, _Table], bad: BadRecords) -> Made:
    """Writes the tables by CSV's rules, with tabs."""
    totals: Counter[str] = Counter(num_dropped_bad_records=bad.num)
    for name, table in tables.items():
        text = io.StringIO()
        csv.writer(text, delimiter="\t", lineterminator="\n").writerows(table.rows)
        content, path = text.getvalue().encode("utf-8"), stage.folder / name
        if not stage.manifest_path.exists() and path.exists() and path.read_bytes() != content:
            raise UserError(f"{path} exists, and was not made by this stage: use it as it is, or move it away")
        with atomic_file(path) as file:
            file.write(content)
        stage.add(FileEntry(name, len(content), hashlib.sha256(content).hexdigest(), dict(table.counts)))
        totals.update(table.counts)
    for fault in bad.named:
        print(f"warning: left out: {fault}", file=sys.stderr, flush=True)
    return dict(totals), {"tables": [stage.finished[name] for name in tables]}


def _read_tables(paths: Sequence[Path], bad: BadRecords) -> dict[str, _Table]:
    """The tables by their files' names."""
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
    return {_TABLES[part]: _make_table(parts[part], bad) for part in _TABLES if part in parts}


def _unpacked(name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    with refusing_damage(name, zipfile.BadZipFile, RuntimeError):
        if name.endswith(".zip"):
            with zipfile.ZipFile(io.BytesIO(content)) as packed:
                names = [inside for inside in packed.namelist() if not inside.rpartition("/")[2].startswith(".")]
                for inside in names:
                    yield from _unpacked(f"{name}/{inside}", packed.read(inside))
        else:
            yield name.removesuffix(".gz"), gzip.decompress(content) if name.endswith(".gz") else content


def _make_table(files: _Files, bad: BadRecords) -> _Table:
    kinds = ("abstracts", "entities", "gold_standard" if "gold_standard" in files else "relations")
    if missing := [kind for kind in kinds if kind not in files]:
        raise UserError(f"{next(iter(files.values()))[0]}: there is no file of {' or '.join(missing)} beside it")
    articles: dict[str, _Article] = {}
    for place, (number, title, abstract) in _lines(files["abstracts"], (3,), bad):
        if number in articles:
            bad.add(f"{place}: there is an abstract of {number} above")
        else:
            articles[number] = _Article(title, abstract)
    _read_entities(files["entities"], articles, bad)
    counts = {"num_documents": len(articles), "num_examples": 0, "num_examples_false": 0, "num_overlapping": 0}
    counts["num_relations_not_evaluated"] = _read_relations(files[kinds[2]], articles, bad)
    rows = [("index", "sentence", "label")]
    for number, article in articles.items():
        for chemical, gene, sentence in article.examples():
            labels = article.relations.pop((chemical, gene), [_NO_RELATION])
            rows += [(f"{number}.{chemical}.{gene}", sentence, label) for label in labels]
            counts["num_examples"] += len(labels)
            counts["num_examples_false"] += labels == [_NO_RELATION]
            counts["num_overlapping"] += _BOTH in sentence
    left = (labels for article in articles.values() for labels in article.relations.values())
    return _Table(rows, {**counts, "num_relations_across_sentences": sum(map(len, left))})


def _lines(file: tuple[str, bytes], num_columns: Sequence[int], bad: BadRecords) -> Iterator[tuple[str, list[str]]]:
    """The columns of each line, and how messages call the line."""
    for number, line in enumerate(file[1].split(b"\n"), 1):
        place = f"{file[0]}, line {number}"
        fields = decode_utf8(line, place, "utf-8-sig" if number == 1 else "utf-8").rstrip("\r").split("\t")
        if len(fields) in num_columns:
            yield place, fields
        elif fields != [""]:
            bad.add(f"{place}: {len(fields)} columns instead of {' or '.join(map(str, num_columns))}")


def _read_entities(file: tuple[str, bytes], articles: Mapping[str, _Article], bad: BadRecords) -> None:
    for place, (number, name, kind, first, last, words) in _lines(file, (6,), bad):
        article = articles.get(number)
        start, end = (int(first), int(last)) if first.isdecimal() and last.isdecimal() else (0, 0)
        if article is None:
            bad.add(f"{place}: there is no abstract of {number}")
        elif name in article.entities:
            bad.add(f"{place}: {number} has an entity {name} above")
        elif kind not in _KINDS:
            bad.add(f"{place}: {kind!r:.40} is none of {', '.join(_KINDS)}")
        elif not words or article.text[start:end] != words:
            there = f"{article.text[start:end]!r:.80}, not {words!r:.80}"
            bad.add(f"{place}: at {first:.20} to {last:.20} of {number} stands {there}")
        else:
            article.entities[name] = _Entity(_KINDS[kind], start, end)


def _read_relations(file: tuple[str, bytes], articles: Mapping[str, _Article], bad: BadRecords) -> int:
    """Adds the relations to their articles; returns how many are of no group that is evaluated.

    A gold standard has group and arguments; a file of relations says between them whether the group is evaluated
    ("Y"), and the kind of relation within it.
    """
    num_others = 0
    for place, fields in _lines(file, (4, 6), bad):
        number, group, *evaluated = (field.strip() for field in fields[:-2])
        entities = articles[number].entities if number in articles else {}
        names = sorted(field.strip().rpartition(":")[2] for field in fields[-2:])
        if number not in articles:
            bad.add(f"{place}: there is no abstract of {number}")
        elif unknown := [name for name in names if name not in entities]:
            bad.add(f"{place}: {number} has no entity {unknown[0]}")
        elif [entities[name].kind for name in names] not in (["CHEMICAL", "GENE"], ["GENE", "CHEMICAL"]):
            bad.add(f"{place}: {' and '.join(names)} are not a chemical and a gene")
        elif evaluated[:1] not in ([], ["Y"]):
            num_others += 1
        elif group not in _GROUPS:
            bad.add(f"{place}: {group!r:.40} is none of {', '.join(_GROUPS)}")
        else:
            chemical, gene = sorted(names, key=lambda name: entities[name].kind)
            labels = articles[number].relations.setdefault((chemical, gene), [])
            labels += [group] if group not in labels else []
    return num_others
