"""Whose copy stays in `webtext dedup`, and what only the dropped ones had."""

import re

import pytest
from dedup_runs import WORDS, command, read_receipts, run, similar_documents, text_of, urls, write
from plain_words import plain_words

from webtext_prep.documents.document import Document


def trigrams(text: str) -> set[tuple[str, ...]]:
    words = [word for word, *_ in plain_words(text)]
    return {tuple(words[at : at + 3]) for at in range(max(1, len(words) - 2))}


def lacking(text: str, other: str) -> float:
    return len(trigrams(text) - trigrams(other)) / len(trigrams(text))


def copies() -> list[Document]:
    """One text from five places, the longest first."""
    hosts = {"a.org": "crawl", "b.org": "books", "www.c.org": "crawl", "d.org": "wiki", "e.org": "crawl"}
    return [
        Document(f"http://{host}/1", text_of(1, 200 - at), {"source": source, "rank": at})
        for at, (host, source) in enumerate(hosts.items())
    ]


@pytest.mark.parametrize(
    ("prefer", "kept", "preferred"),
    [
        ([], "http://a.org/1", None),
        (["source=wiki", "source=books"], "http://d.org/1", "source=wiki"),
        (["source=none", "source=books"], "http://b.org/1", "source=books"),
        (["domain=c.org"], "http://www.c.org/1", "domain=c.org"),
        (["rank=4"], "http://e.org/1", "rank=4"),
        (["source=crawl"], "http://a.org/1", "source=crawl"),
        (["input={}/in/part-00003.jsonl.zst", "input={}/in"], "http://d.org/1", "input={}/in/part-00003.jsonl.zst"),
    ],
)
def test_the_copy_of_a_preferred_source_stays_however_long(tmp_path, capsys, prefer, kept, preferred):
    source = write(tmp_path / "in", copies(), 5)
    given = [text.format(tmp_path) for text in prefer]
    run(capsys, source, tmp_path / "out", *(["--prefer", *given] if given else []))
    assert urls(tmp_path / "out") == {kept}
    rows = {row["url"]: row for row in read_receipts(tmp_path / "out")}
    assert {row["duplicate_of"] for row in rows.values()} == {kept} and len(rows) == 4
    of_other = {document.url for document in copies() if document.metadata["source"] != "crawl"}
    said = {url: row.get("preferred") for url, row in rows.items()}
    if prefer == ["source=crawl"]:  # among its own the longest one stays, as ever
        assert said == {url: preferred if url in of_other else None for url in rows}
    else:
        assert set(said.values()) == {preferred and preferred.format(tmp_path)}


def test_a_preference_decides_the_same_whatever_the_order_of_the_input_and_the_workers(tmp_path, capsys):
    documents = [
        Document(document.url, document.text, {"source": f"s{at % 3}"})
        for at, document in enumerate(similar_documents())
    ]
    kept = []
    for name, order, shards, workers in (("a", documents, 1, 1), ("b", documents[::-1], 3, 2)):
        source = write(tmp_path / name, order, shards)
        run(capsys, source, tmp_path / f"out-{name}", "--prefer", "source=s2", "source=s1", "--workers", workers)
        kept.append((urls(tmp_path / f"out-{name}"), sorted(map(str, read_receipts(tmp_path / f"out-{name}")))))
    assert kept[0] == kept[1] and len(kept[0][0]) < len(documents)


def test_a_preference_that_names_no_source_is_refused(tmp_path, capsys):
    assert command(write(tmp_path / "in", copies()), tmp_path / "out", "--prefer", "books") == 2
    assert "give input=PATH, domain=NAME, or KEY=VALUE of the metadata." in capsys.readouterr().err


@pytest.mark.parametrize("shingle", ["word:5", "word:2", "char:9"])
def test_a_receipt_says_which_share_of_3_grams_the_kept_document_lacks(tmp_path, capsys, shingle):
    documents = [*similar_documents(), Document("http://z.org/", text_of(1).upper()), Document("http://e.org/", "")]
    texts = {document.url: document.text for document in documents}
    options = ("--similarity", 0.6, "--shingle", shingle)
    summary = run(capsys, write(tmp_path / "in", documents, 2), tmp_path / "out", *options)
    rows = read_receipts(tmp_path / "out")
    assert len(rows) > 20 and any(row["lacking"] > 0.05 for row in rows)
    for row in rows:
        assert row["lacking"] == round(lacking(texts[row["url"]], texts[row["duplicate_of"]]), 6)
    counts = [int(count) for entry in summary["lacking_in_what_stays"] for count in re.findall(r": (\d+)$", entry)]
    assert sum(counts) == len(rows)


def test_with_contained_only_what_another_document_holds_goes(tmp_path, capsys):
    """As the greedy rule has it: what stays for its own 3-grams may stand for others."""
    documents = similar_documents()
    source = write(tmp_path / "in", documents, 3)
    for share in (0.9, 1.0):
        run(capsys, source, tmp_path / f"out-{share}", "--similarity", 0.5, "--contained", share)
        kept = urls(tmp_path / f"out-{share}")
        by_url = {document.url: document for document in documents}
        rows = read_receipts(tmp_path / f"out-{share}")
        assert all(row["lacking"] <= 1 - share + 1e-6 for row in rows)
        assert kept == by_url.keys() - {row["url"] for row in rows}
    assert len(kept) == len(documents)  # each has words of its own


def test_a_shorter_part_of_a_document_is_contained_and_a_changed_one_is_not(tmp_path, capsys):
    whole = text_of(1, 200)
    documents = [
        Document("http://a.org/whole", whole),
        Document("http://a.org/part", " ".join(whole.split()[:180]).upper()),
        Document("http://a.org/changed", " ".join([*whole.split()[:190], *WORDS[:3]])),
    ]
    source = write(tmp_path / "in", documents)
    run(capsys, source, tmp_path / "out")
    assert urls(tmp_path / "out") == {"http://a.org/whole"}
    run(capsys, source, tmp_path / "contained", "--contained", 1.0)
    assert urls(tmp_path / "contained") == {"http://a.org/whole", "http://a.org/changed"}
    capsys.readouterr()
    assert command(source, tmp_path / "none", "--contained", 1.5) == 2
