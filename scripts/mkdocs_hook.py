"""Gives MkDocs the pages where they lie in the checkout, README.md too, so that links between them stay as they are."""

from __future__ import annotations

from pathlib import Path

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
# All that a page links to.
PAGES = (
    "*.md",
    "docs/*.md",
    "docs/images/*",
    "examples/*.ipynb",
    "benchmarks/results/*.md",
    "benchmarks/results/records/*",
    "benchmarks/results/*_trials/*.jsonl",
    "bert_tf/prepare/corpora/reference_sections.json",
    "LICENSE",
)


def on_files(files: Files, config) -> Files:
    for file in [file for file in files if file.is_documentation_page() or file.src_uri.endswith(".svg")]:
        files.remove(file)
    for path in (path for pattern in PAGES for path in sorted(ROOT.glob(pattern))):
        files.append(File(str(path.relative_to(ROOT)), str(ROOT), config.site_dir, config.use_directory_urls))
    return files
