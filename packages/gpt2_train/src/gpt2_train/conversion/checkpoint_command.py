"""`gpt2 checkpoint`: compare two models tensor by tensor (`diff`), and check the files of checkpoints (`verify`).

Exit codes are as in `cmp` and `diff`: 0 for equal or whole, 1 for different or damaged, 2 for what can't be read as
a model or checkpoint at all.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
from collections.abc import Callable
from typing import Any

from command_kit import Progress, add_flags, setting, settings_from
from gpt2_train.config.errors import Gpt2UsageError

EXAMPLE = """\
example:
  gpt2 checkpoint diff runs/first runs/first                       equal: exit code 0
  gpt2 checkpoint verify runs/first                                all checkpoints of a run
"""


@dataclasses.dataclass(frozen=True)
class DiffSettings:
    """The settings of `gpt2 checkpoint diff`. Raises Gpt2UsageError if a model is missing."""

    first: str = setting("", "a model in any known format", metavar="A", positional=True)
    second: str = setting("", "the model to compare it with", metavar="B", positional=True)

    def __post_init__(self) -> None:
        if not self.first or not self.second:
            raise Gpt2UsageError("gpt2 checkpoint diff needs A and B: give the two models to compare.")


@dataclasses.dataclass(frozen=True)
class VerifySettings:
    """The settings of `gpt2 checkpoint verify`. Raises Gpt2UsageError without a folder."""

    folder: str = setting("", "a run, its checkpoints folder, or one checkpoint", metavar="DIR", positional=True)

    def __post_init__(self) -> None:
        if not self.folder:
            raise Gpt2UsageError("gpt2 checkpoint verify needs DIR: give a run or a checkpoint.")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the commands of `gpt2 checkpoint` and their flags."""
    parser.epilog = EXAMPLE
    commands = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, (settings, _, summary) in ACTIONS.items():
        description = summary[0].upper() + summary[1:] + "."
        child = commands.add_parser(name, help=summary, description=description, allow_abbrev=False)
        add_flags(child, settings)
        child.add_argument("--json", action="store_true", help="print the result as one JSON object on stdout")
        child.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback of an error"
        )


def run(arguments: argparse.Namespace) -> int:
    """Carry out what was asked for; returns the exit code. Raises Gpt2UsageError."""
    settings, work, _ = ACTIONS[arguments.action]
    result, lines, status = work(settings_from(settings, arguments, command="checkpoint"))
    print(json.dumps(result, ensure_ascii=False) if arguments.json else "\n".join(lines))
    return status


Outcome = tuple[dict[str, Any], list[str], int]
"""What `--json` prints, the same as a person reads it, and the exit code."""


def diff(settings: DiffSettings) -> Outcome:
    """Compare two models, one tensor of each at a time; of our own checkpoints the optimizer's state, too.

    Rows that only pad the vocabulary are no part of a model. Raises Gpt2UsageError if one can't be read.
    """
    from gpt2_train.conversion.formats import open_weights
    from gpt2_train.conversion.weights import compare, model_pairs, optimizer_of

    first, second = open_weights(settings.first), open_weights(settings.second)
    names = settings.first, settings.second
    shapes = [
        f"{name} {ours} against {theirs}"
        for (name, ours), theirs in zip(first.config.as_table().items(), second.config.as_table().values(), strict=True)
        if ours != theirs and name != "dropout"
    ]
    result: dict[str, Any] = {"first": names[0], "second": names[1], "equal": False, "shapes": shapes}
    if shapes:
        return result, [f"{names[0]} and {names[1]} are models of different shapes: {', '.join(shapes)}"], 1
    found_states = optimizer_of(first), optimizer_of(second)
    pairs = model_pairs(first, second)
    alone = 0
    states = [state for state in found_states if state is not None]
    if len(states) == 2:
        names_of = [set(state.names()) for state in states]
        alone = len(names_of[0] ^ names_of[1])
        both = (name for name in states[0].names() if name in names_of[1])
        pairs += [
            (f"optimizer.{name}", functools.partial(states[0].read, name), functools.partial(states[1].read, name))
            for name in both
        ]
    with Progress("diff", "tensors", len(pairs)) as progress:
        found = []
        for name, read_first, read_second in pairs:
            difference = compare(name, read_first(), read_second())
            progress.advance()
            found += [difference] if difference.differing else []
    result |= {
        "equal": not found and not alone,
        "steps": [first.step, second.step],
        "tensors": len(pairs),
        "optimizer": [state is not None for state in found_states],
        "optimizer_only_in_one": alone,
        "differences": [_finite(dataclasses.asdict(entry)) for entry in found],
    }
    return result, _described_diff(result), 1 if found or alone else 0


def _described_diff(result: dict[str, Any]) -> list[str]:
    names, found, lines = (result["first"], result["second"]), result["differences"], []
    if found:
        worst = max(found, key=lambda entry: (entry["max_absolute"] is None, entry["max_absolute"]))
        lines += [
            f"{found[0]['name']} is the first tensor that differs: {_described(found[0])}",
            f"{len(found):,} of {result['tensors']:,} tensors differ, {worst['name']} the most: {_described(worst)}",
        ]
    else:
        lines.append(f"{names[0]} and {names[1]} are equal: {result['tensors']:,} tensors")
    if any(result["optimizer"]):
        has_both = all(result["optimizer"])
        only = names[result["optimizer"].index(True)]
        both = "compared, too" if not result["optimizer_only_in_one"] else (
            f"compared, but for {result['optimizer_only_in_one']:,} tensors that only one of them has"
        )  # fmt: skip
        lines.append(f"optimizer state: {both}" if has_both else f"optimizer state: only {only} has one")
    steps = result["steps"]
    if all(steps) and steps[0] != steps[1]:
        lines.append(f"steps: {steps[0]:,} and {steps[1]:,}")
    return lines


def _finite(table: dict[str, Any]) -> dict[str, Any]:
    """The table with None for numbers that JSON does not have."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in table.items()
    }


def _described(entry: dict[str, Any]) -> str:
    absolute, relative = (
        "inf or NaN" if value is None else f"{value:.3g}" for value in (entry["max_absolute"], entry["max_relative"])
    )
    return f"{entry['differing']:,} of {entry['elements']:,} values, by at most {absolute} (relative {relative})"


def verify(settings: VerifySettings) -> Outcome:
    """Check every file of one checkpoint, or of all of a run. Raises Gpt2UsageError if there is none."""
    from gpt2_train.checkpoint.load import bytes_to_read, checkpoints_at
    from gpt2_train.checkpoint.load import verify as verify_one

    folders = checkpoints_at(settings.folder)
    with Progress("verify", "bytes", sum(map(bytes_to_read, folders))) as progress:
        checked = [verify_one(folder, progress.advance) for folder in folders]
    # A run at work removes old checkpoints: a missing one is not damaged.
    found = [entry for entry in checked if entry.folder.exists()]
    bad = [entry for entry in found if entry.problems]
    lines = []
    for entry in found:
        if entry.problems:
            lines += [f"{entry.folder}: damaged: {problem}" for problem in entry.problems]
            continue
        parts = "model and optimizer" if entry.has_optimizer else "model without optimizer"
        lines.append(f"{entry.folder}: whole ({parts}, {entry.files} files, {entry.bytes / 1e6:,.1f} MB)")
    if bad:
        lines.append(
            f"{len(bad)} of {len(found)} checkpoints {'are' if len(bad) > 1 else 'is'} damaged: delete "
            f"{'their folders' if len(bad) > 1 else 'its folder'} to resume from the newest whole one."
        )
    result = {
        "damaged": len(bad),
        "checkpoints": [dataclasses.asdict(entry) | {"folder": str(entry.folder)} for entry in found],
    }
    return result, lines, 1 if bad else 0


ACTIONS: dict[str, tuple[type[Any], Callable[[Any], Outcome], str]] = {
    "diff": (DiffSettings, diff, "name the first tensor in which two models differ, and by how much"),
    "verify": (VerifySettings, verify, "read every file of checkpoints and compare it with what was written"),
}
"""Settings, work and summary of each command below `gpt2 checkpoint`."""
