"""What tests of `webtext dedup` share: shards of documents, runs of the command, and what they left."""

import itertools
import json
import random
from pathlib import Path

from webtext_prep.cli import main
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.shards import read_documents, write_documents
from webtext_prep.documents.formats.lines import read_lines
from webtext_prep.running.job import Job

WORDS = [f"word{number}" for number in range(2000)]


def text_of(seed: int, words: int = 200) -> str:
    """A text of its own."""
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def changed(text: str, seed: int, count: int) -> str:
    """A text with so many words of its own."""
    words = text.split()
    for at in random.Random(seed).sample(range(len(words)), count):
        words[at] = f"other{at}"
    return " ".join(words)


def similar_documents(groups: int = 12, copies: int = 5) -> list[Document]:
    """Documents of which some are similar enough to go."""
    return [
        Document(f"http://a.org/{group}/{copy}", changed(text_of(group), copy, copy * 3))
        for group, copy in itertools.product(range(groups), range(copies))
    ]


def write(folder: Path, documents: list[Document], shards: int = 1) -> Path:
    """Documents dealt out to so many shards, one after another; returns the folder."""
    for number in range(shards):
        with write_documents(folder / f"part-{number:05}.jsonl.zst") as writer:
            for document in documents[number::shards]:
                writer.write(document)
    return folder


def command(source: Path, output: Path, *arguments: object) -> int:
    """The exit code of `webtext dedup`, run in this process."""
    return main(["dedup", "--input", str(source), "--output", str(output), "--workers", "1", *map(str, arguments)])


def run(capsys, source: Path, output: Path, *arguments: object) -> dict:
    """The summary of a run."""
    capsys.readouterr()
    assert command(source, output, *arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def urls(folder: Path) -> set[str]:
    """Of all documents of a folder."""
    return {document.url for shard in folder.glob("part-*") for document in read_documents(shard)}


def read_table(path: Path) -> list[dict]:
    """The rows of a table: url, superseded_by, similarity."""
    return [json.loads(line) for line in read_lines(path)]


def read_receipts(output: Path) -> list[dict]:
    """The receipts of what was dropped: url, reason, duplicate_of, similarity."""
    return [row for path in sorted((output / "dropped").iterdir()) for row in read_table(path)]


def scratch_used(monkeypatch) -> list[int]:
    """Bytes of files between phases after each phase of the jobs that are run from now on."""
    used, whole_map = [], Job.map

    def measured(self, phase, *arguments, **options):
        found = whole_map(self, phase, *arguments, **options)
        used.append(sum(path.stat().st_size for path in self.scratch.rglob("*") if path.is_file()))
        return found

    monkeypatch.setattr(Job, "map", measured)
    return used
