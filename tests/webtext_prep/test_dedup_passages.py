"""`webtext dedup-passages`: what stands earlier in the corpus is found exactly, and cut out with a receipt."""

import itertools
import json
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import job_of
from tests.webtext_prep.support.plain_words import plain_words

from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.shards import REPEATS, read_documents, shards_in, write_documents
from webtext_prep.documents.formats.compression import read_chunks
from webtext_prep.stages import dedup_passages
from webtext_prep.stages.dedup_passages import DedupPassages
from webtext_prep.urls.urls import is_held_out

WORDS = [f"word{number}" for number in range(1000)]


def sentence(seed: int, words: int = 60) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=words)).capitalize() + "."


def rows(folder) -> list[dict]:
    """The table of passages."""
    return [json.loads(line) for line in b"".join(read_chunks(folder / REPEATS)).splitlines()]


# The definition, as it reads

MARKS = ".!?。"


def plain_passages(documents: list[Document], size: int, hold_out: float = 0) -> list[dict]:
    """Every window of words is looked up among all that begin before it, in pages that are held out first of all."""
    seen: dict[tuple[str, ...], tuple[int, int, int]] = {}
    table = []
    for number, document in sorted(enumerate(documents), key=lambda each: not is_held_out(each[1].url, hold_out)):
        words, before = plain_words(document.text), None
        for at in range(len(words) - size + 1):
            start, end = words[at][1], words[at + size - 1][2]
            window = tuple(word for word, _, _ in words[at : at + size])
            first = seen.setdefault(window, (number, at, start))
            if first == (number, at, start):
                before = None
            elif before == first[0]:
                table[-1]["end"] = end
            else:
                kept = {"duplicate_of": documents[first[0]].id, "duplicate_of_start": first[2]}
                table.append({"url": document.id, "start": start, "end": end, **kept})
                before = first[0]
    texts = {document.id: document.text for document in documents}
    for row in table:
        row["match"] = texts[row["url"]][row["start"] : row["end"]][:200]
    order = [document.id for document in documents]
    return sorted(table, key=lambda row: order.index(row["url"]))


def plain_pieces(text: str, hits: list[tuple[int, int]], shortest: int) -> list[str]:
    """What no sentence with a part of a hit covers."""
    stays = [True] * len(text)
    for start, end in hits:
        while start and text[start - 1] not in MARKS + "\n":
            start -= 1
        while end < len(text) and text[end] not in MARKS + "\n":
            end += 1
        end += 1 if text[end : end + 1] == "\n" else len(text[end:]) - len(text[end:].lstrip(MARKS))
        stays[start:end] = [False] * len(stays[start:end])
    runs = (list(run) for is_left, run in itertools.groupby(range(len(text)), stays.__getitem__) if is_left)
    pieces = (text[run[0] : run[-1] + 1].strip() for run in runs if len(run) > shortest)
    return [piece for piece in pieces if piece]


few_words = st.lists(st.sampled_from(["a", "B", "ß", "ΐ", "İx", "\u0345", "—"]), min_size=1, max_size=6)
known = [" ".join(random.Random(seed).choices("abcde", k=9 + 3 * seed)) for seed in range(4)] + ["A b, c a B " * 6]
chunks = st.one_of(st.sampled_from(known), few_words.map(" ".join), st.sampled_from([known[0].upper(), "... !! " * 7]))
ends = st.sampled_from([" ", ". ", "\n", ", ", "。", "! "])
texts = st.lists(st.tuples(chunks, ends).map("".join), max_size=7).map("".join)


@given(
    st.lists(st.lists(texts, max_size=6), min_size=1, max_size=2),
    st.integers(10, 13),
    st.integers(1, 40),
    st.sampled_from([0, 0.5]),
)
def test_what_is_cut_equals_the_simple_definition(shards, size, shortest, hold_out):
    documents = [
        [Document(f"http://{number}.org/{row}", text) for row, text in enumerate(shard)]
        for number, shard in enumerate(shards)
    ]
    corpus = [*itertools.chain(*documents)]
    table = plain_passages(corpus, size, hold_out)
    expected = []
    for document in corpus:
        hits = [(row["start"], row["end"]) for row in table if row["url"] == document.id]
        expected += document.cut(plain_pieces(document.text, hits, shortest)) if hits else [document]
    # Small ranges, batches and blocks, as large corpora have them.
    with pytest.MonkeyPatch.context() as patched, tempfile.TemporaryDirectory() as name:
        for constant, value in {"RANGE_CHARACTERS": 400, "RANGE_WINDOWS": 50, "BLOCK": 2}.items():
            patched.setattr(dedup_passages, constant, value)
        folder = Path(name)
        for number, shard in enumerate(documents):
            with write_documents(folder / "in" / f"part-{number:05}.jsonl.zst") as writer:
                for document in shard:
                    writer.write(document)
        if not expected:
            return
        done = job_of(DedupPassages(size, shortest, hold_out), shards_in(folder / "in"), folder / "out").run()
        assert [found for shard in shards_in(folder / "out") for found in read_documents(shard)] == expected
        assert rows(folder / "out") == table
        copies = sum(is_held_out(row["duplicate_of"], hold_out) > is_held_out(row["url"], hold_out) for row in table)
        assert done.tally.notes["copies_of_held_out"] == copies


@pytest.fixture
def run(webtext, tmp_path):
    """Runs the stage on a folder; returns its summary."""

    def call(folder, *flags, output="out"):
        done = webtext("dedup-passages", "--input", folder, "--output", tmp_path / output, "--json", *flags)
        assert done.code == 0, done.err
        return done.json

    return call


NOTICE = sentence(1)


@pytest.fixture
def notices(write_shards):
    """Three pages with one notice, one of them with little else; and a page without."""
    pages = {
        "a": f"{sentence(2)}\n{NOTICE}\n{sentence(3)}",
        "b": sentence(4),
        "c": f"{sentence(5)} {NOTICE.upper()} {sentence(6)}",
        "d": f"Read this. {NOTICE[:-1]}!",
    }
    documents = [Document(f"http://{name}.org/", text, {"title": name}) for name, text in pages.items()]
    return write_shards([documents[:2], documents[2:]])


def test_the_first_place_keeps_a_passage_and_the_others_have_a_receipt(run, notices, read_shards, tmp_path):
    done = run(notices)
    assert (done["in"], done["added"], done["out"], done["dropped"]) == (4, 1, 4, {"repeated": 1})
    assert done["notes"] == {"cut": 1, "passages": 2}
    a, b, first, second = read_shards(tmp_path / "out")
    assert [a, b] == read_shards(notices)[:2]
    assert [(first.id, first.text), (second.id, second.text)] == [
        ("http://c.org/#piece-1", sentence(5)),
        ("http://c.org/#piece-2", sentence(6)),
    ]
    assert first.metadata == {"title": "c", "piece": 1}
    (gone,) = read_shards(tmp_path / "out" / "dropped")
    assert (gone.url, gone.metadata["reason"]) == ("http://d.org/", "repeated")
    words, begin = NOTICE[:-1], len(sentence(5)) + 1
    kept = {"duplicate_of": "http://a.org/", "duplicate_of_start": len(sentence(2)) + 1}
    assert rows(tmp_path / "out") == [
        {"url": "http://c.org/", "start": begin, "end": begin + len(words), "match": words.upper()[:200], **kept},
        {"url": "http://d.org/", "start": 11, "end": 11 + len(words), "match": words[:200], **kept},
    ]


def test_a_sentence_is_left_whole_and_a_list_line_by_line(run, write_shards, read_shards, tmp_path):
    """Only sentences ended what is cut along: of a list, or of Chinese text, nothing was left."""
    above, below = ("\n".join(f"{number} {name}" for number in range(100)) for name in ("bottles", "days"))
    passage = " ".join(WORDS[:60])
    run(write_shards([[passage, f"{above}\nHere: {passage} and so on\n{below}"]]))
    assert [document.text for document in read_shards(tmp_path / "out")] == [passage, above, below]


def test_what_repeats_itself_is_left_once(run, write_shards, read_shards, tmp_path):
    text = "To be, or not to be? " * 50
    assert run(write_shards([[text, sentence(1)]]), "--shortest-piece", 10)["notes"] == {"cut": 1, "passages": 1}
    assert read_shards(tmp_path / "out")[0].text == "To be, or not to be?"


@pytest.fixture
def corpus(notices, webtext, tmp_path):
    """The pages as token files, from files that may change."""
    (place, other) = shards_in(notices)
    for number, shard in enumerate((place, other)):
        shard.rename(shard.with_name(f"pages-{number}.jsonl.zst"))
    for stage, read, output in (
        ("merge", "input", "merged"),
        ("dedup-passages", "merged", "cut"),
        ("tokenize", "cut", "corpus"),
    ):
        done = webtext(stage, "--input", tmp_path / read, "--output", tmp_path / output)
        assert done.code == 0, done.err
    return tmp_path


def test_what_was_cut_out_and_who_keeps_it_is_told(corpus, webtext):
    def events(url):
        found = webtext("why", url, corpus / "corpus", "--json").json["stories"]
        return [next(event for event in story["events"] if event["stage"] == "dedup-passages") for story in found]

    (kept,) = events("http://a.org/")
    assert (kept["verdict"], kept["kept_instead_of"]) == ("kept", 2)
    pieces = events("http://c.org/")
    assert [event["verdict"] for event in pieces] == ["kept"] * 2
    assert [event["cut_out"][0]["duplicate_of"] for event in pieces] == ["http://a.org/"] * 2
    (dropped,) = events("http://d.org/")
    assert (dropped["verdict"], dropped["reason"]) == ("dropped", "repeated")
    assert "(from http://a.org/)" in webtext("why", "http://d.org/", corpus / "corpus").out
    page = corpus / "report.html"
    assert webtext("report", corpus / "corpus", "--output", page, "--workers", 1).code == 0
    shown = page.read_text(encoding="utf-8")
    assert "Most repeated passages" in shown
    assert "2 passages were cut out; places where such a passage stands first: 1." in shown
    assert webtext("export", "--input", corpus / "cut", "--output", corpus / "dataset").code == 0
    card = (corpus / "dataset" / "README.md").read_text(encoding="utf-8")
    assert "Passages that stand earlier in the corpus were cut out of 1 of 4 documents." in card


def test_a_removed_page_gives_its_passages_back(corpus, webtext, read_shards):
    """As with duplicates: the second place is then the first one."""
    (corpus / "remove.txt").write_text("http://a.org/\n")
    source = corpus / "input" / "pages-0.jsonl.zst"
    (_, b), others = read_documents(source), read_shards(corpus / "merged")[2:]
    with write_documents(source) as writer:
        writer.write(b)
    done = webtext("takedown", "--urls", corpus / "remove.txt", corpus / "corpus", "--apply", "--workers", 1)
    assert done.code == 0, done.err
    assert read_shards(corpus / "cut") == [b, others[0]]
    assert [row["duplicate_of"] for row in rows(corpus / "cut")] == ["http://c.org/"]
