"""The files that take long come first: where several processes share the tests, file by file, none is left alone."""

from __future__ import annotations

import collections


def pytest_collection_modifyitems(items):
    num_slow = collections.Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -num_slow[item.path])
