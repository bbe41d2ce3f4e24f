"""The useful share of a run's time."""

import json

import pytest

from bert_tf.run.events import read_events
from bert_tf.run.goodput import measure_goodput


def event(kind, time, update, **fields):
    return {"event": kind, "time_unix": 1e9 + time, "update": update, **fields}


def trained(time, update, update_secs=10.0):
    return event("train", time, update, update_secs=update_secs)


# Ten updates of 10 s. The first start compiles for 20 s, waits 5 s for a checkpoint of update 4, and is killed after
# update 6; 95 s later the run goes on from 4, compiles 10 s, and is evaluated for 100 s.
KILLED = [
    event("start", 0, 0),
    trained(40, 2, 20.0),
    trained(60, 4),
    event("checkpoint", 65, 4, secs=5.0, write_secs=9.0),
    trained(85, 6),
    event("start", 180, 4),
    event("warning", 181, 4),
    trained(220, 6, 15.0),
    trained(240, 8),
    trained(260, 10),
    event("checkpoint", 270, 10, secs=10.0, write_secs=10.0),
    event("evaluation", 370, 10),
    event("end", 371, 10),
]


def test_a_run_that_was_killed():
    found = measure_goodput(KILLED)
    assert found == (270.0, 100.0, 20.0, 15.0, 95.0, 1)
    assert found.useful_share == pytest.approx(100 / 270)
    assert found.describe() == (
        "37.0% of 4.5 min in 2 starts; updates lost and repeated 7.4%, waiting for checkpoints 5.6%, "
        "between starts 35.2%, starting, compiling and the rest 14.8%"
    )


def test_updates_between_the_last_report_and_the_checkpoint_count():
    """Of the updates 5 and 6, which the next start does not repeat, no report was left."""
    found = measure_goodput([*KILLED[:4], event("start", 100, 6), trained(120, 8), trained(140, 10)])
    assert found.useful_secs == 100.0 and found.repeated_secs == 0.0


def test_a_run_that_nobody_disturbed_and_one_report_alone():
    assert measure_goodput([event("start", 0, 0), trained(10, 1), trained(20, 2)]) == (20.0, 20.0, 0.0, 0.0, 0.0, 0)
    assert measure_goodput([event("start", 0, 0), trained(16, 1, 15.0)]).useful_secs == 15.0
    assert "in 1 start; " in measure_goodput([event("start", 0, 0), trained(16, 1)]).describe()


def test_what_a_damaged_log_may_hold(tmp_path):
    def read(*lines):
        (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
        return read_events(tmp_path)

    sound = [json.dumps(each) for each in KILLED]
    broken = [
        "",
        "{",
        "[" * 100_000,
        "{}",
        '{"event": "train"}',
        json.dumps(event("train", 5, "x")),
        json.dumps(event("train", 1e12, 1)),
        json.dumps(event("train", 5, 1)),
        json.dumps(event("train", 5, 1, update_secs="NaN")),
        json.dumps(event("train", 5, 1, update_secs=10**400)),
    ]
    assert len(read(*broken)) == 3 and measure_goodput(read(*broken)) is None
    assert measure_goodput([]) is None and measure_goodput([event("start", 0, 0), event("end", 9, 0)]) is None
    found = read(*sound[:3], *broken, *sound[3:], sound[-1][:-9])
    assert len(found) == len(KILLED) + 3 and measure_goodput(found).useful_secs == 100.0
    assert read_events(tmp_path / "nowhere") == []
