"""Makes the table of characters that words are cut by: `webtext_prep/text/words.json`.

    ./uvw run tools/word_characters.py

The properties are those of the package `regex`, which brings the Unicode Character Database with it: the running
Python's would differ from one version of Python to the next. What each of them is for, `text/words.py` says.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
from pathlib import Path

import msgspec
import regex

import webtext_prep.text as text

TABLE = Path(text.__file__).with_name("words.json")
LETTERS = r"[\p{L}\p{N}_]"
JOINERS = r"[\u200c\u200d]"
MARKS = rf"[\p{{M}}]|{JOINERS}|(?=\p{{L}})[\p{{GCB=Extend}}\p{{GCB=SpacingMark}}]"
_SCRIPTS = "".join(rf"\p{{Script={name}}}" for name in ("Han", "Hiragana", "Katakana", "Yi", "Bopomofo"))
IDEOGRAPHS = rf"(?=[\p{{L}}\p{{N}}])[\p{{Ideographic}}\p{{WB=Katakana}}{_SCRIPTS}]"
SYLLABIC = r"(?=\p{L})[\p{LineBreak=SA}\p{LineBreak=AK}\p{LineBreak=AP}\p{LineBreak=AS}]"
CHARACTERS = [chr(point) for point in range(sys.maxunicode + 1)]


def points_of(pattern: str) -> set[int]:
    """The code points that match a pattern."""
    matches = regex.compile(pattern).match
    return {point for point, character in enumerate(CHARACTERS) if matches(character)}


def ranges_of(points: set[int]) -> list[list[int]]:
    """The first and the last of each run of code points."""
    found: list[list[int]] = []
    for point in sorted(points):
        if found and found[-1][1] == point - 1:
            found[-1][1] = point
        else:
            found.append([point, point])
    return found


def foldings() -> dict[str, str]:
    """Each character that case folds (full case folding), and to what."""
    fold, how = regex._regex.fold_case, regex.FULLCASE | regex.IGNORECASE | regex.UNICODE
    found = {character: fold(how, character) for character in CHARACTERS}
    # regex 2026.11.15 leaves out the two that fold otherwise in Turkish; here as in CaseFolding.txt, status C and F.
    found |= {"I": "i", "\u0130": "i\u0307"}
    return {character: folded for character, folded in found.items() if folded != character}


def main() -> None:
    """Write the table."""
    described = importlib.metadata.metadata("regex")
    version = re.search(r"supports Unicode (\d+)", described["Description"] or str(described.get_payload()))
    assert version is not None
    marks = points_of(MARKS)
    ideographs, syllabic = points_of(IDEOGRAPHS) - marks, points_of(SYLLABIC) - marks
    kinds = {
        "letters": points_of(LETTERS) - marks - ideographs - syllabic,
        "marks": marks,
        "ideographs": ideographs,
        "syllabic": syllabic,
    }
    lines = {
        "unicode": version[1],
        **{name: ranges_of(points) for name, points in kinds.items()},
        "foldings": [[ord(key), *map(ord, value)] for key, value in foldings().items()],
    }
    rows = [f'"{name}": {msgspec.json.encode(value).decode()}' for name, value in lines.items()]
    TABLE.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
