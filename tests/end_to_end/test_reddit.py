"""The pipeline that ships for Reddit dumps: from real rows, whose pages a server on loopback has, to token files."""

import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

import pytest
from tests.gpt2_train import forks
from tests.webtext_prep.support.pages_on_loopback import serve_pages

from command_kit.settings import to_toml
from indexed_tokens import IndexedTokens
from webtext_prep.documents.folders.shards import read_documents, shards_in

ROOT = Path(__file__).resolve().parents[2]
DUMP = ROOT / "tests" / "webtext_prep" / "submissions" / "RS_v2_2005-07.jsonl"
TEXTS = sorted((text for text in topics.values() if 2000 < len(text) < 8000), key=len)


@pytest.fixture
def site() -> Iterator[str]:
    """A server that has, at `/N`, a text about Python."""

    def page(path: str) -> str | None:
        number = path.strip("/")
        if not number.isdigit():
            return None
        text = TEXTS[int(number)].replace("&", "and").replace("<", "[")
        paragraphs = "".join(f"<p>{part}</p>" for part in text.split("\n\n"))
        return f"<html><head><title>Page {number}</title></head><body>{paragraphs}</body></html>"

    with serve_pages(page) as address:
        yield address


def test_the_pipeline_for_reddit_goes_from_dumps_to_tokens(site, tmp_path, monkeypatch):
    rows = [json.loads(line) for line in DUMP.read_bytes().splitlines()]
    for number, row in enumerate(rows):
        row["url"] = f"{site}/{number % 20}"  # the last four are of pages that others are of, too
    rows.append({**rows[0], "id": "x", "url": "/r/a/", "score": 9})
    (tmp_path / "dumps").mkdir()
    (tmp_path / "dumps" / "RS_2005-07.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    tables = tomllib.loads((ROOT / "pipelines" / "reddit.toml").read_text())
    assert list(tables) == ["pipeline", "urls", "blacklist", "download", "merge", "clean", "dedup", "tokenize"]
    tables["pipeline"]["workers"] = 1
    tables["download"] |= {"allow_private_addresses": "loopback", "delay": 0.0}
    (tmp_path / "reddit.toml").write_text(to_toml(tables))
    monkeypatch.chdir(tmp_path)
    done = forks.run([sys.executable, ROOT / "pipelines/run.py", "reddit.toml", "--folder", "run", "--input", "dumps"])
    assert done.returncode == 0, done.stderr

    found = json.loads((tmp_path / "run" / "pipeline.json").read_text())
    assert found["urls"]["in"] == 25
    assert found["blacklist"]["dropped"] == {"blocked_domain": 1}
    assert found["download"]["out"] == found["blacklist"]["out"]
    assert found["tokenize"]["out"] > 5
    documents = [row for shard in shards_in(tmp_path / "run" / "dedup") for row in read_documents(shard)]
    best = {f"{site}/{at % 20}": row for at, row in sorted(enumerate(rows), key=lambda pair: pair[1]["score"])}
    assert len(documents) == found["tokenize"]["out"]
    for document in documents:
        row = best[document.url]
        assert document.metadata["title"] == f"Page {document.url.rsplit('/', 1)[1]}"
        assert document.metadata["reddit_title"].replace("<", "&lt;").replace(">", "&gt;") == row["title"]
        assert document.metadata["reddit_score"] >= row["score"] >= 3
        assert document.metadata["reddit_subreddits"] == ["reddit.com"]
    assert any(document.metadata["reddit_submissions"] == 2 for document in documents)
    assert len(IndexedTokens(tmp_path / "run" / "corpus_text_document")) == len(documents)
