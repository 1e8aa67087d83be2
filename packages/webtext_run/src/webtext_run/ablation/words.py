"""The findings of an ablation, in sentences and a table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from command_kit.colours import aligned
from webtext_run.ablation.verdict import BETTER, NO_VERDICT, WORSE

Result = Mapping[str, Any]


def digits_for(width: float) -> int:
    """Decimals with which an interval of this width is shown: one figure of half of it."""
    return min(6, max(2, math.ceil(-math.log10(width / 2)))) if width > 0 else 4


def bits(value: float, width: float) -> str:
    """Bits per byte, with as many decimals as an interval of `width` asks for."""
    text = f"{value:.{digits_for(width)}f}"
    return text.removeprefix("-") if not float(text) else text


def interval(found: Mapping[str, float], *, turned: bool = False) -> str:
    """`[0.008, 0.016]`; turned, of the difference the other way round."""
    low, high = found["low"], found["high"]
    if turned:
        low, high = -high, -low
    width = high - low
    return f"[{bits(low, width)}, {bits(high, width)}]"


def described(result: Result) -> str:
    """All that is printed."""
    lines = [*result["sentences"], "", *matrix(result), "", *of_seeds(result)]
    if result["tasks"]:
        lines += ["", *tasks(result)]
    return "\n".join(lines)


def headlines(result: Result) -> list[str]:
    """The findings on every arm, and how far they can be trusted, in sentences."""
    return [line for arm in result["arms"][1:] for line in sentences(result, arm["name"])] + [_seen(result)]


def sentences(result: Result, arm: str) -> Iterator[str]:
    """The findings on one arm: its difference on each set, what it is worth, and what it reads."""
    found = [entry for entry in result["comparisons"] if entry["arm"] == arm]
    yield f"{arm} against {result['baseline']}: " + ", ".join(
        _difference(entry, first=entry is found[0]) for entry in found
    )
    parts = []
    worth = result["worth"][arm]
    if worth is not None and found[0]["verdict"] in (BETTER, WORSE):
        parts.append(_worth(worth))
    yield "; ".join([*parts, _reads(result, arm), _sees(found[0])])


def _difference(entry: Mapping[str, Any], *, first: bool) -> str:
    found, mean, name = entry["interval"], entry["mean"], entry["set"]
    width = found["high"] - found["low"]
    unit = " bits per byte" if first else ""
    if entry["verdict"] in (BETTER, WORSE):
        shown = bits(abs(mean), width)
        return f"{entry['verdict']} by {shown}{unit} {interval(found, turned=mean < 0)} on {name}"
    value = f"{bits(mean, width)}{unit} {interval(found)}"
    if entry["verdict"] == NO_VERDICT:
        return f"no verdict on {name}, as the sign differs at a tenth of the learning rate: {value}"
    if found["low"] > 0 or found["high"] < 0:
        return f"no difference on {name}: {value} (not sure enough for one of several comparisons)"
    return f"no difference on {name}: {value}"


def _sees(entry: Mapping[str, Any]) -> str:
    found = entry["interval"]
    return f"this run can see {bits(entry['can_see'], found['high'] - found['low'])} on {entry['set']}"


def _worth(worth: Mapping[str, float]) -> str:
    low, value, high = (100 * worth[name] for name in ("low", "value", "high"))
    if value >= 0:
        return f"worth {value:.0f}% [{low:.0f}, {high:.0f}] more training"
    return f"as bad as {-value:.0f}% [{-high:.0f}, {-low:.0f}] less training"


def _reads(result: Result, name: str) -> str:
    base = result["arms"][0]
    arm = next(entry for entry in result["arms"] if entry["name"] == name)
    others = arm["documents"] - arm["of_the_baseline"]
    kept = f"{arm['of_the_baseline'] / base['documents']:.0%} of the documents"
    has = f"keeps {kept}" if not others else f"has {kept} and {others:,} {'other' if others == 1 else 'others'}"
    return f"{name} {has}: {arm['epochs']:.2g} epochs instead of {base['epochs']:.2g}"


def _seen(result: Result) -> str:
    itself = result["against_itself"][0]
    found = itself["interval"]
    signs = [entry["mean"] * sum(entry["low_rate_differences"]) > 0 for entry in _deciding(result)]
    same = "same sign at both learning rates" if all(signs) else "not the same sign at a tenth of the learning rate"
    return (
        f"{len(result['seeds'])} seeds, {same}; {result['baseline']} against itself: "
        f"{bits(itself['mean'], found['high'] - found['low'])} {interval(found)}"
    )


def _deciding(result: Result) -> list[Mapping[str, Any]]:
    return [entry for entry in result["comparisons"] if entry["set"] == result["decides"]]


def matrix(result: Result) -> list[str]:
    """Bits per byte of every arm on every set, the mean over seeds."""
    names = [arm["name"] for arm in result["arms"]]
    rows = [["bits per byte", *names, "documents"]]
    for entry in result["sets"]:
        of_arms = result["bits_per_byte"][entry["name"]]
        means = [f"{sum(of_arms[name]) / len(of_arms[name]):.4f}" for name in names]
        left = f" ({entry['left_out']:,} more are in an arm's file)" if entry["left_out"] else ""
        rows.append([entry["name"], *means, f"{entry['documents']:,}{left}"])
    rows.append(["unique tokens", *(f"{arm['unique_tokens']:,}" for arm in result["arms"]), ""])
    rows.append(["epochs", *(f"{arm['epochs']:.2f}" for arm in result["arms"]), ""])
    return [f"  {line}" for line in aligned(rows, "<" + ">" * len(names) + "<")]


def of_seeds(result: Result) -> list[str]:
    """The difference of every seed on every set, with mean and median."""
    rows: list[Sequence[str]] = []
    for entry in result["comparisons"]:
        rows.append(_seed_row(f"{entry['arm']} on {entry['set']}", entry))
        low = " ".join(f"{value:+.4f}" for value in entry["low_rate_differences"])
        rows.append(["  at a tenth of the learning rate", low, ""])
    rows += [_seed_row(f"{result['baseline']} against itself on {entry['set']}", entry)
             for entry in result["against_itself"]]  # fmt: skip
    return ["  better by, for each seed:", *(f"  {line}" for line in aligned(rows, "<<<"))]


def _seed_row(name: str, entry: Mapping[str, Any]) -> list[str]:
    seeds = " ".join(f"{value:+.4f}" for value in entry["differences"])
    return [name, seeds, f"mean {entry['mean']:+.4f}, median {entry['median']:+.4f}"]


def tasks(result: Result) -> list[str]:
    """Figures of evaluation tasks."""
    rows = [
        [entry["task"].partition(":")[0], entry["figure"].replace("_", " "), entry["arm"],
         f"{entry[result['baseline']]:.4f}", f"{entry['mean']:.4f}", interval(entry["seeds_interval"])]
        for entry in result["tasks"]
    ]  # fmt: skip
    head = ["task", "figure", "arm", result["baseline"], "arm's", "difference"]
    return [f"  {line}" for line in aligned([head, *rows], "<<<>><")]
