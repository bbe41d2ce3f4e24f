"""Numbers and switches as people type them."""

import pytest

from bert_tf.base.command_line import parse_number, parse_switch, parse_whole

NO_WHOLE = ["1_0", "", " 1", "1 ", "1.0", "1e3", "0x10", "٥", "--1", "9" * 19, "nan", "\n1"]
NO_NUMBER = ["1_0", "", " 1", "1e", "nan", "inf", "-inf", "0x1p3", "٥", ".", "e3", "1.2.3", "1e999"]


@pytest.mark.parametrize("parse, texts", [(parse_whole, NO_WHOLE), (parse_number, NO_NUMBER)])
def test_what_is_none(parse, texts):
    for text in texts:
        with pytest.raises(ValueError):
            parse(text)


def test_what_is_one():
    assert [parse_whole(text) for text in ("0", "-7", "+7", "007")] == [0, -7, 7, 7]
    assert [parse_number(text) for text in ("7.5e-4", "-1", ".5", "5.", "1E3")] == [7.5e-4, -1, 0.5, 5, 1000]
    assert [parse_switch(text) for text in ("1", "TRUE", "Yes", "0", "False", "no")] == [True] * 3 + [False] * 3
