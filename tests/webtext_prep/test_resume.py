"""Killed at each rename, and run again: the bytes of two workers, for every stage but those that ask a network."""

import contextlib
import gzip
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path

import numpy as np
import practice_calls
import pytest
import zstandard
from archives import Archive, page
from practice_calls import die_at_rename

from webtext_prep import cli
from webtext_prep.documents.document import Document
from webtext_prep.documents.formats import compression
from webtext_prep.reddit import rows
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
    return write_shards([similar()[:12], similar()[12:]]), ["--model", folder / "model.filter", "--keep-share", 0.4]


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


def pairs(folder, write_shards):
    found = [folder / name for name in ("one", "two")]
    for prefix in found:
        assert cli.main(["tokenize", "--input", str(shards(folder, write_shards)), "--output", str(prefix)]) == 0
    return [f"{prefix}_text_document" for prefix in found], []


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
    "merge-tokens": pairs,
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


class Killer:
    """Runs a command in forks of this process, each of which is killed (SIGKILL) at a rename: once before it is done,
    and once behind it. What has been met of both is passed by, until the command ends by itself.

    Attributes:
        met: the renames, in their order, each as often as it was killed at or done: a file by its name, and one
            between phases by what it holds, too, since a task notes there how far it has come.
    """

    def __init__(self, folder: Path) -> None:
        self._journal, self._said = folder / "renames.txt", folder / "said.txt"
        self._journal.touch()

    @property
    def met(self) -> list[str]:
        return self._journal.read_text().splitlines()

    def run(self, command: Callable[[], int]) -> str:
        """Run it to its end; returns what it said if it failed then."""
        for _ in range(MOST_KILLS):
            child = os.fork()
            if not child:
                self._in_child(command)
            _, status = os.waitpid(child, 0)
            if os.WIFEXITED(status):
                return self._said.read_text() if os.WEXITSTATUS(status) else ""
            assert os.WTERMSIG(status) == signal.SIGKILL
        raise AssertionError("it never ends")

    def _in_child(self, command: Callable[[], int]) -> None:
        code = 1
        try:
            with self._said.open("w") as said, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                forkserver._forkserver.__init__()  # that of the parent is no child of this one
                met, real = self.met, os.replace
                os.replace = lambda source, target: self._replace(real, met, Path(source), Path(target))
                code = command()
        finally:
            os._exit(code)

    def _replace(self, real: Callable[..., None], met: list[str], source: Path, target: Path) -> None:
        what = str(target)
        if "scratch" in target.parts and source.is_file():
            what += f" {hashlib.sha256(source.read_bytes()).hexdigest()}"
        die_at_rename(self._journal, met, what, lambda: real(source, target))


MOST_KILLS = 500
ORDINARY = {"filter"}


@pytest.mark.parametrize(
    "name", [name if name in ORDINARY else pytest.param(name, marks=pytest.mark.exhaustive) for name in STAGES]
)
def test_killed_at_every_rename_it_ends_with_the_same_bytes(name, tmp_path, write_shards, webtext, contents, small):
    source, flags = STAGES[name](tmp_path, write_shards)
    inputs = source if isinstance(source, list) else [source]

    def command(folder, workers):
        output = tmp_path / folder / ("corpus" if name.endswith("-tokens") or name == "small-tokenize" else "")
        return [*map(str, (name, "--input", *inputs, "--output", output, "--workers", workers, *flags))]

    whole = webtext(*command("whole", 1 if name == "merge" else 2))  # its runs of a file are larger in another process
    assert whole.code == 0, whole.err
    assert webtext(*command("here", 1)).code == 0  # what it loads, the forks of this process have then loaded
    killer = Killer(tmp_path)
    assert killer.run(lambda: cli.main(command("out", 1))) == ""
    assert len(set(killer.met)) > 4
    done = [what for what in killer.met if "/markers/" in what]
    assert len(done) == 2 * len(set(done)), "what was done is done again"
    made = [contents(tmp_path / folder) for folder in ("out", "whole")]
    assert {name: data for name, data in made[0].items() if ".state/" not in name} == {
        name: data for name, data in made[1].items() if ".state/" not in name
    }


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", STAGES)
def test_on_ray_driver_and_workers_are_killed_at_renames_of_each_kind_and_the_bytes_are_the_same(
    name, joined_ray, tmp_path, write_shards, webtext, contents
):
    """Files whose names differ in numbers are of one kind. A driver is a new process, which knows no stage of tests."""
    source, flags = STAGES[name](tmp_path, write_shards)
    inputs = source if isinstance(source, list) else [source]

    def command(folder, *engine):
        output = tmp_path / folder / ("corpus" if name.endswith("-tokens") or name == "small-tokenize" else "")
        return [*map(str, (name.removeprefix("small-"), "--input", *inputs, "--output", output, *flags, *engine))]

    whole = webtext(*command("whole", "--workers", 2))
    assert whole.code == 0, whole.err
    (journal := tmp_path / "renames.txt").touch()
    driver = [sys.executable, Path(practice_calls.__file__).with_name("dying_driver.py"), journal, tmp_path / "out"]
    engine = ("--engine", "ray", "--ray-address", joined_ray.address)
    for _ in range(MOST_KILLS):
        done = subprocess.run([*driver, *command("out", *engine)], capture_output=True, text=True)
        if done.returncode != -signal.SIGKILL:
            break
    assert done.returncode == 0, done.stderr
    met = Counter(journal.read_text().splitlines())
    assert len(met) > 4 and min(met.values()) > 1
    made = [contents(tmp_path / folder) for folder in ("out", "whole")]
    assert {name: data for name, data in made[0].items() if ".state/" not in name} == {
        name: data for name, data in made[1].items() if ".state/" not in name
    }
