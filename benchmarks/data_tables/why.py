"""`webtext why` on a million documents: what a question takes, which is a scan of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import zstandard

from measuring import Row, documents, webtext

TITLE = "why: a million documents of 300 characters, in 64 shards"
PEERS = ("numpy", "xxhash")
SHARDS = 64


def rows(quick: bool, folder: Path) -> Iterator[Row]:
    """A question of each kind."""
    each = 100 if quick else 15_625
    corpus, url, passage = _corpus(folder / "corpus", each)
    for what, asked in (("URLs", url), ("passages", passage)):
        used = min((webtext("why", asked, corpus) for _ in range(3)), key=lambda usage: usage.cpu)
        note = f"{used.cpu:.2f} s of CPU time"
        yield Row(f"ours: a question by {what}", SHARDS * each / used.cpu, peak=used.peak, note=note)


def _corpus(folder: Path, each: int) -> tuple[Path, str, str]:
    """A finished output with so many documents in each shard, and the URL of one and a passage of another."""
    texts = [row["text"] for row in documents(5_000, 300, duplicates=0)]
    folder.mkdir()
    compressor = zstandard.ZstdCompressor(level=3)
    shards, passage = {}, ""
    for shard in range(SHARDS):
        lines = []
        for row in range(each):
            # A number among the words makes each text one that no other is.
            number = shard * each + row
            words = texts[number % len(texts)].split()
            words.insert(len(words) // 2, f"number{number}")
            text = " ".join(words)
            lines.append(json.dumps({"url": f"http://site{number % 997}.example/{number}", "text": text}))
            passage = text if number == SHARDS * each * 2 // 3 else passage
        name = f"part-{shard:05}.jsonl.zst"
        (folder / name).write_bytes(compressor.compress("\n".join([*lines, ""]).encode()))
        shards[name] = each
    total = SHARDS * each
    record = {"stage": "merge", "version": 3, "settings": {}, "in": total, "out": total, "dropped": {}}
    (folder / "stage.json").write_text(json.dumps({**record, "facts": {}, "shards": shards, "inputs": []}))
    return folder, f"http://site{(total // 2) % 997}.example/{total // 2}", passage
