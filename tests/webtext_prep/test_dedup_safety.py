"""`webtext dedup` with old documents, and its reports before and after it removes: losses, alarms, previews."""

import itertools
import json
import random
from pathlib import Path

import pytest
from dedup_runs import WORDS, command, read_receipts, read_table, run, urls, write
from plain_shingles import shingles

from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.shards import write_documents
from webtext_prep.errors import InputError
from webtext_prep.stages.dedup import Dedup


def text_of(seed: object, words: int = 60) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def finished(capsys, folder: Path, documents: list[Document]) -> Path:
    """The output of a run in which nothing was lost."""
    run(capsys, write(folder.with_name(f"{folder.name}-in"), documents), folder, "--similarity", 1)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def losing(domain: str, count: int, dropped: int) -> list[Document]:
    """Documents of a domain of which so many repeat the first one."""
    same = text_of(sum(map(ord, domain)))
    repeated = [Document(f"http://{domain}/{number}", same) for number in range(dropped + 1)]
    others = [Document(f"http://{domain}/other/{at}", text_of(f"{domain} {at}")) for at in range(count - dropped - 1)]
    return repeated + others


def test_a_domain_that_loses_most_of_its_documents_is_listed(tmp_path, capsys):
    documents = [
        *losing("much.org", 20, 12),
        *losing("half.org", 20, 10),
        *losing("small.org", 19, 18),
        Document("http://nowhere/", "..."),
    ]
    source = write(tmp_path / "in", documents, 3)
    summary = run(capsys, source, tmp_path / "out")
    assert summary["losses"] == [{"domain": "much.org", "documents": 20, "dropped": 12}]
    assert "domain much.org loses 12 of 20 documents (60%)" in " ".join(summary["problems"])
    assert json.loads((tmp_path / "out" / "stage.json").read_text())["facts"]["losses"] == summary["losses"]
    summary = run(capsys, source, tmp_path / "more", "--alarm-share", 0.45)
    assert [loss["domain"] for loss in summary["losses"]] == ["much.org", "half.org"]
    assert run(capsys, source, tmp_path / "none", "--alarm-share", 1)["losses"] == []


def test_sources_are_what_documents_name_or_else_their_folders(tmp_path, capsys):
    base = [Document(f"http://site{number}.org/", text_of(1), {"source": "feed"}) for number in range(25)]
    plain = [Document(f"http://site{number}.org/x", text_of(2)) for number in range(25)]
    one, other = write(tmp_path / "one", base), write(tmp_path / "other", plain)
    summary = run(capsys, one, tmp_path / "out", "--input", other)
    assert {loss.get("source") for loss in summary["losses"]} == {"feed", str(other)}
    summary = run(capsys, other, tmp_path / "single")
    assert summary["losses"] == []  # one folder tells nothing


def test_a_stage_that_would_remove_too_much_of_a_domain_stops_before_it_writes(tmp_path, capsys):
    source = write(tmp_path / "in", losing("a.org", 40, 30) + losing("b.org", 40, 25))
    output = tmp_path / "out"
    assert command(source, output, "--stop-share", 0.7) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert "domain a.org loses 30 of 40 documents (75%), which is more than --stop-share 0.7 allows" in error
    assert {path.name for path in output.iterdir()} == {".state"}
    # It goes on with another limit, which is no other output.
    summary = run(capsys, source, output, "--stop-share", 0.75)
    assert summary["out"] == 25
    run(capsys, source, tmp_path / "free")
    assert (output / "stage.json").read_bytes() == (tmp_path / "free" / "stage.json").read_bytes()


@pytest.mark.parametrize("name", ["alarm", "stop"])
@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_is_from_0_to_1(tmp_path, capsys, name, share):
    source = write(tmp_path / "in", [Document("http://a.org/", "text")])
    assert command(source, tmp_path / "out", f"--{name}-share", share) == 2
    assert f"--{name}-share must be from 0 to 1" in capsys.readouterr().err


@pytest.fixture
def old_and_new(tmp_path, capsys):
    """An old run with two documents alike, and new documents: shorter, longer than an old one, alike, and others."""
    first, second, third = text_of(1), text_of(2), text_of(3)
    old = finished(
        capsys,
        tmp_path / "old",
        [
            Document("http://old.org/first", first),
            Document("http://old.org/first/again", first + " end"),
            Document("http://old.org/second", second),
            Document("http://old.org/alone", text_of(9)),
        ],
    )
    new = write(
        tmp_path / "new",
        [
            Document("http://new.org/first", first + " and much more"),
            Document("http://new.org/second", second.rpartition(" ")[0]),
            Document("http://new.org/third", third),
            Document("http://new.org/third/shorter", third.rpartition(" ")[0]),
        ],
    )
    return old, new


def test_new_documents_like_old_ones_go_and_the_old_run_stays(tmp_path, capsys, old_and_new):
    old, new = old_and_new
    before = contents(old)
    summary = run(capsys, new, tmp_path / "out", "--against", old)
    assert urls(tmp_path / "out") == {"http://new.org/third"}
    assert (summary["in"], summary["out"], summary["dropped"]) == (4, 1, {"duplicate": 3})
    found = {row["url"]: row["duplicate_of"] for row in read_receipts(tmp_path / "out")}
    assert found == {
        "http://new.org/first": "http://old.org/first",
        "http://new.org/second": "http://old.org/second",
        "http://new.org/third/shorter": "http://new.org/third",
    }
    assert contents(old) == before
    assert not (tmp_path / "out" / "superseded.jsonl.zst").exists()
    assert "superseded" not in summary


def test_old_documents_that_lose_are_listed(tmp_path, capsys, old_and_new):
    old, new = old_and_new
    before = contents(old)
    summary = run(capsys, new, tmp_path / "out", "--against", old, "--against-loses", "old")
    assert urls(tmp_path / "out") == {"http://new.org/first", "http://new.org/second", "http://new.org/third"}
    found = read_table(tmp_path / "out" / "superseded.jsonl.zst")
    assert [(row["url"], row["superseded_by"]) for row in found] == [
        ("http://old.org/first", "http://new.org/first"),
        ("http://old.org/first/again", "http://new.org/first"),
        ("http://old.org/second", "http://new.org/second"),
    ]
    assert found[0]["superseded_by_domain"] == "new.org"
    assert found[0]["match"] == text_of(1)[:200]
    assert summary["superseded"] == 3
    assert contents(old) == before


def test_the_shorter_one_loses(tmp_path, capsys, old_and_new):
    old, new = old_and_new
    summary = run(capsys, new, tmp_path / "out", "--against", old, "--against-loses", "shorter")
    assert urls(tmp_path / "out") == {"http://new.org/first", "http://new.org/third"}
    assert {row["url"] for row in read_table(tmp_path / "out" / "superseded.jsonl.zst")} == {
        "http://old.org/first",
        "http://old.org/first/again",
    }
    assert (summary["superseded"], summary["out"]) == (2, 2)


def by_hand(documents: list[tuple[Document, bool]], loses: str) -> tuple[set[str], set[str]]:
    """New documents that go and old ones that are superseded, by the definition of the rule."""
    sets = {document.url: shingles(document.text, "word", 5) for document, _ in documents}
    first = {"new": lambda is_old: not is_old, "old": lambda is_old: is_old, "shorter": lambda is_old: False}[loses]
    order = sorted(documents, key=lambda entry: (first(entry[1]), -len(entry[0].text), entry[0].url))
    kept: list[tuple[str, bool]] = []
    gone: tuple[set[str], set[str]] = (set(), set())
    for document, is_old in order:
        own = sets[document.url]
        for url, other_is_old in kept:
            alike = len(own & sets[url]) / len(own | sets[url]) >= 0.8
            if alike and not (is_old and other_is_old):
                gone[is_old].add(document.url)
                break
        else:
            kept.append((document.url, is_old))
    return gone


@pytest.mark.parametrize("loses", ["new", "old", "shorter"])
@pytest.mark.parametrize("shards", [1, 3])
def test_old_and_new_families_are_decided_by_the_rule(tmp_path, capsys, loses, shards):
    source = random.Random(5)
    documents = []
    for family, copy in itertools.product(range(12), range(6)):
        words = text_of(family, 80).split()
        for at in source.sample(range(80), copy // 2):
            words[at] = f"changed{copy}"
        text = " ".join(words[: 80 - source.randrange(3)])
        documents.append((Document(f"http://{family}.org/{copy}", text), source.random() < 0.5))
    old = finished(capsys, tmp_path / "old", [document for document, is_old in documents if is_old])
    kept = urls(old)  # texts that are equal went with the first run
    documents = [(document, is_old) for document, is_old in documents if not is_old or document.url in kept]
    new = write(tmp_path / "new", [document for document, is_old in documents if not is_old], shards)
    run(capsys, new, tmp_path / "out", "--against", old, "--against-loses", loses)
    gone, superseded = by_hand(documents, loses)
    assert urls(tmp_path / "out") == {document.url for document, is_old in documents if not is_old} - gone
    table = tmp_path / "out" / "superseded.jsonl.zst"
    assert ({row["url"] for row in read_table(table)} if loses != "new" else set()) == superseded
    assert gone
    assert superseded or loses == "new"


def test_a_run_against_others_is_done_again_when_they_change(tmp_path, capsys, old_and_new):
    old, new = old_and_new
    run(capsys, new, tmp_path / "out", "--against", old)
    assert run(capsys, new, tmp_path / "out", "--against", old)["resumed"]
    with write_documents(old / "part-00000.jsonl.zst") as writer:
        writer.write(Document("http://old.org/third", text_of(3)))
    summary = run(capsys, new, tmp_path / "out", "--against", old)
    assert not summary["resumed"]
    assert urls(tmp_path / "out") == {"http://new.org/first", "http://new.org/second"}


def test_what_to_compare_with_must_be_finished_and_something_else(tmp_path, capsys, old_and_new):
    old, new = old_and_new
    assert command(new, tmp_path / "out", "--against", new) == 2
    assert "is both in --input and in --against" in capsys.readouterr().err
    assert command(new, tmp_path / "out", "--against", tmp_path / "missing") == 2
    assert "no file or folder" in capsys.readouterr().err
    (old / "stage.json").unlink()
    assert command(new, tmp_path / "out", "--against", old) == 2
    assert "is not finished" in capsys.readouterr().err
    with pytest.raises(InputError, match="--against-loses both is not known: give new, old, shorter"):
        Dedup(against_loses="both")
