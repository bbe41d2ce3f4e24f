"""200 updates of a small model follow the committed curves, in fp32 and bf16.

The curves are those of one seed. Other processors, libraries and splits of the batch round otherwise, so the limits
are in units of the spread (standard deviation) of eight seeds at each point: what stays near the curve is the same
training, where another seed would be one of them away. New curves: `PYTHONPATH=. python tests/convergence.py`.
"""

import json
import statistics

import pytest

from bert_tf.ranks.workers import Workers
from bert_tf.run.device import has_fast_bf16
from tests.convergence import GOLDEN, LOSSES, read_curve, train, write_data

PRECISIONS = ["fp32", *(["bf16"] if has_fast_bf16() else [])]
# Of the mean and of the largest. bf16's roundings grow within 100 updates; without oneDNN fp32 stays within 0.01.
LIMITS = {"fp32": (0.1, 0.5), "bf16": (0.5, 3.0)}
WHEN_TO_CHANGE = (
    "New curves are legitimate only if the recipe was meant to change (initial weights, dropout, order, schedule, "
    "optimizer) and CHANGELOG.md says so; then run: PYTHONPATH=. python tests/convergence.py"
)


def check(precision, found):
    """Fails where a curve leaves the golden one."""
    golden = json.loads(GOLDEN.read_text())[precision]
    for name in LOSSES:
        curves = zip(found[name], golden[name]["curve"], golden[name]["spread"])
        apart = [abs(value - expected) / max(spread, 0.01) for value, expected, spread in curves]
        mean_limit, limit = LIMITS[precision]
        assert len(apart) == 20 and statistics.mean(apart) <= mean_limit and max(apart) <= limit, (
            f"{name} in {precision} is {statistics.mean(apart):.2f} times the spread of seeds away from {GOLDEN.name} "
            f"(at most {max(apart):.2f}); means of ten updates each: {found[name]}. {WHEN_TO_CHANGE}"
        )


@pytest.mark.parametrize(
    "precision", [pytest.param(each, marks=[pytest.mark.computes] if each == "fp32" else []) for each in PRECISIONS]
)
def test_one_rank_learns_as_it_did(tmp_path, precision):
    write_data(tmp_path / "data.tfrecord")
    train(tmp_path, Workers(), precision)
    check(precision, read_curve(tmp_path, precision, 1))
