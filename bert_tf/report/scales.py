"""From many numbers to what can be drawn and read: thinning, means, ticks, values in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

Point = tuple[float, float]

MAX_POINTS = 400  # of a drawn line: more than a screen has columns for helps nobody


def nice_ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers (1, 2, 5 times a power of ten) over [low, high] in about `count` steps."""
    span = high - low
    if span <= 0:
        span = abs(high) or 1.0
        low, high = low - span / 2, high + span / 2
    raw = span / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.75)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def thin_out(points: list[Point], limit: int = MAX_POINTS) -> list[Point]:
    """At most about `limit` points that look like all of them: lowest and highest of each bucket.

    Non-finite values are kept where a bucket holds one, for the line has to break there.
    """
    if len(points) <= limit:
        return points
    num_buckets = max(limit // 2 - 1, 1)
    kept = [points[0]]
    inner = points[1:-1]
    for index in range(num_buckets):
        start, stop = (len(inner) * edge // num_buckets for edge in (index, index + 1))
        bucket = inner[start:stop]
        broken = [point for point in bucket if not math.isfinite(point[1])]
        finite = [point for point in bucket if math.isfinite(point[1])]
        chosen = broken[:1]
        if finite:
            chosen += {min(finite, key=_height), max(finite, key=_height)}
        kept += sorted(chosen)
    return [*kept, points[-1]]


def running_mean(points: list[Point]) -> list[Point]:
    """Mean over neighbours on both sides, 1/30 of all in width; shorter towards the ends."""
    reach = max(len(points) // 60, 1)
    sums, counts = [0.0], [0]
    for _, y in points:
        sums.append(sums[-1] + (y if math.isfinite(y) else 0.0))
        counts.append(counts[-1] + math.isfinite(y))
    result = []
    for index, (x, _) in enumerate(points):
        near = min(reach, index, len(points) - 1 - index)
        first, after = index - near, index + near + 1
        count = counts[after] - counts[first]
        result.append((x, (sums[after] - sums[first]) / count if count else math.nan))
    return result


def write_value(value: float, style: str) -> str:
    """A value as a reader wants it: three or four significant digits."""
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else "infinite"
    if style == "percent":
        return f"{100 * value:.3g} %"
    if value and not 1e-3 <= abs(value) < 1e6:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{float(mantissa):g}{_power_of_ten(int(exponent))}"
    digits = max(0, 3 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:,.{min(digits, 4)}f}".rstrip("0").rstrip(".") if digits else f"{value:,.0f}"


def write_ticks(ticks: Sequence[float], style: str) -> list[str]:
    """The ticks of one axis, all with the same power of ten and as many decimals as they need."""
    largest = max(abs(tick) for tick in ticks)
    if style == "percent":
        return [f"{100 * tick:g} %" for tick in ticks]
    if 1e-3 <= largest < 1e6:
        decimals = max(len(f"{tick:.10g}".partition(".")[2]) for tick in ticks)
        return [f"{tick:,.{decimals}f}" if tick else "0" for tick in ticks]
    exponent = math.floor(math.log10(largest) + 1e-9) if largest else 0
    power = _power_of_ten(exponent)
    return [f"{tick / 10.0**exponent:.4g}{power}" if tick else "0" for tick in ticks]


def _power_of_ten(exponent: int) -> str:
    digits = str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"·10{digits}"


def _height(point: Point) -> float:
    return point[1]
