"""The funnel as one picture: a stream as wide as there are documents, from which each drop reason branches off.

Widths are in proportion everywhere in one stream. Where it has become thin, the rest is drawn wider again, and the
picture says by how much. It is drawn for a width in pixels, so that text has the size it should: the page holds a wide
and a narrow one, of which the screen shows the one that fits. The same picture stands alone as a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from command_kit.charts.markup import Markup, tag
from command_kit.charts.numbers import count, share

LINE = 22
"""Pixels between two reasons."""
MOST_REASONS = 6
"""More are put together in the picture; the table has all of them."""
THIN = 0.12
"""Below this share of the full width the stream is drawn wider again."""


@dataclass(frozen=True)
class Level:
    """One stage of a funnel.

    Attributes:
        name: what it is called.
        read: what came in.
        kept: what went out.
        dropped: the reasons, the most frequent first, with how many were dropped for each.
        added: how many came into being, as documents were cut into pieces.
    """

    name: str
    read: int
    kept: int
    dropped: Sequence[tuple[str, int]] = field(default=())
    added: int = 0

    @property
    def widest(self) -> int:
        """How many documents the stream is wide where the stage begins."""
        return self.read + self.added


@dataclass(frozen=True)
class _Plan:
    """Where things are in a picture of one width, in pixels."""

    width: int
    stream: int  # x of its left edge
    full: int  # width of the stream at its widest
    reasons: int  # x of the reasons' names
    is_narrow: bool

    @classmethod
    def of(cls, width: int) -> _Plan:
        if width < 560:
            return cls(width, 0, round(0.36 * width), round(0.5 * width), True)
        full = min(round(0.48 * width), width - 424)
        return cls(width, 130, full, full + 130 + 54, False)


def draw_funnel(levels: Sequence[Level], *, width: int, end: str = "", style: str = "", kind: str = "funnel") -> Markup:
    """The picture of stages of which each reads what the one before it wrote.

    Args:
        levels: the stages, first to last.
        width: in pixels.
        end: what to write below the stream.
        style: a style sheet, for a picture that stands alone.
        kind: class of the whole.
    """
    plan = _Plan.of(width)
    shapes: list[Markup] = []
    y = 8.0
    scale = plan.full / max(1, *(level.widest for level in levels))
    for number, level in enumerate(levels):
        if number and level.read and level.read * scale < THIN * plan.full:
            widened = plan.full / max(later.widest for later in levels[number:])
            shapes.append(_widening(plan, y, level.read * scale, widened / scale))
            scale = widened
            y += 44
        drawn, y = _level(plan, level, y, scale)
        shapes += drawn
    last = levels[-1].kept * scale
    shapes.append(tag("rect", class_="node", x=plan.stream, y=y, width=max(last, 2), height=5, rx=2))
    y += 24
    if end:
        shapes.append(tag("text", end, class_="end", x=plan.stream, y=y))
        y += 6
    names = ", ".join(f"{level.name} {count(level.read)} to {count(level.kept)}" for level in levels)
    return tag(
        "svg",
        tag("title", f"Funnel: {names}"),
        tag("style", Markup(style)) if style else None,
        *shapes,
        xmlns="http://www.w3.org/2000/svg" if style else None,
        class_=kind,
        role="img",
        viewBox=f"0 0 {width} {y + 6:.0f}",
        width=width if style else None,
        height=round(y + 6) if style else None,
        **{"font-family": "system-ui, sans-serif"} if style else {},
    )


def _level(plan: _Plan, level: Level, y: float, scale: float) -> tuple[list[Markup], float]:
    """One stage from `y` down, and where the next begins."""
    shapes: list[Markup] = []
    x = plan.stream
    wide, kept = level.widest * scale, level.kept * scale
    figure = f"{count(level.read)}"
    if plan.is_narrow:
        y += 24
        shapes += [
            tag("text", level.name, class_="stage", x=0, y=y - 6),
            tag("text", figure, class_="figure", x=plan.reasons, y=y - 6),
        ]
    else:
        shapes += [
            tag("text", level.name, class_="stage", x=x - 18, y=y + 8, text_anchor="end"),
            tag("text", figure, class_="figure", x=x - 18, y=y + 27, text_anchor="end"),
        ]
    node = tag("rect", class_="node", x=x, y=round(y, 1), width=max(wide, 2.0), height=5, rx=2)
    y += 5
    reasons = _reasons(level)
    height = 0.0
    right = x + wide
    for name, number in reasons:
        thick = number * scale
        # A wide branch is drawn flatter where it has turned aside: it would fill the screen.
        flat = max(1.5, min(thick, 30 + 0.25 * thick))
        slot = max(LINE, flat + 4)
        middle = y + 16 + height + slot / 2
        shapes.append(
            _branch(
                right - max(thick, 1.5), right, y, plan.reasons - 10, middle - flat / 2, middle + flat / 2, name, number
            )
        )
        shapes.append(_reason(plan, name, number, level.read, middle + 4))
        right -= thick
        height += slot
    bottom = y + max(height + 26, 46)
    shapes.append(tag("rect", class_="stream", x=x, y=round(y, 1), width=max(kept, 1.5), height=round(bottom - y, 1)))
    return [*shapes, node], bottom


def _reason(plan: _Plan, name: str, number: int, of: int, y: float) -> Markup:
    letters = 18 if plan.is_narrow else 34
    short_name = name if len(name) <= letters else name[: letters - 1] + "…"
    return tag(
        "text",
        tag("title", name),
        short_name,
        tag("tspan", f"  {count(number)}", class_="figure"),
        None if plan.is_narrow else tag("tspan", f"  {share(number, of)}", class_="share"),
        class_="reason",
        x=plan.reasons,
        y=round(y, 1),
        **{"xml:space": "preserve"},
    )


def _branch(
    left: float, right: float, y: float, end: float, top: float, bottom: float, name: str, number: int
) -> Markup:
    """A band that leaves the stream downwards and turns to the right."""
    path = (
        f"M{right:.1f} {y:.1f} C{right:.1f} {top:.1f} {right:.1f} {top:.1f} {end:.1f} {top:.1f} "
        f"L{end:.1f} {bottom:.1f} C{left:.1f} {bottom:.1f} {left:.1f} {bottom:.1f} {left:.1f} {y:.1f} Z"
    )
    return tag("path", tag("title", f"{name}: {count(number)}"), class_="branch", d=path)


def _widening(plan: _Plan, y: float, thin: float, factor: float) -> Markup:
    """A thin stream that is drawn wider from here on."""
    x, shown = plan.stream, f"{factor:,.0f}" if factor >= 10 else f"{factor:.1f}".removesuffix(".0")
    path = f"M{x} {y:.1f} L{x + max(thin, 1.5):.1f} {y:.1f} L{x + plan.full} {y + 40:.1f} L{x} {y + 40:.1f} Z"
    return tag(
        "g",
        tag("path", class_="widening", d=path),
        tag("text", f"drawn {shown} times wider", class_="share", x=plan.reasons, y=round(y + 34, 1)),
    )


def _reasons(level: Level) -> list[tuple[str, int]]:
    ordered = sorted(level.dropped, key=lambda item: (-item[1], item[0]))
    if len(ordered) <= MOST_REASONS:
        return ordered
    rest = ordered[MOST_REASONS - 1 :]
    return [*ordered[: MOST_REASONS - 1], (f"{len(rest)} other reasons", sum(number for _, number in rest))]
