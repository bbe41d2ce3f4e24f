"""What `python -m tests.size` counts, in a house of three modules."""

from tests import size

MODULE = """class Base:
    length: int


class PretrainingConfig(Base):
    seed: int
    rate: float


def check_rate(rate):
    return rate


def double(rate, length):
    if rate < 0:
        raise ValueError(rate)
    doubled = 2 * rate
    doubled += length
    doubled -= length
    doubled += length
    doubled -= length
    return doubled
"""


def test_a_house_of_three_modules(tmp_path):
    (tmp_path / "bert_tf/contrib").mkdir(parents=True)
    (tmp_path / "bert_tf/a.py").write_text(MODULE)
    (tmp_path / "bert_tf/b.py").write_text("seed = rate = 1\n")  # names but one setting
    (tmp_path / "bert_tf/contrib/c.py").write_text("late = 1\n")  # a statement, a name and a number
    (tmp_path / "bert_tf/__init__.py").write_text("")
    figures = size.measure(tmp_path)
    num_lines = len(MODULE.splitlines()) + 2
    assert figures["product, Python"] == str(num_lines) and figures["modules"] == "3" and figures["classes"] == "2"
    numbers = [int(figures[f"expressions and statements{part}"]) for part in ("", " of the core")]
    assert numbers[0] == numbers[1] + 3 > 3
    assert figures["modules that the config of pre-training enters"] == "1"
    assert figures["refusals, share of lines"] == f"{4 / num_lines:.1%}"
