"""What a file is that is no UTF-8 text, by how it begins."""

from __future__ import annotations

import codecs
import shlex

# How a file begins that is no text -> what it is, and the command that makes text of it, where {} is its name.
_BEGINNINGS = {
    b"\x1f\x8b": ("compressed with gzip", "gzip -dc {} > OUT"),
    b"BZh91AY&SY": ("compressed with bzip2", "bzip2 -dc {} > OUT"),
    b"\xfd7zXZ": ("compressed with xz", "xz -dc {} > OUT"),
    b"\x28\xb5\x2f\xfd": ("compressed with zstd", "zstd -dc {} > OUT"),
    b"PK\x03\x04": ("a ZIP archive or a spreadsheet", "unzip {} (or save the spreadsheet as CSV in UTF-8)"),
    b"\xd0\xcf\x11\xe0": ("a file of old Office programs", "save {} as CSV or text in UTF-8"),
    b"{\\rtf": ("a document in Rich Text Format", "save {} as text in UTF-8"),
    b"%PDF-": ("a PDF document", "pdftotext {} OUT"),
    b"PAR1": ("a Parquet table", "pandas.read_parquet('{}').to_json('OUT.jsonl', orient='records', lines=True)"),
    b"ARROW1": ("an Arrow table", "pandas.read_feather('{}').to_json('OUT.jsonl', orient='records', lines=True)"),
    # The same as a stream, which save_to_disk of Hugging Face's datasets writes.
    b"\xff\xff\xff\xff": ("an Arrow table", "datasets.Dataset.from_file('{}').to_json('OUT.jsonl')"),
    # UTF-32 before UTF-16, because its mark begins with UTF-16's.
    **dict.fromkeys((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE), ("UTF-32", "iconv -f UTF-32 -t UTF-8 {} > OUT")),
    **dict.fromkeys((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), ("UTF-16", "iconv -f UTF-16 -t UTF-8 {} > OUT")),
}
# Begins East Asian text among ASCII characters, which all are valid UTF-8.
_ISO_2022 = b"\x1b$"
HEAD_BYTES = 1 << 12  # this much of a file tells what it is
_MOST_ZEROS = 1 / 8  # share of zero bytes in a text; UTF-16 without its mark has half of them in Latin letters


def what_is_not_text(head: bytes, name: str) -> str | None:
    """What a file is whose first bytes are `head`, and the command that makes UTF-8 text of it; None if it may be that.

    A few zero bytes are characters of UTF-8.
    """
    kind = next((kind for beginning, kind in _BEGINNINGS.items() if head.startswith(beginning)), None)
    if not kind and _ISO_2022 in head:
        kind = "ISO-2022", "iconv -f ISO-2022-JP -t UTF-8 {} > OUT"
    if not kind and head.count(0) > _MOST_ZEROS * len(head):
        order = "LE" if head[1::2].count(0) > head[::2].count(0) else "BE"  # which byte of a Latin letter is 0
        kind = "a binary file or UTF-16", f"iconv -f UTF-16{order} -t UTF-8 {{}} > OUT"
    return kind and f"{kind[0]}, not UTF-8 text; convert it: {kind[1].format(shlex.quote(name))}"
