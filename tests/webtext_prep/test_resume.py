"""Killed anywhere, and run again: the bytes of two workers, for every stage that keeps only task markers and places."""

import gzip
import json
import random

import numpy as np
import pytest
import zstandard
from archives import Archive, page

from webtext_prep.documents.document import Document
from webtext_prep.documents.formats import compression
from webtext_prep.reddit import rows
from webtext_prep.running.file_ranges import TaskState
from webtext_prep.running.job import Job
from webtext_prep.running.markers import Markers, OutputMarker
from webtext_prep.stages import blacklist, extract, merge, urls
from webtext_prep.text.classifiers import LinearModel

WORDS = [f"word{number}" for number in range(200)]


def text(seed: int, words: int = 60) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def similar(count: int = 30) -> list[Document]:
    """Documents of which every third repeats another one but for some words."""
    return [
        Document(
            f"http://{n}.org/",
            f"{text(base, 40 + base)} {'more' * (n - base)}",
            {"title": "T", "domain": "a.org", "score": n},
        )
        for n in range(count)
        for base in [n - n % 3]
    ]


def shards(folder, write_shards):
    return write_shards([similar()[:12], similar()[12:25], similar()[25:]])


def clean(folder, write_shards):
    return shards(folder, write_shards), ["--language", "any", "--min-tokens", 100]


def filtered(folder, write_shards):
    weights = np.random.default_rng(1).normal(size=256).astype(np.float32)
    (folder / "model.filter").write_bytes(LinearModel(1, 8, weights).encode())
    return shards(folder, write_shards), ["--model", folder / "model.filter", "--keep-share", 0.4]


def decontaminate(folder, write_shards):
    (folder / "e.jsonl").write_text("\n".join(json.dumps({"q": similar()[n].text[60:220]}) for n in (0, 13, 26)))
    return shards(folder, write_shards), ["--evaluation", folder / "e.jsonl", "--margin", 0, "--shortest-piece", 10]


def passages(folder, write_shards):
    repeating = [
        Document(f"http://{n}.org/", f"{text(n)}. {text(n % 4, 30)}. {text(n + 50, 9 * (n % 3))}") for n in range(20)
    ]
    return write_shards([repeating[:9], repeating[9:]]), ["--shortest-piece", 100, "--words", 20]


def urls_list(folder, write_shards):
    addresses = [f"http://h{n % 23}.org/{n % 170}" for n in range(400)]
    (folder / "lists").mkdir()
    (folder / "lists" / "a.txt.gz").write_bytes(gzip.compress("\n".join(addresses).encode()))
    (folder / "lists" / "b.csv").write_text(
        "n,url\n" + "".join(f'"{n}\n",{url}\n' for n, url in enumerate(addresses[:90]))
    )
    (folder / "lists" / "c.txt").write_text("\n".join(addresses))
    return folder / "lists", ["--shards", 2]


def reddit(folder, write_shards):
    row = {"over_18": False, "is_self": False, "title": "T", "subreddit": "news", "created_utc": 1338508800}
    rows = ({**row, "id": f"{n:x}", "score": n % 11, "url": f"http://a.org/{n % 150}"} for n in range(400))
    data = "".join(json.dumps(entry) + "\n" for entry in rows).encode()
    (folder / "RS_2012-06.zst").write_bytes(zstandard.compress(data))
    return folder / "RS_2012-06.zst", ["--shards", 2]


def files(folder, write_shards):
    rows = [json.dumps({"url": f"http://a.org/{n % 90}", "text": text(n, 9)}) for n in range(120)]
    (folder / "files").mkdir()
    (folder / "files" / "a.jsonl.zst").write_bytes(zstandard.compress("\n".join(rows).encode()))
    (folder / "files" / "b.jsonl").write_text("\n".join(rows[50:]))
    (folder / "files" / "c.csv").write_text("url,text\n" + "".join(f'http://c.org/{n},"a\n{n}"\n' for n in range(60)))
    (folder / "files" / "d.json").write_text(json.dumps([json.loads(row) for row in rows[:40]], indent=1))
    (folder / "files" / "e.txt").write_text("A text.")
    return folder / "files", ["--shards", 2]


def archive(folder, write_shards):
    found = Archive()
    for n in range(40):
        found.response(f"http://a.org/{n}", page(f"The page number {n} has this text. ") if n % 7 else "<p></p>")
    data = bytearray(found.data)
    for n in (9, 19, 20, 33):
        data[found.offsets[n] + 100] ^= 0xFF
    (folder / "pages").mkdir()
    (folder / "pages" / "a.warc.gz").write_bytes(data)
    (folder / "pages" / "b.html").write_text(page("A page in a file. "))
    return folder / "pages", ["--extractor", "resiliparse"]


STAGES = {
    "urls": reddit,
    "blacklist": urls_list,
    "extract": archive,
    "merge": files,
    "clean": clean,
    "train-filter": lambda *folder: (shards(*folder), ["--good-when", "score >= 10", "--bits", 8]),
    "filter": filtered,
    "dedup": lambda *folder: (shards(*folder), []),
    "decontaminate": decontaminate,
    "dedup-passages": passages,
    "small-tokenize": lambda *folder: (shards(*folder), ["--no-shuffle"]),
    "train-tokenizer": lambda *folder: (shards(*folder), ["--vocabulary-size", 300]),
    "export": lambda *folder: (shards(*folder), ["--shard-bytes", 4000]),
}


@pytest.fixture
def small(monkeypatch):
    """Files of some kilobytes are large ones."""
    for module, names in {
        compression: {"CHUNK_BYTES": 700},
        merge: {"BYTES_PER_PART": 2000, "BYTES_PER_STREAM": 500},
        blacklist: {"BYTES_PER_TASK": 2000, "BYTES_PER_STREAM": 500, "RUN_BYTES": 1500},
        rows: {"BLOCK_BYTES": 9000},
        urls: {"SECONDS": 0.0},
        extract: {"BYTES_PER_RANGE": 0},
        extract.Extract: {"pages_per_range": 6},
    }.items():
        for name, value in names.items():
            monkeypatch.setattr(module, name, value)


@pytest.fixture
def kill(monkeypatch):
    """Ends the command at each thing that says what is done: once before that is written, and once behind it.

    Holds what was written in the end.
    """
    met: list[str] = []

    def ending(kind, name):
        real = getattr(kind, name)

        def write(self, *arguments, **named):
            # A marker is known by its task, a place in a file by what it says; the others are one of a kind.
            what = f"{vars(self)} {arguments[0]}" if kind in (Markers, TaskState) else kind.__name__
            met.append(what)
            if met.count(what) == 1:
                raise KeyboardInterrupt
            found = real(self, *arguments, **named)
            if met.count(what) == 2:
                raise KeyboardInterrupt
            return found

        monkeypatch.setattr(kind, name, write)

    for kind, name in ((Markers, "write"), (TaskState, "write"), (Job, "_record"), (OutputMarker, "write")):
        ending(kind, name)
    return met


ORDINARY = {"merge", "filter", "train-tokenizer"}


@pytest.mark.parametrize(
    "name", [name if name in ORDINARY else pytest.param(name, marks=pytest.mark.exhaustive) for name in STAGES]
)
def test_killed_at_every_place_it_ends_with_the_same_bytes(
    name, tmp_path, write_shards, webtext, contents, small, request
):
    source, flags = STAGES[name](tmp_path, write_shards)

    def run(folder, workers):
        output = tmp_path / folder / ("corpus" if name == "small-tokenize" else "")
        return webtext(name, "--input", source, "--output", output, "--workers", workers, *flags)

    whole = run("whole", 1 if name == "merge" else 2)  # whose runs of a file are larger in another process
    assert whole.code == 0, whole.err
    met, runs = request.getfixturevalue("kill"), 0
    while (found := run("out", 1)).code == 130:
        runs += 1
        assert runs < 300
    assert found.code == 0, found.err
    assert runs == 2 * len(set(met)) > 4
    done = [what for what in met if "Task(" in what or ".json" in what]
    assert len(done) == 2 * len(set(done)), "what was done is done again"
    made = [contents(tmp_path / folder) for folder in ("out", "whole")]
    assert {name: data for name, data in made[0].items() if ".state/" not in name} == {
        name: data for name, data in made[1].items() if ".state/" not in name
    }
