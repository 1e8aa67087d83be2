"""Charts as SVG, and the HTML around them, for pages that load nothing: `webtext report` and `gpt2 plot`.

`markup` builds HTML and SVG, escapes its arguments, and has the style sheets; `drawing` and `curves` make charts of
numbers; `numbers` writes numbers as people read them. Nothing but the standard library is needed.
"""

from command_kit.charts.curves import at_width
from command_kit.charts.drawing import (
    Line,
    Spread,
    bar,
    histogram,
    intervals_chart,
    legend,
    lines_chart,
    plain_table,
    stacked,
    table,
)

__all__ = [
    "Line",
    "Spread",
    "at_width",
    "bar",
    "histogram",
    "intervals_chart",
    "legend",
    "lines_chart",
    "plain_table",
    "stacked",
    "table",
]
