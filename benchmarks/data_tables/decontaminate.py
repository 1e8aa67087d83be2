"""Decontamination: the whole stage, beside the published procedure in plain Python on the same documents."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from measuring import Row, documents, rate_of, sentences, webtext, write_json_lines
from webtext_prep.text.contamination import words_of

TITLE = "decontaminate: documents of 3 kB, 13-grams of 2,000 evaluation texts, some 1% of the documents hold one"
PEERS = ("numba",)
GOAL = 3000


def rows(quick: bool, folder: Path) -> Iterator[Row]:
    """The stage as a command, one worker, and a dictionary of joined n-grams."""
    found = documents(1_000 if quick else 20_000)
    source, words = random.Random(7), " ".join(sentences()).split()
    questions = [" ".join(source.choices(words, k=40)) for _ in range(2_000)]
    for row in found[::100]:
        row["text"] += "\n" + source.choice(questions)
    size = sum(len(row["text"]) for row in found)
    (folder / "questions.txt").write_text("\n".join(questions))
    write_json_lines(folder / "questions.jsonl", [{"url": "", "text": text} for text in questions])
    write_json_lines(folder / "in" / "part-00000.jsonl.zst", found)
    arguments = ("--evaluation", folder / "questions.jsonl", "--workers", "1")
    tiny = write_json_lines(folder / "one" / "part-00000.jsonl.zst", found[:1]).parent
    webtext("decontaminate", "--input", folder / "in", "--output", folder / "first", *arguments)  # compiles
    idle = webtext("decontaminate", "--input", tiny, "--output", folder / "idle", *arguments)
    used = webtext("decontaminate", "--input", folder / "in", "--output", folder / "out", *arguments)
    count = len(found)
    yield Row(
        "ours: the whole stage", count / used.cpu, megabytes=size / used.cpu / 1e6, goal=GOAL, peak=used.peak,
        note=f"start-up of {idle.cpu:.1f} s included",
    )  # fmt: skip
    ngrams = {
        " ".join(own[at : at + 13])
        for own in map(words_of, questions)
        for at in range(max(0, len(own) - 12))
    }  # fmt: skip
    few = [row["text"] for row in found[: max(100, count // 20)]]

    def plain() -> int:
        hits = 0
        for text in few:
            own = words_of(text)
            hits += any(" ".join(own[at : at + 13]) in ngrams for at in range(len(own) - 12))
        return hits

    yield rate_of("plain Python: n-grams joined and looked up, no cutting", plain, len(few))
