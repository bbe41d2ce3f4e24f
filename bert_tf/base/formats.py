"""Recognises files that are not UTF-8 text by their first bytes."""

from __future__ import annotations

import codecs
import shlex

# First bytes of a file that is not text -> what it is, and the command that makes text of it; {} is its name.
_BEGINNINGS = {
    b"\x1f\x8b": ("compressed with gzip", "gzip -dc {} > OUT"),
    b"BZh91AY&SY": ("compressed with bzip2", "bzip2 -dc {} > OUT"),
    b"\xfd7zXZ": ("compressed with xz", "xz -dc {} > OUT"),
    b"\x28\xb5\x2f\xfd": ("compressed with zstd", "zstd -dc {} > OUT"),
    b"7z\xbc\xaf\x27\x1c": ("a 7z archive", "7z x {}"),
    b"PK\x03\x04": ("a ZIP archive or a spreadsheet", "unzip {} (or save the spreadsheet as CSV in UTF-8)"),
    b"\xd0\xcf\x11\xe0": ("a file of old Office programs", "save {} as CSV or text in UTF-8"),
    b"{\\rtf": ("a document in Rich Text Format", "save {} as text in UTF-8"),
    b"%PDF-": ("a PDF document", "pdftotext {} OUT"),
    b"PAR1": ("a Parquet table", "pandas.read_parquet('{}').to_json('OUT.jsonl', orient='records', lines=True)"),
    b"ARROW1": ("an Arrow table", "pandas.read_feather('{}').to_json('OUT.jsonl', orient='records', lines=True)"),
    # Arrow's stream format, which save_to_disk of Hugging Face's datasets writes.
    b"\xff\xff\xff\xff": ("an Arrow table", "datasets.Dataset.from_file('{}').to_json('OUT.jsonl')"),
    # UTF-32 before UTF-16, because its byte-order mark begins with UTF-16's.
    **dict.fromkeys((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE), ("UTF-32", "iconv -f UTF-32 -t UTF-8 {} > OUT")),
    **dict.fromkeys((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), ("UTF-16", "iconv -f UTF-16 -t UTF-8 {} > OUT")),
}
# Switches from ASCII to an East Asian character set, whose encoded text consists of ASCII bytes, too.
_ISO_2022 = b"\x1b$"
HEAD_BYTES = 1 << 12  # this much of a file tells what it is
_TAR, _TAR_START = b"ustar", 257
_MAX_ZEROS = 1 / 8  # share of zero bytes in a text; it is half in Latin letters in UTF-16 without byte-order mark
_FEW_ZEROS = 8  # so many, all at even or all at odd positions, are of UTF-16, too: of the spaces in other scripts


def find_format(head: bytes) -> tuple[str, str] | None:
    """What a file is whose `head` no encoding makes text of, and the command that does; None if it may be text."""
    if head.startswith(_TAR, _TAR_START):
        return "a tar archive", "tar -xf {}"
    return next((kind for beginning, kind in _BEGINNINGS.items() if head.startswith(beginning)), None)


def describe_non_text(head: bytes, name: str) -> str | None:
    """What a file that begins with `head` is, and the command that makes UTF-8 text of it; None if it may be such text.

    A few zero bytes are allowed, because NUL is a character of UTF-8.
    """
    if head and not head.strip(b"\0"):
        return "full of zero bytes, as after a power failure or a download cut short; fetch or make it again"
    kind = find_format(head)
    if not kind and _ISO_2022 in head:
        kind = "ISO-2022", "iconv -f ISO-2022-JP -t UTF-8 {} > OUT"
    num_even, num_odd = head[::2].count(0), head[1::2].count(0)
    is_one_sided = num_even + num_odd >= _FEW_ZEROS and 0 in (num_even, num_odd)
    if not kind and (is_one_sided or num_even + num_odd > _MAX_ZEROS * len(head)):
        order = "LE" if num_odd > num_even else "BE"  # which byte of a Latin letter is 0
        kind = "a binary file or UTF-16", f"iconv -f UTF-16{order} -t UTF-8 {{}} > OUT"
    return kind and f"{kind[0]}, not UTF-8 text; convert it: {kind[1].format(shlex.quote(name))}"
