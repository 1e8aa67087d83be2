"""What `gpt2 ablate` found: the sentences, each seed as a dot with the intervals, and the numbers.

Read from `ablation.json`, which docs/formats.md describes; nothing of the training package is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from command_kit import parse_json
from command_kit.charts import drawing
from command_kit.charts.markup import Markup, join, tag
from command_kit.charts.numbers import count
from webtext_prep.errors import InputError

RESULT = "ablation.json"
BITS = "{:+.4f}"


def read_ablation(folder: Path) -> dict[str, Any]:
    """What the ablation in `folder` found. Raises InputError where there is none, or it is damaged."""
    try:
        found = parse_json((folder / RESULT).read_text(encoding="utf-8"))
        ablation(found)
    except OSError as error:
        raise InputError(
            f"--ablation {folder} holds no {RESULT} ({error.strerror}): give the folder of a finished `gpt2 ablate`."
        ) from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(f"{folder / RESULT} is damaged ({error}): run the same `gpt2 ablate` again.") from error
    return dict(found)


def ablation(found: Mapping[str, Any]) -> Markup:
    """The section of a report about a comparison that `gpt2 ablate` made."""
    rows = list(_spreads(found))
    return join(
        [
            *(tag("p", sentence) for sentence in found["sentences"]),
            drawing.intervals_chart(rows, title="Better by, in bits per byte", show=BITS.format),
            tag(
                "p",
                f"Bits per byte by which an arm is better than {found['baseline']} (below 0: worse): a dot for each "
                "seed, their mean, and its 95% interval over seeds and documents.",
                class_="note",
            ),
            drawing.table(("", "seeds", "mean", "median", "95% interval", "can see", "verdict"), _numbers(found)),
            drawing.table(("arm", "documents", "unique tokens", "epochs", *_sets(found)), _arms(found), "Arms"),
        ]
    )


def _named(found: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for entry in found["comparisons"]:
        yield f"{entry['arm']} on {entry['set']}", entry
    for entry in found["against_itself"]:
        yield f"{found['baseline']} against itself on {entry['set']}", entry


def _spreads(found: Mapping[str, Any]) -> Iterator[drawing.Spread]:
    for name, entry in _named(found):
        kind = "c1" if "verdict" in entry else "c2"
        ends = entry["interval"]
        yield drawing.Spread(name, kind, entry["differences"], entry["mean"], ends["low"], ends["high"])


def _numbers(found: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, entry in _named(found):
        interval = f"[{entry['interval']['low']:+.4f}, {entry['interval']['high']:+.4f}]"
        seeds = " ".join(map(BITS.format, entry["differences"]))
        middle = (BITS.format(entry["mean"]), BITS.format(entry["median"]))
        sees = f"{entry['can_see']:.4f}" if "verdict" in entry else ""
        yield (name, seeds, *middle, interval, sees, entry.get("verdict", ""))


def _sets(found: Mapping[str, Any]) -> Iterator[str]:
    return (f"bits per byte of {entry['name']}" for entry in found["sets"])


def _arms(found: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for arm in found["arms"]:
        means = (found["bits_per_byte"][entry["name"]][arm["name"]] for entry in found["sets"])
        yield (
            arm["name"],
            count(arm["documents"]),
            count(arm["unique_tokens"]),
            f"{arm['epochs']:.2f}",
            *(f"{sum(values) / len(values):.4f}" for values in means),
        )
