"""Charts of training runs: which there are, one for each quantity with a curve for each run; the others draw them.

The losses of a single run share a chart; several runs have a chart for each, which would be hard to read otherwise. As
a curve of text (`loss_curves`) they stand at the end of `gpt2 train`, and are what `gpt2 plot` draws without --output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TextIO

from command_kit.charts.curves import Axes, Curve, Show, scales_of, smoothed
from command_kit.charts.numbers import short
from command_kit.charts.terminal import MARKS, can_show, text_curves
from command_kit.colours import columns_of
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.metrics.records import Moment, RecordedRun

Across = Literal["steps", "tokens", "time"]
SMOOTHED_SHARE = 50
"""The number of points of a smoothed curve without --smooth: each is the mean of as many rows."""


@dataclass(frozen=True)
class Quantity:
    """Something that is drawn.

    Attributes:
        key: what --only calls it.
        field: its name in `metrics.jsonl`.
        title: of its chart.
        unit: of its values.
        is_noisy: whether it is smoothed.
        from_zero: whether its axis begins at 0.
        show: writes its values.
    """

    key: str
    field: str
    title: str
    unit: str
    is_noisy: bool = False
    from_zero: bool = False
    show: Show = short


def _four_digits(value: float) -> str:
    return f"{value:.4g}"


def _rate(value: float) -> str:
    """Two digits, and a power of ten for what would begin with many zeros: `2.5e-4`."""
    if value == 0 or value >= 0.001:
        return f"{value:.2g}"
    number, _, power = f"{value:.1e}".partition("e")
    return f"{number.removesuffix('.0')}e{int(power)}"


LOSS = Quantity("loss", "loss", "Training loss", "nats per token", is_noisy=True, show=_four_digits)
VALIDATION = Quantity("validation", "valid_loss", "Validation loss", "nats per token", show=_four_digits)
QUANTITIES = (
    LOSS,
    VALIDATION,
    Quantity("learning-rate", "lr", "Learning rate", "", from_zero=True, show=_rate),
    Quantity("throughput", "tokens_per_second", "Throughput", "tokens per second", is_noisy=True, from_zero=True),
    Quantity("gradient-norm", "grad_norm", "Gradient norm", "before clipping", is_noisy=True, from_zero=True),
)
TASKS = "tasks"
KEYS = (*(quantity.key for quantity in QUANTITIES), TASKS)


@dataclass(frozen=True)
class Panel:
    """One chart.

    Attributes:
        title: what it shows.
        note: its unit and its axes.
        curves: at least one.
        axes: that hold them.
        windows: logged rows that a point of each is the mean of.
        is_main: whether it is large.
    """

    title: str
    note: str
    curves: Sequence[Curve]
    axes: Axes
    windows: Sequence[int]
    is_main: bool = False


@dataclass(frozen=True)
class View:
    """The way in which runs are shown.

    Attributes:
        across: the axis below.
        only: keys of quantities; all if empty.
        log: keys of quantities on a logarithmic axis.
        smooth: rows that a point of a noisy quantity is the mean of; None for a share of the run's rows.
    """

    across: Across = "steps"
    only: tuple[str, ...] = ()
    log: tuple[str, ...] = ()
    smooth: int | None = None


def panels_of(runs: Sequence[RecordedRun], view: View) -> list[Panel]:
    """The charts of `runs`, in order. Raises Gpt2UsageError where no run has anything of what was asked for."""
    wanted = [quantity for quantity in QUANTITIES if not view.only or quantity.key in view.only]
    if not view.only or TASKS in view.only:
        wanted += _tasks(runs)
    place, unit, show = _across(runs, view.across)
    both = len(runs) == 1 and all(
        quantity in wanted and runs[0].values.get(quantity.field) for quantity in (LOSS, VALIDATION)
    )
    groups = [(LOSS, VALIDATION)] if both else []
    groups += [(quantity,) for quantity in wanted if not (both and quantity in (LOSS, VALIDATION))]  # type: ignore[misc]
    panels = [_panel(group, runs, view, place, unit, show) for group in groups]
    found = [panel for panel in panels if panel is not None]
    if not found:
        raise Gpt2UsageError(f"nothing was recorded yet of {', '.join(view.only) or 'these runs'}: nothing to draw.")
    return found


def _tasks(runs: Iterable[RecordedRun]) -> list[Quantity]:
    names = dict.fromkeys(name for run in runs for name in run.values if "/" in name)
    found = []
    for name in names:
        task, _, figure = name.rpartition("/")
        kind, _, source = task.partition(":")
        title = f"{kind} ({source})" if source else kind
        found.append(Quantity(TASKS, name, f"{title}: {figure.replace('_', ' ')}", "", show=_four_digits))
    return found


def _across(runs: Sequence[RecordedRun], across: Across) -> tuple[Callable[[Moment], float], str, Show]:
    """(place on the axis below of a moment, the axis's name, what writes its values)."""
    if across == "steps":
        return (lambda place: place.step), "by step", short
    if across == "tokens":
        return (lambda place: place.tokens), "by tokens seen", short
    longest = max(run.last.seconds for run in runs)
    size, unit = next(((size, unit) for size, unit in _UNITS if longest >= 2 * size), (1.0, "seconds"))
    return (lambda place: place.seconds / size), f"by {unit} of training", lambda value: f"{value:.3g}"


_UNITS = ((3600.0, "hours"), (60.0, "minutes"))


def _panel(
    group: Sequence[Quantity],
    runs: Sequence[RecordedRun],
    view: View,
    place: Callable[[Moment], float],
    across: str,
    show: Show,
) -> Panel | None:
    first = group[0]
    curves, windows = [], []
    for look, run in enumerate(runs):
        for number, quantity in enumerate(group):
            points = [(place(at), value) for at, value in run.values.get(quantity.field, ())]
            if quantity.key in view.log:
                points = [(x, y) for x, y in points if y > 0]
            if not points:
                continue
            window = _window(len(points), view.smooth) if quantity.is_noisy else 1
            name = quantity.title.lower() if len(group) > 1 else run.name
            faint = points if window > 1 else ()
            dots = not quantity.is_noisy and quantity.key != "learning-rate"
            curves.append(Curve(name, look + number, smoothed(points, window), faint, dots))
            windows.append(window)
    if not curves:
        return None
    is_log = first.key in view.log
    horizontal, up = scales_of(curves, log=is_log, from_zero=first.from_zero and not is_log)
    notes = [first.unit, across, "log axis" if is_log else ""]
    title = "Loss" if len(group) > 1 else first.title
    is_main = first in (LOSS, VALIDATION)
    axes = Axes(horizontal, up, show, first.show)
    return Panel(title, ", ".join(filter(None, notes)), curves, axes, windows, is_main)


def _window(rows: int, smooth: int | None) -> int:
    """Rows of a mean: an odd number, so that as many lie before a point as after it."""
    window = rows // SMOOTHED_SHARE if smooth is None else smooth
    return window + 1 - window % 2


def smoothing_note(panels: Iterable[Panel]) -> str:
    """The sentence on how curves were smoothed; empty if none was."""
    used = sorted({window for panel in panels for window in panel.windows if window > 1})
    if not used:
        return ""
    rows = f"{used[0]:,}" if len(used) == 1 else f"{used[0]:,} to {used[-1]:,}"
    return f"Bold lines are means of {rows} logged rows, thin lines are as logged."


def legend_of(panels: Iterable[Panel]) -> list[tuple[str, int]]:
    """The names that need a legend, each with its look: names in charts of several curves."""
    several = (panel.curves for panel in panels if len(panel.curves) > 1)
    return list(dict.fromkeys((curve.name, curve.look) for curves in several for curve in curves))


ROWS, WIDEST = 7, 110


def loss_curves(runs: Sequence[RecordedRun], stream: TextIO) -> str:
    """The training and validation losses of each run, as wide as `stream`, in characters that it can show."""
    plain = not can_show(stream.encoding)
    return "\n\n".join("\n".join(loss_curve(run, min(columns_of(stream), WIDEST), plain=plain)) for run in runs)


def loss_curve(run: RecordedRun, columns: int, *, plain: bool = False) -> list[str]:
    """Lines of text with the losses of one run; only what was measured last if there is nothing to draw yet."""
    training, validation = (
        [(float(place.step), value) for place, value in run.values.get(name, ())] for name in ("loss", "valid_loss")
    )
    window = max(1, len(training) // SMOOTHED_SHARE)
    lines = text_curves(
        [smoothed(training, window), validation],
        columns=columns,
        rows=ROWS,
        plain=plain,
        show_up=lambda value: f"{value:.2f}",
        show_across=lambda step: f"{step:,.0f}",
    )
    last = [f"training loss {training[-1][1]:.4f} (line)"] if training else []
    last += [f"validation loss {validation[-1][1]:.4f} ({MARKS[1]})"] if validation else []
    head = f"{run.name}: {', '.join(last) or 'no loss logged yet'}, step {run.last.step:,}"
    return [head, *lines]
