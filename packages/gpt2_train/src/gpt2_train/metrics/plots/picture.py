"""Charts of runs as one SVG that stands alone, and as PNG made of it.

The SVG follows the reader's choice of a light or dark page; the PNG, for programs that show nothing else, is light.
"""

from __future__ import annotations

from collections.abc import Sequence

from command_kit.charts.curves import chart_of_width, legend_line
from command_kit.charts.markup import Markup, join, light_only, style_sheet, tag
from gpt2_train.config.errors import Gpt2Error
from gpt2_train.metrics.plots import Panel, legend_of, smoothing_note

WIDTH, MARGIN, GAP = 960, 28, 32
MAIN_HEIGHT, SMALL_HEIGHT, HEAD = 300, 180, 48
"""Heights of charts, and of the title above one, in pixels."""
LETTER = 7.2
"""Pixels that a letter of a legend takes on average, rather too many: its real width depends on the reader's fonts."""
STYLE = """
text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
text { fill: var(--ink); }
text.tick { fill: var(--soft); } text.title { font-size: 15px; font-weight: 600; } text.name { font-size: 13px; }
text.heading { font-size: 21px; font-weight: 650; }
text.note { font-size: 12px; fill: var(--soft); } rect.paper { fill: var(--card); }
"""

FONT = "DejaVu Sans"
"""Taken for a PNG, if the machine has it: another machine with it makes the same picture."""
SCALE = 2
"""Pixels of a PNG for each of the SVG, so that it is sharp on good screens."""


def svg(panels: Sequence[Panel], title: str) -> str:
    """The charts as one SVG text."""
    parts = [tag("text", title, class_="heading", x=MARGIN, y=MARGIN + 12)]
    y = MARGIN + 38.0
    if names := legend_of(panels):
        keys, y = _legend(names, y)
        parts.append(keys)
    if note := smoothing_note(panels):
        parts.append(tag("text", note, class_="note", x=MARGIN, y=y))
        y += 24
    x = MARGIN
    for place, panel in enumerate(panels):
        width = WIDTH - 2 * MARGIN if panel.is_main else (WIDTH - 2 * MARGIN - GAP) // 2
        height = MAIN_HEIGHT if panel.is_main else SMALL_HEIGHT
        parts.append(_panel(panel, x, y, width, height))
        following = panels[place + 1] if place + 1 < len(panels) else None
        if not panel.is_main and x == MARGIN and following is not None and not following.is_main:
            x += width + GAP
        else:
            x, y = MARGIN, y + HEAD + height + GAP / 2
    height = round(y)
    paper = tag("rect", class_="paper", width=WIDTH, height=height)
    style = tag("style", Markup(style_sheet("colours", "curves") + STYLE))
    whole = tag(
        "svg",
        tag("title", title),
        style,
        paper,
        join(parts),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {height}",
        width=WIDTH,
        height=height,
        role="img",
    )
    return f"{whole}\n"


def _legend(names: Sequence[tuple[str, int]], y: float) -> tuple[Markup, float]:
    """What each look means, in as many lines as are needed; and where the charts begin below it."""
    parts: list[Markup] = []
    x = float(MARGIN)
    for name, look in names:
        wide = 26 + 8 + LETTER * len(name) + 24
        if x > MARGIN and x + wide > WIDTH - MARGIN:
            x, y = float(MARGIN), y + 22
        parts += [legend_line(look, x, y + 1), tag("text", name, class_="name", x=x + 34, y=y + 5)]
        x += wide
    return join(parts), y + 28


def _panel(panel: Panel, x: float, y: float, width: float, height: int) -> Markup:
    return tag(
        "g",
        tag("text", panel.title, class_="title", x=x, y=y + 14),
        tag("text", panel.note, class_="note", x=x, y=y + 32),
        chart_of_width(panel.curves, panel.axes, x=x, y=y + HEAD - 6, width=width, height=height),
    )


def png(picture: str) -> bytes:
    """An SVG text of `svg` as a PNG. Raises Gpt2Error where the program for it, or any font, is missing."""
    try:
        import resvg_py
    except ImportError:
        raise Gpt2Error(
            "a PNG needs the package resvg-py: pip install 'webtext-gpt2[png]', or write an .svg or .html file."
        ) from None

    def draw(text: str) -> bytes:
        return bytes(resvg_py.svg_to_bytes(svg_string=text, zoom=SCALE, sans_serif_family=FONT, font_family=FONT))

    empty = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9">{}</svg>'
    if draw(empty.format('<text y="9">M</text>')) == draw(empty.format("")):
        raise Gpt2Error(
            "this machine has no fonts, a PNG would be without words: install some (Debian: apt-get install "
            "fonts-dejavu-core), or write an .svg or .html file."
        )
    return draw(light_only(picture))
