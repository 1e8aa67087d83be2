"""`webtext dedup`: near-duplicates are dropped, other documents stay, and the result is always the same."""

import itertools
import json
import random

import pytest
from dedup_runs import changed, read_receipts, run, scratch_used, similar_documents, text_of, urls, write
from jobs import job_of
from plain_shingles import similarity

from webtext_prep.cli import main
from webtext_prep.dedup import candidates
from webtext_prep.documents.document import Document, decode_document, encode_document
from webtext_prep.documents.folders.sampling import Sample
from webtext_prep.documents.folders.shards import shards_in
from webtext_prep.documents.formats import compression, json_lines
from webtext_prep.documents.formats.compression import read_chunks
from webtext_prep.stages import dedup
from webtext_prep.stages.dedup import Dedup
from webtext_prep.text import fingerprints


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.8, 0.9, 1.0])
def test_bands_find_nearly_all_pairs_at_the_threshold(threshold):
    """Pitfall 13: pairs were missed."""
    bands, rows = fingerprints.bands_for(threshold)
    assert bands * rows <= 128
    assert 1 - (1 - threshold**rows) ** bands >= 0.99


@pytest.mark.parametrize("shingle", ["word", "line:5", "word:0", "word:x", "char:-1"])
def test_an_unknown_shingle_is_refused(tmp_path, capsys, shingle):
    source = write(tmp_path / "in", [Document("http://a.org/", "text")])
    assert main(["dedup", "--input", str(source), "--output", str(tmp_path / "o"), "--shingle", shingle]) == 2
    assert shingle in capsys.readouterr().err


def test_the_longest_of_a_group_stays_and_the_table_says_for_whom(tmp_path, capsys):
    """Pitfall 15: the survivor was whichever came first, and nothing recorded which document it represented."""
    base = text_of(1)
    longest = base + " and a few words more"
    documents = [
        Document("http://a.org/short", base),
        Document("http://a.org/long", longest),
        Document("http://a.org/changed", changed(base, 2, 2)),
        Document("http://b.org/stranger", text_of(9)),
    ]
    source = write(tmp_path / "in", documents)
    summary = run(capsys, source, tmp_path / "out")
    assert urls(tmp_path / "out") == {"http://a.org/long", "http://b.org/stranger"}
    assert (summary["dropped"], summary["groups"]) == ({"duplicate": 2}, 1)
    table = read_receipts(tmp_path / "out")
    assert [(row["url"], row["duplicate_of"]) for row in table] == [
        ("http://a.org/short", "http://a.org/long"),
        ("http://a.org/changed", "http://a.org/long"),
    ]
    assert table[0]["similarity"] == round(similarity(base, longest), 6)
    assert table[0]["match"] == base[:200]
    assert all(longest.find(row["match"]) >= 0 for row in table)


def test_a_row_of_the_table_names_the_domains_of_both(tmp_path, capsys):
    """Nothing told whether a duplicate came from the same site."""
    documents = [
        Document("http://www.a.co.uk/1", text_of(1) + " end"),
        Document("http://b.org/1", text_of(1)),
        Document("http://c.org/1", text_of(1), {"domain": "known.org"}),
        Document("no address", text_of(1)),
    ]
    run(capsys, write(tmp_path / "in", documents), tmp_path / "out")
    table = read_receipts(tmp_path / "out")
    assert [row["domain"] for row in table] == ["b.org", "known.org", ""]
    assert {row["duplicate_of_domain"] for row in table} == {"a.co.uk"}


def test_the_answer_does_not_depend_on_order_shards_or_workers(tmp_path, capsys):
    """Pitfall 13: results changed from run to run."""
    documents = [
        Document(f"http://a.org/{group}/{copy}", changed(text_of(group), copy, copy * 2))
        for group, copy in itertools.product(range(15), range(4))
    ]
    answers = []
    for attempt, (shards, workers) in enumerate(((1, 1), (3, 2), (4, 1))):
        random.Random(attempt).shuffle(documents)
        source = write(tmp_path / f"in{attempt}", documents, shards)
        run(capsys, source, tmp_path / f"out{attempt}", "--workers", workers)
        table = read_receipts(tmp_path / f"out{attempt}")
        answers.append(sorted((row["url"], row["duplicate_of"], row["similarity"]) for row in table))
    assert answers[0] == answers[1] == answers[2]
    assert len(answers[0]) > 20


def test_exactly_the_pairs_above_the_threshold_go(tmp_path, capsys):
    """Pitfall 13: a bucket was compared with its first member only; pairs are now verified exactly."""
    documents = [
        Document(f"http://a.org/{group}/{copy}", changed(text_of(group), copy, copy * 3))
        for group, copy in itertools.product(range(20), range(5))
    ]
    source = write(tmp_path / "in", documents)
    run(capsys, source, tmp_path / "out", "--similarity", 0.8)
    texts = {document.url: document.text for document in documents}
    survivors = urls(tmp_path / "out")
    for row in read_receipts(tmp_path / "out"):
        assert row["duplicate_of"] in survivors
        assert similarity(texts[row["url"]], texts[row["duplicate_of"]]) >= 0.8
    for left, right in itertools.combinations(sorted(survivors), 2):
        assert similarity(texts[left], texts[right]) < 0.8


def test_a_chain_of_similar_documents_does_not_swallow_strangers(tmp_path, capsys):
    """Pitfall 14: transitive closure merged unrelated documents into one group."""
    words = text_of(3, 400).split()
    # Each document shares nine tenths with the next; the ends of the chain share little.
    chain = [Document(f"http://a.org/{step:02}", " ".join(words[step * 10 : step * 10 + 200])) for step in range(20)]
    run(capsys, write(tmp_path / "in", chain), tmp_path / "out", "--similarity", 0.8)
    texts = {document.url: document.text for document in chain}
    table = read_receipts(tmp_path / "out")
    assert len(urls(tmp_path / "out")) >= 7
    assert all(similarity(texts[row["url"]], texts[row["duplicate_of"]]) >= 0.8 for row in table)


def test_documents_shorter_than_a_shingle_are_compared_as_a_whole(tmp_path, capsys):
    """Pitfall 13: documents shorter than one shingle all collided."""
    texts = ["one two", "one three", "ONE  two", "four", "one two three four five six"]
    documents = [Document(f"http://a.org/{number}", text) for number, text in enumerate(texts)]
    summary = run(capsys, write(tmp_path / "in", documents), tmp_path / "out")
    assert summary["dropped"] == {"duplicate": 1}
    (row,) = read_receipts(tmp_path / "out")
    assert {row["url"], row["duplicate_of"]} == {"http://a.org/0", "http://a.org/2"}


def test_two_records_of_one_url_do_not_both_survive(tmp_path, capsys):
    """Pitfall 13: two records with the same URL both survived."""
    documents = [Document("http://a.org/", text_of(1)), Document("http://a.org/", text_of(1))]
    assert run(capsys, write(tmp_path / "in", documents), tmp_path / "out")["out"] == 1


def test_parameters_passed_in_are_used(tmp_path, capsys):
    """Pitfall 13: parameters passed in were ignored."""
    documents = [Document("http://a.org/1", text_of(1)), Document("http://a.org/2", changed(text_of(1), 1, 12))]
    source = write(tmp_path / "in", documents)
    found = similarity(documents[0].text, documents[1].text)
    assert 0.5 < found < 0.8
    assert run(capsys, source, tmp_path / "strict", "--similarity", 0.8)["out"] == 2
    assert run(capsys, source, tmp_path / "loose", "--similarity", 0.5)["out"] == 1
    assert run(capsys, source, tmp_path / "chars", "--similarity", 0.8, "--shingle", "char:5")["out"] == 1


@pytest.mark.parametrize("similarity", ["0", "1.5", "-1"])
def test_a_similarity_outside_its_range_is_refused(tmp_path, capsys, similarity):
    source = write(tmp_path / "in", [Document("http://a.org/", "text")])
    arguments = ["--input", str(source), "--output", str(tmp_path / "o"), "--similarity", similarity]
    assert main(["dedup", *arguments]) == 2
    assert "--similarity" in capsys.readouterr().err


def test_it_is_the_simple_greedy_rule(tmp_path, capsys):
    """Of all pairs of these documents, not of those in a bucket: at this threshold bands miss none of them."""
    documents = similar_documents()
    source = write(tmp_path / "in", documents, 3)
    run(capsys, source, tmp_path / "out", "--similarity", 0.7)
    kept: list[Document] = []
    expected = {}
    for document in sorted(documents, key=lambda document: (-len(document.text), document.url)):
        found = [(similarity(document.text, other.text), other.url) for other in kept]
        best = max((similarity for similarity, _ in found), default=0.0)
        if best >= 0.7:
            expected[document.url] = next(url for similarity, url in found if similarity == best), round(best, 6)
        else:
            kept.append(document)
    table = read_receipts(tmp_path / "out")
    assert {row["url"]: (row["duplicate_of"], row["similarity"]) for row in table} == expected
    assert len(expected) > 10


def test_bytes_do_not_depend_on_how_the_work_is_divided(tmp_path, capsys, monkeypatch, contents):
    """Blocks, ranges of keys and parts bound the memory, and nothing else."""
    source = write(tmp_path / "in", [*similar_documents(), Document("http://e.org/", "")], 3)
    write(source.parent / "more", [], 1)
    (source.parent / "more" / "part-00000.jsonl.zst").rename(source / "part-00003.jsonl.zst")
    run(capsys, source, tmp_path / "whole")
    monkeypatch.setattr(compression, "CHUNK_BYTES", 400)
    monkeypatch.setattr(json_lines, "BLOCK_BYTES", 1)
    monkeypatch.setattr(candidates, "BLOCK_DOCUMENTS", 3)
    monkeypatch.setattr(candidates, "PART_CHARACTERS", (1, 1))
    monkeypatch.setattr(dedup, "SORTED_DOCUMENTS", 7)
    run(capsys, source, tmp_path / "divided")
    whole, divided = contents(tmp_path / "whole"), contents(tmp_path / "divided")
    assert whole.keys() == divided.keys()
    assert whole == divided


def test_phases_that_are_done_are_not_done_again(tmp_path, capsys, monkeypatch, contents):
    """Files between phases are removed when they have been used: what they were used for counts as done."""
    source = write(tmp_path / "in", similar_documents(), 3)
    run(capsys, source, tmp_path / "whole")
    arguments = ["dedup", "--input", str(source), "--output", str(tmp_path / "out"), "--workers", "1"]
    with monkeypatch.context() as patched:
        patched.setattr(Dedup, "drop_shard", lambda self, task, context: [][0])
        assert main(arguments) == 1
    scratch = tmp_path / "out" / ".state" / "scratch"
    assert {path.name for path in scratch.iterdir() if path.is_dir()} == {"groups", "receipts"}
    with monkeypatch.context() as patched:
        for phase in ("fingerprint_shard", "sort_bands", "find_components", "collect_candidates", "decide"):
            patched.setattr(Dedup, phase, lambda self, task, context: pytest.fail("done again"))
        assert main(arguments) == 0
    assert contents(tmp_path / "whole") == contents(tmp_path / "out")


def test_an_input_that_changed_meanwhile_is_worked_on_from_the_start(tmp_path, capsys, monkeypatch, contents):
    source = write(tmp_path / "in", similar_documents(), 3)
    arguments = ["dedup", "--input", str(source), "--output", str(tmp_path / "out"), "--workers", "1"]
    with monkeypatch.context() as patched:
        patched.setattr(Dedup, "drop_shard", lambda self, task, context: [][0])
        assert main(arguments) == 1
    write(source, similar_documents(13), 3)
    run(capsys, source, tmp_path / "whole")
    assert main(arguments) == 0
    assert contents(tmp_path / "whole") == contents(tmp_path / "out")


def test_it_needs_no_more_disk_than_it_says(tmp_path, monkeypatch):
    """A run could fill the disk with files between its dedup, and nothing said so before."""
    source = write(tmp_path / "in", similar_documents(200, 3), 2)
    job = job_of(Dedup(), shards_in(source), tmp_path / "out")
    needed = job.estimate(job.sample()).needs
    used = scratch_used(monkeypatch)
    job.run()
    assert 0.2 * needed.scratch < max(used) <= needed.scratch
    assert needed.documents == 600
    assert Dedup(shingle="char:5").needs(Sample(text=10**12), 1).memory > Dedup().needs(Sample(text=10**12), 1).memory


def test_pieces_of_a_page_are_told_apart(tmp_path, capsys):
    """The table called all pieces of a page by its URL: a row said that a document duplicates itself, and what was
    dropped could not be told from what stays."""
    pieces = [Document("http://a/", text_of(1), {"piece": number}) for number in (1, 2)]
    write(tmp_path / "in", [*pieces, Document("http://b/", text_of(2))])
    assert run(capsys, tmp_path / "in", tmp_path / "out")["out"] == 2
    (row,) = read_receipts(tmp_path / "out")
    assert (row["url"], row["duplicate_of"]) == ("http://a/#piece-2", "http://a/#piece-1")
    assert main(["inspect", str(tmp_path / "out"), "--dropped", "duplicate", "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)["samples"]
    assert (shown["url"], shown["piece"]) == ("http://a/", 2)


@pytest.mark.parametrize(
    ("start", "form", "end", "value"),
    [
        ("", "{}", "\n", '"caf\u00e9"'),
        ("", "{}", "", '"caf\u00e9"'),
        ("", "{}", "\n\n\n", '"caf\u00e9"'),
        ("\ufeff", "{}", "\n", '"caf\u00e9"'),
        ("", "{}\n", "\n", '"caf\u00e9"'),
        ("", " {}", "\n", '"caf\u00e9"'),
        ("", "{}\r", "\n", '"caf\u00e9"'),
        ("", "{}", "\n", '"caf\\u00e9"'),
        ("", "{}", "\n", "1.50"),
        ("", "{}", "\n", '"http://me:secret@b.org/"'),
    ],
)
def test_lines_are_copied_only_where_writing_them_again_gives_the_same(tmp_path, capsys, start, form, end, value):
    """What is kept is not decoded again: it is what decoding and encoding would give, however a line is written."""
    rows = [f'{{"url":"http://a.org/{at}","note":{value},"text":"{text_of(at // 2)}"}}' for at in range(6)]
    source = tmp_path / "in" / "part-00000.jsonl"
    source.parent.mkdir()
    source.write_bytes((start + "\n".join(map(form.format, rows)) + end).encode())
    run(capsys, source.parent, tmp_path / "out")
    kept = b"".join(encode_document(decode_document(rows[at].encode())) + b"\n" for at in (0, 2, 4))
    assert b"".join(read_chunks(tmp_path / "out" / "part-00000.jsonl.zst")) == kept
    assert [row["url"] for row in read_receipts(tmp_path / "out")] == [f"http://a.org/{at}" for at in (1, 3, 5)]
