"""`webtext dedup-passages`: what stands earlier in the corpus is found exactly, and cut out with a receipt."""

import itertools
import json
import random
import re
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import job_of

from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.shards import PASSAGES, read_documents, shards_in, write_documents
from webtext_prep.documents.formats.compression import read_chunks
from webtext_prep.stages import dedup_passages
from webtext_prep.stages.dedup_passages import DedupPassages
from webtext_prep.text.contamination.cutting import LINE_ENDS

WORDS = [f"word{number}" for number in range(1000)]


def sentence(seed: int, words: int = 60) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=words)).capitalize() + "."


def rows(folder) -> list[dict]:
    """The table of passages."""
    return [json.loads(line) for line in b"".join(read_chunks(folder / PASSAGES)).splitlines()]


# The definition, as it reads


def places_of(text: str) -> list[tuple[str, int, int]]:
    """Each word of a text, case folded, and where it begins and ends."""
    if not re.search(r"\w", text):
        return []
    folded = [(folded, at) for at, character in enumerate(text) for folded in character.casefold()]
    found = re.finditer(r"\w+", "".join(character for character, _ in folded))
    return [(word[0], folded[word.start()][1], folded[word.end() - 1][1] + 1) for word in found]


def plain_passages(documents: list[Document], size: int) -> list[dict]:
    """Every window of words is looked up among all that begin before it."""
    seen: dict[tuple[str, ...], tuple[int, int, int]] = {}
    table = []
    for number, document in enumerate(documents):
        words, before = places_of(document.text), None
        for at in range(len(words) - size + 1):
            start, end = words[at][1], words[at + size - 1][2]
            window = tuple(word for word, _, _ in words[at : at + size])
            first = seen.setdefault(window, (number, at, start))
            if first == (number, at, start):
                before = None
            elif before == (first[0], first[1] - 1):
                table[-1]["end"], before = end, first[:2]
            else:
                kept = {"duplicate_of": documents[first[0]].id, "duplicate_of_start": first[2]}
                table.append({"url": document.id, "start": start, "end": end, **kept})
                before = first[:2]
    texts = {document.id: document.text for document in documents}
    for row in table:
        row["match"] = texts[row["url"]][row["start"] : row["end"]][:200]
    return table


def plain_pieces(text: str, hits: list[tuple[int, int]], shortest: int) -> list[str]:
    """What no sentence with a part of a hit covers."""
    stays = [True] * len(text)
    for start, end in hits:
        while start and text[start - 1] not in LINE_ENDS:
            start -= 1
        while end < len(text) and text[end] not in LINE_ENDS:
            end += 1
        stays[start : end + 1] = [False] * len(stays[start : end + 1])
    runs = (list(run) for is_left, run in itertools.groupby(range(len(text)), stays.__getitem__) if is_left)
    pieces = (text[run[0] : run[-1] + 1].strip() for run in runs if len(run) > shortest)
    return [piece for piece in pieces if piece]


few_words = st.lists(st.sampled_from(["a", "B", "ß", "ΐ", "İx", "\u0345", "—"]), min_size=1, max_size=6)
known = [" ".join(random.Random(seed).choices("abcde", k=9 + 3 * seed)) for seed in range(4)] + ["A b, c a B " * 6]
chunks = st.one_of(st.sampled_from(known), few_words.map(" ".join), st.sampled_from([known[0].upper(), "... !!"]))
ends = st.sampled_from([" ", ". ", "\n", ", ", "。", "! "])
texts = st.lists(st.tuples(chunks, ends).map("".join), max_size=7).map("".join)


@given(st.lists(st.lists(texts, max_size=5), min_size=1, max_size=3), st.integers(10, 13), st.integers(1, 40))
def test_what_is_cut_equals_the_simple_definition(shards, size, shortest):
    documents = [
        [Document(f"http://{number}.org/{row}", text) for row, text in enumerate(shard)]
        for number, shard in enumerate(shards)
    ]
    corpus = [*itertools.chain(*documents)]
    table = plain_passages(corpus, size)
    expected = []
    for document in corpus:
        hits = [(row["start"], row["end"]) for row in table if row["url"] == document.id]
        expected += document.cut(plain_pieces(document.text, hits, shortest)) if hits else [document]
    # Small ranges, batches and blocks, as large corpora have them.
    with pytest.MonkeyPatch.context() as patched, tempfile.TemporaryDirectory() as name:
        for constant, value in {"RANGE_BYTES": 60, "RANGE_WINDOWS": 7, "BLOCK": 2}.items():
            patched.setattr(dedup_passages, constant, value)
        folder = Path(name)
        for number, shard in enumerate(documents):
            with write_documents(folder / "in" / f"part-{number:05}.jsonl.zst") as writer:
                for document in shard:
                    writer.write(document)
        if not expected:
            return
        job_of(DedupPassages(size, shortest), shards_in(folder / "in"), folder / "out").run()
        assert [found for shard in shards_in(folder / "out") for found in read_documents(shard)] == expected
        assert rows(folder / "out") == table
