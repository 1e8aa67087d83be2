"""Repeated passages: the whole stage, beside the definition in plain Python on the same documents."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

from measuring import Row, documents, rate_of, sentences, webtext, write_json_lines

TITLE = "dedup-passages: documents of 3 kB, a third of them with a passage of some 100 words of an earlier one"
PEERS = ("numba",)
GOAL = 5.0
"""MB of text per second of CPU time."""


def rows(quick: bool, folder: Path) -> Iterator[Row]:
    """The stage as a command, one worker, and a dictionary of all windows."""
    words = sorted({word for sentence in sentences() for word in re.findall(r"\w+", sentence)})
    source = random.Random(7)

    def prose(count: int) -> str:
        return " ".join(source.choices(words, k=count)).capitalize() + "."

    found = documents(1_000 if quick else 40_000, duplicates=0.0)
    # Sentences that are drawn from a pool would repeat each other: each document has words of its own.
    for number, row in enumerate(found):
        row["text"] = "\n".join(prose(40) for _ in range(max(1, len(row["text"]) // 320)))
        if number % 3 == 0 and number:
            earlier = found[source.randrange(number)]["text"].split("\n")
            begin = source.randrange(max(1, len(earlier) - 3))
            row["text"] += "\n" + "\n".join(earlier[begin : begin + 3])
    size = sum(len(row["text"]) for row in found)
    write_json_lines(folder / "in" / "part-00000.jsonl.zst", found)
    settings = ("--workers", "1")
    half = found[:2_500]  # together enough for machine code
    few = [*half, *({**row, "url": f"{row['url']}/again"} for row in half)]
    warm = write_json_lines(folder / "few" / "part-00000.jsonl.zst", few).parent
    webtext("dedup-passages", "--input", warm, "--output", folder / "first", *settings)  # compiles, if nothing has yet
    used = webtext("dedup-passages", "--input", folder / "in", "--output", folder / "out", *settings)
    yield Row(
        "ours: the whole stage", len(found) / used.cpu, megabytes=size / used.cpu / 1e6, peak=used.peak,
        goal=GOAL * 1e6 * len(found) / size, note="start-up included",
    )  # fmt: skip
    texts = [row["text"] for row in found[: max(100, len(found) // 20)]]

    def plain() -> int:
        seen, repeats = set[tuple[str, ...]](), 0
        for text in texts:
            own = re.findall(r"\w+", text.casefold())
            for at in range(len(own) - 49):
                window = tuple(own[at : at + 50])
                repeats += window in seen
                seen.add(window)
        return repeats

    yield rate_of(
        "plain Python: a set of all windows, no cutting", plain, len(texts), size=sum(map(len, texts)), repeats=1
    )
