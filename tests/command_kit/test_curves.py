"""Curves: what is kept of many points, smoothing, axes, and curves as text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_kit.charts.drawing import curves_chart
from command_kit.charts.numbers import Scale, at_width, smoothed
from command_kit.charts.terminal import can_show, text_curves

values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300)


@given(values, st.integers(1, 20))
def test_the_lowest_and_highest_of_many_points_stay_visible(ys: list[float], columns: int) -> None:
    """Means of neighbours would hide a spike of one step."""
    points = [(float(x), y) for x, y in enumerate(ys)]
    shown = at_width(points, columns)
    assert len(shown) <= 4 * (columns + 1)
    assert shown == sorted(set(shown) & set(points))
    assert {points[0], points[-1]} <= set(shown)
    assert min(y for _, y in shown) == min(ys) and max(y for _, y in shown) == max(ys)


@given(values, st.integers(1, 50))
def test_a_smoothed_curve_stays_between_its_extremes_and_keeps_its_ends(ys: list[float], window: int) -> None:
    points = [(float(x), y) for x, y in enumerate(ys)]
    found = smoothed(points, window)
    assert [x for x, _ in found] == [x for x, _ in points]
    room = 1e-6 * max(map(abs, ys), default=0) + 1e-9
    assert all(min(ys) - room <= y <= max(ys) + room for _, y in found)
    assert found[0][1] == pytest.approx(ys[0], abs=room) and found[-1][1] == pytest.approx(ys[-1], abs=room)


def test_smoothing_is_the_mean_of_the_neighbours_on_both_sides() -> None:
    assert smoothed([(0, 0.0), (1, 3.0), (2, 6.0), (3, 0.0)], 3) == [(0, 0.0), (1, 3.0), (2, 3.0), (3, 0.0)]


@given(st.floats(1e-6, 1e6), st.floats(1.001, 1e6), st.booleans())
def test_an_axis_has_round_values_between_its_ends(low: float, ratio: float, log: bool) -> None:
    scale = Scale(low, low * ratio, log)
    ticks = scale.ticks(4)
    assert all(scale.low * 0.999 <= tick <= scale.high * 1.001 for tick in ticks)
    shares = [scale.share(tick) for tick in ticks]
    assert shares == sorted(shares) and len(ticks) <= 12
    assert scale.share(scale.low) == 0 and scale.share(scale.high) == pytest.approx(1)


def test_a_log_axis_gives_equal_ratios_equal_lengths() -> None:
    scale = Scale(1, 100, log=True)
    assert scale.share(10) == pytest.approx(0.5)
    assert scale.ticks(4) == [1, 2, 5, 10, 20, 50, 100]


def test_scales_of_nothing_of_one_value_and_of_zeros() -> None:
    assert Scale.of([]).low < Scale.of([]).high
    assert Scale.of([3.0]).low < 3 < Scale.of([3.0]).high
    assert Scale.of([0.0, 0.0]).low < Scale.of([0.0, 0.0]).high


def test_a_chart_puts_points_where_its_axes_say() -> None:
    chart = curves_chart([("c1", [(0, 0.0), (10, 1.0)])], title="x", height=140, show=str, from_zero=True)
    (points,) = re.findall(r'points="([^"]*)"', chart)
    assert points == "0.00,114.0 100.00,18.8"
    scale = Scale.of([0.0, 1.0], room=0.05)
    assert scale.low < 0 < 1 < scale.high


def test_a_falling_curve_falls_as_text() -> None:
    lines = text_curves(
        [[(0, 2.0), (50, 1.0), (100, 0.0)], [(100, 0.0)]],
        columns=30, rows=5, plain=True, show_up=lambda y: f"{y:.0f}", show_across=lambda x: f"{x:.0f}",
    )  # fmt: skip
    assert lines == [
        "2 |....",
        "  |    ......",
        "1 |          .......",
        "  |                 ......",
        "0 |                       ...o",
        "  +---------------------------",
        "   0                       100",
    ]


def test_text_is_as_wide_as_asked_and_in_ascii_where_that_is_all_there_is() -> None:
    curve = [(float(x), 5.0 / (1 + x)) for x in range(1000)]
    for plain in (True, False):
        lines = text_curves([curve], columns=60, plain=plain, show_up=str, show_across=str)
        assert max(map(len, lines)) == 60
        assert all(line.isascii() for line in lines) is plain
    assert can_show("utf-8") and not can_show("ascii") and not can_show("latin-1") and not can_show(None)
    assert text_curves([[(1, 1.0)]], columns=60, show_up=str, show_across=str) == []
