"""Fields of JSON: numbers that JSON does not have, fields that contradict, and how a difference is shown."""

import pytest

from bert_tf.base.errors import contrast
from bert_tf.base.files import read_json_object
from tests.refusals import refused

LONG = "x" * 500


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e999"])
def test_a_file_with_a_number_that_json_does_not_have_is_refused(tmp_path, value):
    file = tmp_path / "config.json"
    file.write_text(f'{{"sizes": {{"rate": [1, {value}]}}}}')
    refused(f"^{file} is not valid JSON .{value} is not a JSON number", read_json_object, file, "")


def test_lists_and_objects_lie_in_each_other_only_so_deep(tmp_path):
    """What reads a value may call itself for each level: a traceback that names no file."""
    file = tmp_path / "config.json"
    for depth in (100, 101, 900, 100_000):
        file.write_text('{"a": ' + (depth - 1) * "[" + (depth - 1) * "]" + "}")
        if depth > 100:
            refused(f"^{file} is not valid JSON .*; name another", read_json_object, file, "name another")
        else:
            read_json_object(file, "")


@pytest.mark.parametrize(
    "one, other, shown",
    [
        (1, "1", ("1", "'1'")),
        (f"{LONG}a{LONG}", f"{LONG}b{LONG}", (f"...{'x' * 100}a{'x' * 99}...", f"...{'x' * 100}b{'x' * 99}...")),
        (LONG, None, (f"'{'x' * 199}...", "None")),
        ("é", "e\u0301", (r"'\xe9'", r"'e\u0301'")),
    ],
)
def test_the_two_sides_of_a_difference_differ_as_shown(one, other, shown):
    assert contrast(one, other) == shown
