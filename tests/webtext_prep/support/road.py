"""Every stage, one after another, on inputs that take no time: what tests of engines and stores compare."""

import functools
import gzip
import json
import random
from dataclasses import dataclass
from pathlib import Path

from archives import Archive, page

from webtext_prep import storage
from webtext_prep.storage.locations import Location

WORDS = [f"word{number}" for number in range(300)]
QUESTION = "What is the name of the river that flows through the old town of the capital in spring"
KEEP = "def keep(document):\n    return not document.url.endswith('/3')\n"
PAGES = 6


def text_of(seed: int) -> str:
    """Thirty sentences."""
    source = random.Random(seed)
    return " ".join(" ".join(source.choices(WORDS, k=12)).capitalize() + "." for _ in range(30))


@functools.cache
def input_files() -> dict[str, bytes]:
    """Name to bytes: a dump, texts of which some are nearly the same and one holds a question, two web archives."""
    rows = [
        {"url": f"http://h{n % 9}.org/{n % 40}", "score": n % 7, "over_18": False, "is_self": False, "id": f"i{n}",
         "title": "T", "subreddit": "news", "created_utc": 1338508800, "num_comments": 0}
        for n in range(120)
    ]  # fmt: skip
    texts = [
        {"url": f"http://a.com/{n}", "score": n, "text": text_of(n % 17) + f" {QUESTION}." * (n == 5)}
        for n in range(40)
    ]
    found = {
        f"dump/RS_2012-0{month}.jsonl": _lines(rows[month - 6 :: 2]) for month in (6, 7)
    }  # fmt: skip
    found |= {f"texts/{half}.jsonl.gz": gzip.compress(_lines(texts[half::2]), mtime=0) for half in (0, 1)}
    for number in (0, 1):
        archive = Archive()
        for path in range(PAGES // 2):
            archive.response(f"http://b.org/{number}/{path}", page(f"{text_of(path)} "))
        found[f"archives/{number}.warc.gz"] = archive.data
    return found


def _lines(rows: list[dict]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def write_inputs(place: Location, files: dict[str, bytes] | None = None) -> None:
    """Write the input files, or others, to the folder `input` below `place`."""
    for name, data in (input_files() if files is None else files).items():
        with storage.create(place / "input" / name) as file:
            file.write(data)


def write_settings(folder: Path) -> None:
    """Write the files that settings name: they are always on this machine."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "questions.txt").write_text(QUESTION)
    (folder / "keep.py").write_text(KEEP)


@dataclass(frozen=True)
class Step:
    """One command.

    Attributes:
        stage: its stage.
        sources: what it reads, below a place.
        target: what it writes, below the same place; "" for a stage that writes next to its input.
        options: the rest.
        maps: whether it maps its input into memory, which must then lie on this machine.
    """

    stage: str
    sources: tuple[str, ...]
    target: str
    options: tuple[object, ...] = ()
    maps: bool = False

    def command(self, place: Location, here: Path) -> list[object]:
        """Its arguments, for a place and a folder of this machine with the same files."""
        inputs = [(here if self.maps and not isinstance(place, Path) else place) / source for source in self.sources]
        output = ["--output", place / self.target] if self.target else []
        return [self.stage, "--input", *inputs, *output, *self.options, "--json"]


def steps(settings: Path, tokenizer: Path) -> list[Step]:
    """All stages but download, given the folder of `write_settings`, and the tokenizer for `tokenize`, beside which the
    classifier for `filter` lies."""
    return [
        Step("urls", ("input/dump",), "urls", ("--shards", 2)),
        Step("blacklist", ("urls",), "clean_urls", ("--shards", 2)),
        Step("extract", ("input/archives",), "pages", ("--extractor", "resiliparse")),
        Step("merge", ("input/texts",), "merged", ("--shards", 2, "--hold-out", 0.1)),
        Step("clean", ("merged",), "clean", ("--language", "any")),
        Step("filter", ("clean",), "mine", ("--function", f"{settings / 'keep.py'}:keep")),
        Step("train-filter", ("clean",), "quality", ("--good-when", "score >= 25", "--bits", 10)),
        Step("filter", ("clean",), "best", ("--model", tokenizer.parent / "quality", "--keep-share", 0.4)),
        Step("dedup", ("mine",), "unique"),
        Step("dedup-passages", ("merged",), "passages", ("--shortest-piece", 20)),
        Step("decontaminate", ("unique",), "decontaminated", ("--evaluation", settings / "questions.txt")),
        Step("train-tokenizer", ("decontaminated",), "tokenizer", ("--vocabulary-size", 300)),
        Step("tokenize", ("decontaminated",), "corpus", ("--tokenizer", tokenizer, "--hold-out", 0.3)),
        Step("tokenize", ("decontaminated",), "ordered", ("--tokenizer", tokenizer, "--no-shuffle")),
        Step("merge-tokens", ("corpus", "ordered"), "both", maps=True),
        Step("index-tokens", ("corpus",), "", ("--part-tokens", 2000), maps=True),
        Step("export", ("decontaminated",), "dataset"),
    ]  # fmt: skip
