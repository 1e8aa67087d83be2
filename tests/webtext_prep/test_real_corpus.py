"""The corpus of Debian's documentation (`benchmarks/real_corpus.py`): its archives, and the truth about duplicates."""

import gzip
import itertools
import random
import sys
from pathlib import Path

import pytest
from jobs import job_of
from outputs import documents_of
from plain_shingles import shingles

from webtext_prep.stages.extract import Extract

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from real_corpus_pieces import packages, similarity

PAGE = '<!DOCTYPE html><html lang="{}"><head>{}</head><body><h1>Ropes</h1><p>{}</p></body></html>'
TEXT = "A rope of hemp holds a boat in any weather, if it is looked after and kept dry while it is not in use."
DOXYGEN = '<meta name="generator" content="Doxygen 1.9.4"/>'


@pytest.fixture
def unpacked(tmp_path):
    folder = tmp_path / "files" / "usr" / "share" / "doc" / "ropes"
    (folder / "de").mkdir(parents=True)
    (folder / "index.html").write_text(PAGE.format("en-GB", DOXYGEN, TEXT))
    (folder / "de" / "a b.html.gz").write_bytes(gzip.compress(PAGE.format("", "", TEXT * 2).encode()))
    (folder / "linked.html").symlink_to("index.html")
    (folder / "folder.html").mkdir()
    (folder / "style.css").write_text("p { color: red }")
    return tmp_path / "files"


def test_pages_of_a_package_are_an_archive_that_extract_reads(tmp_path, unpacked):
    (tmp_path / "warcs").mkdir()
    found = packages.write_archive(tmp_path / "warcs" / "r.warc.gz", "r", packages.files_in(unpacked))
    assert [(page.url, page.language, page.generator) for page in found] == [
        ("https://r.example/ropes/de/a%20b.html", "de", ""),
        ("https://r.example/ropes/index.html", "en", "doxygen"),
    ]
    assert packages.body_of(tmp_path, found[1]) == (unpacked / "usr/share/doc/ropes/index.html").read_bytes()
    packages.select(tmp_path, found[:1], tmp_path / "some")
    job_of(Extract(extractor="resiliparse"), [tmp_path / "some" / "warcs"], tmp_path / "out").run()
    (document,) = documents_of(tmp_path / "out")
    assert document.url == found[0].url
    assert document.text.count(TEXT) == 2
    assert (tmp_path / "some" / "urls.txt").read_text() == f"{found[0].url}\n"


def test_a_machine_without_apt_is_told_so_in_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match="this machine has no apt-get"):
        packages.fetch(tmp_path, ["ropes"])


def test_precision_and_recall_are_those_of_all_pairs(monkeypatch):
    monkeypatch.setattr(similarity, "_all_pairs", similarity._all_pairs.py_func)
    source, texts = random.Random(1), []
    for _ in range(6):
        words = [f"w{source.randrange(50)}" for _ in range(120)]
        for changed in range(4):
            texts.append(" ".join([*words[: 120 - 6 * changed], *(f"x{source.random()}" for _ in range(6 * changed))]))
    sets = [shingles(text, "word", 5) for text in texts]
    like = {pair: len(sets[pair[0]] & sets[pair[1]]) / len(sets[pair[0]] | sets[pair[1]])
            for pair in itertools.combinations(range(len(texts)), 2)}  # fmt: skip
    similar = {pair for pair, value in like.items() if value >= similarity.SIMILAR}
    kept = [source.random() < 0.5 for _ in texts]
    gone = [number for number, stays in enumerate(kept) if not stays]
    right = [one for one in gone if any(one in pair and any(kept[other] for other in pair) for pair in similar)]
    missed = [pair for pair in similar if all(kept[one] for one in pair)]
    (found,), near = similarity.truth(texts, similarity.np.array([kept]))
    assert found == {
        "dropped": len(gone), "pairs": len(similar), "precision": round(len(right) / len(gone), 4),
        "recall": round(1 - len(missed) / len(similar), 4),
    }  # fmt: skip
    assert all(0.7 <= like[min(a, b), max(a, b)] < 0.8 and kept[a] and kept[b] for a, b, _ in near)
    assert missed and near
