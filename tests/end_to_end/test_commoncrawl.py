"""`pipelines/commoncrawl.toml` on small archives: pages of prose, repeated ones, another language, no pages."""

import gzip
import json
import sys
from pathlib import Path
from pydoc_data.topics import topics

from tests.gpt2_train import forks

from indexed_tokens import IndexedTokens

ROOT = Path(__file__).resolve().parents[2]
GERMAN = "Dies ist ein Text in deutscher Sprache, der von niemandem für einen englischen gehalten wird. "


def record(number: int, body: str, status: str = "200 OK", kind: str = "text/html") -> bytes:
    block = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n\r\n{body}".encode()
    head = (
        f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Record-ID: <urn:uuid:{number:032x}>\r\n"
        f"WARC-Date: 2024-03-01T12:00:00Z\r\nWARC-Target-URI: http://site-{number % 7}.example/{number}\r\n"
        f"Content-Type: application/http; msgtype=response\r\nContent-Length: {len(block)}\r\n\r\n"
    )
    return gzip.compress(head.encode() + block + b"\r\n\r\n", mtime=0)


def page(text: str) -> str:
    paragraphs = "".join(f"<p>{' '.join(part.split())}</p>" for part in text.split("\n\n"))
    return f"<html><head><title>A page</title></head><body><article>{paragraphs}</article></body></html>"


def test_archives_become_a_corpus(tmp_path: Path) -> None:
    texts = [text for text in topics.values() if len(text) > 2_000][:20]
    records = [record(number, page(text)) for number, text in enumerate(texts)]
    records += [record(100 + number, page(texts[number])) for number in range(5)]
    records += [record(200, page(GERMAN * 20)), record(201, "", "404 Not Found"), record(202, "x", kind="image/png")]
    (tmp_path / "warcs").mkdir()
    (tmp_path / "warcs" / "a.warc.gz").write_bytes(b"".join(records[::2]))
    (tmp_path / "warcs" / "b.warc.gz").write_bytes(b"".join(records[1::2]))
    words = ["commoncrawl", "--folder", tmp_path / "run", "--input", tmp_path / "warcs", "--set", "pipeline.workers=1"]
    done = forks.run([sys.executable, ROOT / "pipelines" / "run.py", *words])
    assert done.returncode == 0, done.stderr
    assert f"webtext report {tmp_path}/run/corpus --output {tmp_path}/run/report.html" in done.stdout
    records_of = {
        step: json.loads((tmp_path / "run" / step / "stage.json").read_bytes())
        for step in ("extract", "merge", "clean", "dedup")
    }
    assert records_of["extract"]["dropped"] == {"http_404": 1, "not_html": 1}
    assert records_of["extract"]["out"] == len(texts) + 6
    assert records_of["clean"]["dropped"]["language_de"] == 1
    assert records_of["dedup"]["dropped"]["duplicate"] == 5
    tokens = IndexedTokens(tmp_path / "run" / "corpus_text_document")
    assert len(tokens) == records_of["dedup"]["out"]
