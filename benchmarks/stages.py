"""Documents per second through clean, dedup and tokenize on one core, next to calling the libraries plainly.

The text is the documentation that comes with the interpreter, repeated with small changes: some 3,000 documents.
"""

from __future__ import annotations

import pydoc
import time
from collections.abc import Callable
from pydoc_data.topics import topics
from typing import Any

import ftfy
import langdetect
import xxhash
from datasketch import MinHash

from indexed_tokens import Tokenizer
from machine import describe, save
from webtext_prep.documents.document import Document
from webtext_prep.running.tasks import Tally
from webtext_prep.stages.clean import Clean, has_tokens
from webtext_prep.text import fingerprints
from webtext_prep.text.repair import repair

COPIES = 20


def documents() -> list[str]:
    """Pages of the interpreter's documentation, some of them with non-ASCII characters put in."""
    modules = ("argparse", "ast", "asyncio", "datetime", "email", "json", "os", "pathlib", "typing", "unittest")
    pages = [*topics.values(), *(pydoc.plain(pydoc.render_doc(name)) for name in modules)]
    marks = ("", " — ", " é", " “quoted”")
    return [f"Copy {copy}{marks[copy % 4]}\n{page}" for copy in range(COPIES) for page in pages]


def measure(name: str, work: Callable[[str], Any], texts: list[str]) -> dict[str, Any]:
    """Call `work` on each text; documents and megabytes per second."""
    work(texts[0])
    start = time.perf_counter()
    for text in texts:
        work(text)
    seconds = time.perf_counter() - start
    size = sum(len(text.encode()) for text in texts) / 1e6
    row = {
        "what": name,
        "documents_per_second": round(len(texts) / seconds, 1),
        "MB_per_second": round(size / seconds, 2),
    }
    print(f"  {name:<52} {row['documents_per_second']:>10,} documents/s {row['MB_per_second']:>9,} MB/s")
    return row


def plain_signature(text: str) -> Any:
    """datasketch as its documentation shows it: one update per shingle."""
    sketch = MinHash(num_perm=fingerprints.PERMUTATIONS, hashfunc=xxhash.xxh32_intdigest, scheme="affine32")
    for shingle in fingerprints.shingles(text, "word", 5):
        sketch.update(shingle)
    return sketch


def main() -> None:
    """Measure and save."""
    texts = documents()
    few = texts[:: max(1, len(texts) // 100)]
    tokenizer, clean = Tokenizer.gpt2(), Clean()
    langdetect.DetectorFactory.seed = 0
    print(f"{len(texts)} documents, {sum(map(len, texts)) / len(texts):,.0f} characters on average, one core")
    rows = [
        measure("repair: ftfy.fix_text", ftfy.fix_text, few),
        measure("repair: ours", repair, texts),
        measure("at least 128 tokens: tokenizer", lambda text: len(tokenizer.encode(text)) >= 128, texts),
        measure("at least 128 tokens: ours", lambda text: has_tokens(text, 128, tokenizer), texts),
        measure("language: langdetect on the whole text", langdetect.detect, few),
        measure("clean: the whole stage", lambda t: list(clean.process([Document("u", t)], Tally())), few),
        measure("signature: datasketch, one update per shingle", plain_signature, few),
        measure("signature: ours", lambda t: fingerprints.signature(fingerprints.shingles(t, "word", 5)), texts[::5]),
        measure("tokenize", tokenizer.encode, texts),
    ]
    versions = ("ftfy", "langdetect", "datasketch", "xxhash", "tiktoken")
    save("stages", {"machine": describe(*versions), "results": rows})


if __name__ == "__main__":
    main()
