"""Documents that are there, and documents that were dropped, by reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from command_kit.charts.markup import Markup, tag
from command_kit.charts.numbers import count
from webtext_audit.report.collect import Corpus, Examples


def kept_examples(corpora: Sequence[Corpus]) -> list[Markup]:
    """Some of the documents that are there."""
    return [_example(entry, "sample") for corpus in corpora for entry in corpus.figures.examples.ordered()]


def dropped_examples(found: Sequence[Examples]) -> Iterator[Markup]:
    """Some of what was dropped, by stage and reason."""
    stage = None
    for entry in found:
        if entry.step is not stage:
            stage = entry.step
            yield tag("h3", f"Dropped by {stage.stage}")
        name = tag("span", entry.reason, class_="reason-name")
        yield tag(
            "details",
            tag("summary", name, f" {count(entry.count)}"),
            *(_example(example, "sample gone") for example in entry.entries),
        )


def _example(entry: dict[str, Any], kind: str) -> Markup:
    head = [tag("p", entry["title"]) if entry.get("title") else None, tag("p", entry["url"], class_="where")]
    if entry.get("beside"):
        head.append(tag("p", f"similarity {entry.get('similarity')} to {entry['beside']}; both have:", class_="where"))
    text = str(entry.get("text") or "")
    rest = int(entry.get("characters", 0)) - len(text)
    more = tag("p", f"… and {count(rest)} more characters", class_="where") if rest > 0 else None
    return tag("div", *head, tag("div", text, class_="text", tabindex=0) if text else None, more, class_=kind)
