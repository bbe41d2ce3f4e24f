"""The picture of pre-training's curves."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from bert_tf.report import write_curve
from bert_tf.report.curve import ticks
from tests.test_report import make_run, start, train, whole_phase

SVG = "{http://www.w3.org/2000/svg}"


def test_both_phases_with_their_held_out_values(tmp_path):
    folders = [whole_phase(tmp_path / "phase_1"), whole_phase(tmp_path / "phase_2", settings={"max_seq_length": 512})]
    write_curve([*folders, tmp_path / "absent"], tmp_path / "curve.svg")
    picture = ElementTree.parse(tmp_path / "curve.svg").getroot()
    texts = [element.text for element in picture.iter(f"{SVG}text")]
    for expected in ("Total loss (MLM + NSP)", "Masked-word accuracy", "Phase 1, length 128", "Phase 2, length 512"):
        assert expected in texts
    assert texts.count("6.625") == 2 and texts.count("23.8 %") == 2
    dots = [float(dot.get("cx")) for dot in picture.iter(f"{SVG}circle")]
    assert dots == [310, 564, 930, 1184]  # after 100 and 200 of 200 updates, in either panel


def test_runs_that_have_hardly_begun_or_broke(tmp_path):
    broken = [train(update, total_loss="NaN", mlm_accuracy=0.0) for update in range(1, 200)]
    folders = [make_run(tmp_path / "begun", [start()]), make_run(tmp_path / "broken", [start(), *broken])]
    for shown in ([], folders[:1], folders):
        write_curve(shown, tmp_path / "curve.svg")
        assert "nan" not in (tmp_path / "curve.svg").read_text().lower()
        ElementTree.parse(tmp_path / "curve.svg")


@pytest.mark.parametrize(
    "low, high, expected",
    [(1.9, 8, [2, 4, 6, 8]), (0, 0.74, [0, 0.2, 0.4, 0.6]), (0, 1980, [0, 500, 1000, 1500]), (3, 3, [3])],
)
def test_ticks_are_round(low, high, expected):
    assert ticks(low, high) == expected
