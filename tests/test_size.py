"""What `python -m tests.size` counts, in a house of three modules."""

from tests import size

MODULE = """class PretrainingConfig(Base):
    seed: int
    rate: float


class Base:
    length: int


def double(rate, length):
    if rate < 0:
        raise ValueError(rate)
    length += rate + rate + rate + rate
    length -= rate + rate
    return length
"""


def test_a_house_of_three_modules(tmp_path):
    (tmp_path / "bert_tf/contrib").mkdir(parents=True)
    (tmp_path / "bert_tf/a.py").write_text(MODULE)
    (tmp_path / "bert_tf/b.py").write_text("seed = rate = 1\n")  # names but one setting
    (tmp_path / "bert_tf/contrib/c.py").write_text("late = 1\n")  # a statement, a name and a number
    (tmp_path / "bert_tf/__init__.py").write_text("")
    figures = size.measure(tmp_path)
    assert (figures["product, Python"], figures["modules"], figures["classes"]) == ("17", "3", "2")
    numbers = [int(figures[f"expressions and statements{part}"]) for part in ("", " of the core")]
    assert numbers[0] == numbers[1] + 3 > 3
    assert figures["modules that the config of pre-training enters"] == "1"
    assert figures["refusals, share of lines"] == f"{2 / 17:.1%}"
