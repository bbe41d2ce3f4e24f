"""MediaWiki's links as the text that a reader sees, by the namespace of the page that they lead to."""

from __future__ import annotations

import re
from typing import NamedTuple


class Namespaces(NamedTuple):
    """The names of some namespaces, as `namespace_key` writes them.

    Attributes:
      hidden: those whose links show a picture or nothing in the text.
      templates: the one of templates.
    """

    hidden: frozenset[str]
    templates: frozenset[str]


# English names are valid in every wiki. A dump lists those in its own language, but not the second names, which the
# Chinese Wikipedia uses most.
KNOWN_NAMESPACES = Namespaces(
    frozenset("file image media category 文件 檔案 档案 图像 圖像 媒体 媒體 分类 分類".split()), frozenset(["template"])
)
# A link into any namespace with a name like this is a picture or a sound, so that other second names ("Bild") need not
# be known.
_MEDIA_FILE = re.compile(
    r"[^\W\d_][\w ]*:[^:]+\.(?:jpe?g|png|gif|svg|tiff?|webp|xcf|pdf|djvu|og[agvx]|opus|web[am]|wav|flac|mp3|mid|mpe?g)",
    re.IGNORECASE,
)
_LANGUAGE_PREFIX = re.compile(r"[a-z]{2,3}(?:-[a-z]+)*")
# Prefixes that look like languages but are projects: their links show their text.
_PROJECT_PREFIXES = frozenset({"wp", "wt", "mw", "doi", "rfc", "s", "b", "n", "q", "v", "d", "m"})


def namespace_key(name: str) -> str:
    """A namespace's name as MediaWiki compares it: in any case, with "_" for a space."""
    return " ".join(name.replace("_", " ").split()).lower()


def render_link(content: str, namespaces: Namespaces) -> str:
    # A bar from {{!}} separates like a literal one.
    target, *rest = content.replace("\x01", "|").split("|")
    target = target.strip()
    shown = rest[-1] if rest else target.lstrip(":")
    prefix, colon, name = target.partition(":")
    if colon:
        prefix = prefix.strip()
        if namespace_key(prefix) in namespaces.hidden or _MEDIA_FILE.fullmatch(target):
            return ""
        if (
            not rest
            and _LANGUAGE_PREFIX.fullmatch(prefix)
            and prefix not in _PROJECT_PREFIXES
            and not name.startswith(" ")
        ):
            return ""
    if rest and not shown.strip():
        # The pipe trick: [[Paris (Texas)|]] shows Paris.
        return target.partition("(")[0].partition(",")[0].strip()
    return shown
