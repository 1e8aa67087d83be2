"""Charts as SVG that fills the width it is given: positions across are shares of the width, text keeps its size.

Shapes that can't be given in shares (lines, areas) lie in an inner SVG that is stretched, and whose strokes are not.
Colours are classes of the page's style sheet. Each chart has a title for screen readers, and the numbers below
it in a table that can be opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from command_kit.charts.markup import Markup, join, tag
from command_kit.charts.numbers import Point, Scale, at_width, nice_steps, short

TOP, BOTTOM = 14, 26
"""Pixels above the highest line of a chart, and below its lowest."""

Show = Callable[[float], str]


def bar(value: float, most: float, kind: str = "kept") -> Markup:
    """A bar across a table's cell: `value` of `most`."""
    return stacked([(value, kind, "")], most)


def cell(value: str, part: str, number: float, most: float, kind: str = "kept") -> Markup:
    """A number in a table, with its share of the whole, over a bar."""
    return join([tag("span", tag("b", value), " ", tag("i", part), class_="number"), bar(number, most, kind)])


def bars(head: Sequence[str], rows: Iterable[Sequence[object]], kind: str = "bars") -> Markup:
    """A table whose numbers have bars next to them."""
    body = (tag("tr", tag("td", first, class_="name"), *(tag("td", cell) for cell in rest)) for first, *rest in rows)
    top = tag("tr", *(tag("th", name, scope="col", class_="name" if not at else None) for at, name in enumerate(head)))
    return tag("table", tag("thead", top), tag("tbody", *body), class_=kind)


def stacked(parts: Iterable[tuple[float, str, str]], most: float) -> Markup:
    """A bar of several parts, each (value, class, what it is)."""
    shapes: list[Markup] = []
    start = 0.0
    for value, kind, name in parts:
        if value > 0 and most > 0:
            wide = max(100 * value / most, 0.15)
            title = tag("title", name) if name else None
            shapes.append(
                tag("rect", title, class_=f"fill-{kind}", x=f"{start:.2f}%", y=0, width=f"{wide:.2f}%", height="100%")
            )
            start += wide
    return tag("svg", *shapes, class_="bar", width="100%", height=10, aria_hidden="true")


def legend(entries: Iterable[tuple[str, str]]) -> Markup:
    """Colours and what they mean, each (class, name)."""
    items = (
        tag(
            "li",
            tag(
                "svg",
                tag("rect", class_=f"fill-{kind}", width=10, height=10, rx=2),
                width=10,
                height=10,
                aria_hidden="true",
            ),
            name,
        )
        for kind, name in entries
    )
    return tag("ul", *items, class_="legend")


def table(head: Sequence[object], rows: Iterable[Sequence[object]], summary: str = "Numbers") -> Markup:
    """The numbers of a chart, to be opened."""
    return tag("details", tag("summary", summary), plain_table(head, rows))


def plain_table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> Markup:
    """A table that scrolls by itself where it is too wide."""
    return tag(
        "div",
        tag(
            "table",
            tag("thead", tag("tr", *(tag("th", name, scope="col") for name in head))),
            tag("tbody", *(tag("tr", *(tag("td", cell) for cell in row)) for row in rows)),
        ),
        class_="scroll",
        tabindex=0,
    )


@dataclass(frozen=True)
class _Plot:
    """The places of values in a chart of a width in pixels: shares of its width, and pixels from its top."""

    horizontal: Scale
    vertical: Scale
    height: int

    @property
    def inner(self) -> int:
        """Pixels from the highest to the lowest line."""
        return self.height - TOP - BOTTOM

    def across(self, x: float) -> float:
        """The place in per cent of the width."""
        return 100 * self.horizontal.share(x)

    def down(self, y: float) -> float:
        """The place in pixels."""
        return round(TOP + self.inner * (1 - self.vertical.share(y)), 1)

    def grid(self, levels: Iterable[float], show: Show, *, at_end: bool) -> tuple[list[Markup], list[Markup]]:
        """Lines across at some values, and their labels, at the left or at the right end."""
        places = [(value, self.down(value)) for value in levels]
        lines = [tag("line", class_="grid", x1=0, x2="100%", y1=place, y2=place) for _, place in places]
        at, anchor = ("100%", "end") if at_end else (0, "start")
        return lines, [_text(show(value), at, place - 4, "tick level", anchor) for value, place in places]

    def axis(self, values: Iterable[float], show: Show) -> list[Markup]:
        """The axis below, with some values."""
        places = [(self.across(value), show(value)) for value in values]
        anchors = ["start" if at < 4 else "end" if at > 96 else "middle" for at, _ in places]
        return [
            *(
                _text(name, f"{at:.2f}%", self.height - 8, "tick", anchor)
                for (at, name), anchor in zip(places, anchors, strict=True)
            ),
            tag("line", class_="axis", x1=0, x2="100%", y1=TOP + self.inner, y2=TOP + self.inner),
        ]


def histogram(
    columns: Sequence[tuple[float, float, float]],
    *,
    title: str,
    kind: str = "kept",
    show: Show = short,
    mark: tuple[float, str] | None = None,
    log: bool = True,
    height: int = 200,
) -> Markup:
    """A chart of columns, each (from, to, count).

    Args:
        columns: without gaps; of equal ratio with `log`, else of equal width.
        title: what the chart shows.
        kind: class of the columns.
        show: writes a value of the axis below.
        mark: a value to point out, and its name.
        log: whether the axis below is one of orders of magnitude.
        height: in pixels.
    """
    counts = [count for _, _, count in columns]
    plot = _Plot(Scale(columns[0][0], columns[-1][1], log), Scale(0, max(counts)), height)
    # Values are written where the columns are lower.
    third = -(-len(columns) // 3)
    at_end = sum(counts[-third:]) <= sum(counts[:third])
    lines, written = plot.grid(nice_steps(plot.vertical.high), short, at_end=at_end)
    shapes = [_column(plot, low, high, count, kind, show) for low, high, count in columns if count]
    axis = plot.axis(plot.horizontal.ticks(), show)
    return _chart(title, height, *lines, *shapes, *written, *axis, *(_pointer(plot, *mark) if mark else ()))


def _column(plot: _Plot, low: float, high: float, count: float, kind: str, show: Show) -> Markup:
    left, right = plot.across(low), plot.across(high)
    tall = max(TOP + plot.inner - plot.down(count), 1)
    return tag(
        "rect",
        tag("title", f"{show(low)} to {show(high)}: {short(count)}"),
        class_=f"fill-{kind}",
        x=f"{left + 0.06 * (right - left):.2f}%",
        width=f"{0.88 * (right - left):.2f}%",
        y=round(TOP + plot.inner - tall, 1),
        height=round(tall, 1),
    )


def _pointer(plot: _Plot, value: float, name: str) -> list[Markup]:
    """A dashed line down at a value, and its name."""
    at = plot.across(value)
    place = f"{at:.2f}%"
    return [
        tag("line", class_="mark", x1=place, x2=place, y1=TOP - 4, y2=TOP + plot.inner),
        _text(name, place, TOP - 4, "mark-name", "end" if at > 50 else "start", 5),
    ]


@dataclass(frozen=True)
class Spread:
    """A row of a chart of intervals.

    Attributes:
        name: what stands above it.
        kind: its class in the style sheet.
        points: single values, a dot each.
        value: the estimate.
        low, high: the ends of its interval.
    """

    name: str
    kind: str
    points: Sequence[float]
    value: float
    low: float
    high: float


SPREAD_HEIGHT = 44
"""Pixels of a row of a chart of intervals."""


def intervals_chart(rows: Sequence[Spread], *, title: str, show: Show = short) -> Markup:
    """Rows of values over a common axis with a line at 0: a dot for each, a bar from end to end of the interval.

    Args:
        rows: at least one.
        title: what the chart shows.
        show: writes a value.
    """
    scale = Scale.of([0.0, *(end for row in rows for end in (*row.points, row.low, row.high))], room=0.05)
    height = TOP + SPREAD_HEIGHT * len(rows) + BOTTOM
    plot = _Plot(scale, Scale(0, 1), height)
    zero = f"{plot.across(0):.2f}%"
    shapes = [tag("line", class_="mark", x1=zero, x2=zero, y1=TOP, y2=TOP + plot.inner)]
    for number, row in enumerate(rows):
        middle = TOP + SPREAD_HEIGHT * number + 30
        left, right, at = (plot.across(value) for value in (row.low, row.high, row.value))
        told = tag("title", f"{show(row.value)} [{show(row.low)}, {show(row.high)}]")
        bar_of = {
            "x": f"{left:.2f}%",
            "width": f"{max(right - left, 0.2):.2f}%",
            "y": middle - 5,
            "height": 10,
            "rx": 5,
        }
        shapes += [
            _text(row.name, 0, middle - 14, "tick", "start"),
            tag("rect", told, class_=f"fill-{row.kind}", fill_opacity=0.25, **bar_of),
            tag("rect", class_=f"fill-{row.kind}", x=f"{at:.2f}%", width=2, y=middle - 8, height=16),
            *(_spread_dot(plot, row, value, middle, show) for value in row.points),
        ]
    return _chart(title, height, *shapes, *plot.axis(scale.ticks(3), show))


def _spread_dot(plot: _Plot, row: Spread, value: float, middle: float, show: Show) -> Markup:
    title = tag("title", show(value))
    return tag("circle", title, class_=f"dot dot-{row.kind}", r=3, cx=f"{plot.across(value):.2f}%", cy=middle)


MOST_DOTS = 60
"""Points of a curve that are marked, if they are not more."""


def curves_chart(
    curves: Sequence[tuple[str, Sequence[Point]]], *, title: str, height: int, show: Show, from_zero: bool = False
) -> Markup:
    """Curves over common axes, that across from 0 on.

    Args:
        curves: the class of each in the style sheet, and its points in the order of x.
        title: what the chart shows.
        height: in pixels.
        show: writes a value of the axis up.
        from_zero: whether that axis begins at 0, too.
    """
    points = [point for _, some in curves for point in some]
    up = Scale.of((y for _, y in points), from_zero=from_zero, room=0.05)
    plot = _Plot(Scale.of((x for x, _ in points), from_zero=True), up, height)
    lines, written = plot.grid(up.ticks(max(2, round(height / 45))), show, at_end=True)
    shapes: list[Markup] = []
    for kind, some in curves:
        places = [(plot.across(x), plot.down(y)) for x, y in at_width(some)]
        if len(places) > 1:
            path = tag("polyline", class_=f"curve curve-{kind}", points=" ".join(f"{x:.2f},{y}" for x, y in places))
            stretched = {"viewBox": f"0 0 100 {height}", "preserveAspectRatio": "none"}
            shapes.append(tag("svg", path, width="100%", height=height, **stretched))
        if len(some) <= MOST_DOTS:
            shapes += [tag("circle", class_=f"dot dot-{kind}", r=3, cx=f"{x:.2f}%", cy=y) for x, y in places]
    return _chart(title, height, *lines, *shapes, *written, *plot.axis(plot.horizontal.ticks(5), short))


def _text(text: object, x: object, y: float, kind: str, anchor: str, dx: int = 0) -> Markup:
    shift = (dx if anchor == "start" else -dx) or None
    return tag("text", text, class_=kind, x=x, y=y, dx=shift, text_anchor=None if anchor == "start" else anchor)


def _chart(title: str, height: int, *children: object) -> Markup:
    return tag("svg", tag("title", title), join(children), class_="chart", role="img", width="100%", height=height)
