"""`webtext index-tokens`: all suffixes in order, each document with its URL, whatever comes between."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.indexed_tokens.naive_index import sorted_suffixes

from indexed_tokens import IndexedTokensError, IndexedTokensWriter, corpus_tokenizer
from indexed_tokens.suffix_index import SuffixIndex, documents_with, occurrences
from webtext_prep.documents.document import Document
from webtext_prep.stages.index_tokens import SORT_BYTES
from webtext_prep.tokens.suffix_sorting import document_suffixes, suffix_array

# Suffixes


def suffixes(documents, dtype=np.uint16):
    documents = [document for document in documents if document]
    ends = np.cumsum([len(document) for document in documents], dtype=np.int64)
    tokens = np.array([token for document in documents for token in document], dtype)
    return document_suffixes(tokens, ends).tolist()


@given(st.integers(1, 4).flatmap(lambda most: st.lists(st.lists(st.integers(0, most), max_size=30), max_size=6)))
def test_suffixes_are_in_order_and_end_with_their_document(documents):
    assert suffixes(documents) == sorted_suffixes(documents)


@given(
    st.lists(st.lists(st.sampled_from([0, 1, 127, 40_000, 65_535]), max_size=20), max_size=4),
    st.sampled_from([np.uint16, np.int32, np.int64]),
)
def test_tokens_of_any_type_are_sorted(documents, dtype):
    assert suffixes(documents, dtype) == sorted_suffixes(documents)


def test_tokens_far_apart_and_negative_ones_are_sorted():
    """Buckets for all numbers between would take 16 GB."""
    assert suffixes([[2_000_000_000, -1, 5], [-1]], np.int32) == [3, 1, 2, 0]


@given(st.lists(st.integers(0, 3), max_size=60))
def test_the_suffixes_of_one_text_are_in_order(text):
    found = suffix_array(np.array(text, np.int32), 4) if text else []
    assert list(found) == sorted(range(len(text)), key=lambda at: text[at:])


@pytest.mark.parametrize("page", [[1], [1, 2], [3, 1, 4, 1, 5, 9, 2, 6]])
def test_copies_of_a_page_are_sorted_in_the_time_of_any_text(page):
    """Comparing suffixes of this text would take 10^9 steps."""
    count = 60_000 // len(page)
    order = suffixes([page * count])
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    # A suffix that another one begins with comes before it: the last copies come first.
    for offset in range(len(page)):
        assert (np.diff(places[offset :: len(page)]) < 0).all()
    assert suffixes([page] * count)[: 3 * count] == sorted_suffixes([page] * count)[: 3 * count]


PEAK = """
import numpy as np
from pathlib import Path
from webtext_prep.tokens.suffix_sorting import document_suffixes

def memory(key):
    return next(int(line.split()[1]) for line in Path("/proc/self/status").open() if line.startswith(key)) * 1024

tokens = np.random.default_rng(0).zipf(1.3, 500_000).astype(np.uint16)
ends = np.arange(250, len(tokens) + 1, 250)
document_suffixes(tokens[:500], ends[:2])
Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
before = memory("VmRSS")
document_suffixes(tokens, ends)
print((memory("VmHWM") - before) / len(tokens) + tokens.itemsize)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the peak")
def test_sorting_takes_the_memory_that_is_said_of_it():
    """Copies of the letters, types and ranks made it 22 bytes a token, and 0.9 GB a worker."""
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    assert SORT_BYTES == 15
    assert 6 < float(done.stdout) < 17


# The command


TEXT = "the river of a mountain in every station for letters and gardens by the window on a summer morning"


def some_documents(count, seed):
    chosen = random.Random(seed)
    texts = [" ".join(chosen.choices(TEXT.split(), k=chosen.randrange(2, 40))) for _ in range(count)]
    return [Document(f"http://site{seed}.org/{at}", text) for at, text in enumerate(texts)]


@pytest.fixture(scope="module")
def documents():
    shards = [some_documents(60, 1), some_documents(40, 2)]
    shards[0][7] = Document("http://empty.org/", "")
    shards[1][3] = Document(shards[0][2].url, shards[0][2].text)  # the same page twice
    return shards


@pytest.fixture
def prefix(documents, write_shards, tmp_path, webtext):
    write_shards(documents)
    flags = ("--input", tmp_path / "input", "--output", tmp_path / "corpus", "--workers", 1)
    assert webtext("tokenize", *flags).code == 0
    return tmp_path / "corpus_text_document"


def check_urls(prefix, documents):
    """Each document's text is found, under its URL."""
    index, tokenizer = SuffixIndex(prefix), corpus_tokenizer(prefix)
    assert index.tokens.documents == len(documents)
    for document in documents:
        ids = [*tokenizer.encode(document.text), tokenizer.end_of_text]
        found = [index.url(number) for number, _ in documents_with(index, occurrences(index, ids), 99)[1]]
        assert document.url in found


@pytest.mark.parametrize("part_tokens", [400, 1_000_000])
def test_documents_are_found_with_their_urls(prefix, documents, webtext, part_tokens):
    done = webtext("index-tokens", prefix, "--part-tokens", part_tokens, "--workers", 1, "--json").json
    index = SuffixIndex(prefix)
    index.check()
    assert (done["in"], done["out"], done["urls"], done["parts"]) == (99, 99, 99, len(index.parts))
    assert len(index.parts) == 1 if part_tokens > 400 else len(index.parts) > 3
    for part, positions in zip(index.parts, index.positions, strict=True):
        own = [index.text[index.begins[at] : index.begins[at + 1]] for at in range(*part.documents)]
        assert positions.tolist() == sorted_suffixes(own)
    check_urls(prefix, [document for shard in documents for document in shard if document.text])


def test_the_bytes_do_not_depend_on_workers(prefix, webtext, contents, tmp_path):
    folder = tmp_path / "corpus_text_document.suffixes"
    assert webtext("index-tokens", tmp_path / "corpus", "--part-tokens", 300, "--workers", 1).code == 0
    first = contents(folder)
    assert set(first) > {"index.json", "part-00000.u32", "urls.txt", "url-ends.u64", "stage.json"}
    assert webtext("index-tokens", f"{prefix}.bin", "--part-tokens", 300, "--workers", 2, "--restart").code == 0
    assert contents(folder) == first
    assert webtext("index-tokens", prefix, "--part-tokens", 300, "--json").json["resumed"]


def test_documents_in_the_order_of_the_input_have_their_urls(documents, write_shards, tmp_path, webtext):
    write_shards(documents)
    assert webtext("tokenize", tmp_path / "input", "--no-shuffle", "--output", tmp_path / "corpus").code == 0
    assert webtext("index-tokens", tmp_path / "corpus", "--workers", 1).code == 0
    kept = [document.url for shard in documents for document in shard if document.text]
    index = SuffixIndex(tmp_path / "corpus_text_document")
    assert [index.url(number) for number in range(index.tokens.documents)] == kept


def test_joined_token_files_have_the_urls_of_both(prefix, documents, write_shards, tmp_path, webtext):
    more = some_documents(20, 3)
    write_shards([more], name="more")
    assert webtext("tokenize", tmp_path / "more", "--output", tmp_path / "other", "--workers", 1).code == 0
    assert webtext("merge-tokens", prefix, tmp_path / "other", "--output", tmp_path / "both").code == 0
    assert webtext("index-tokens", tmp_path / "both", "--workers", 1).code == 0
    kept = [document for shard in documents for document in shard if document.text]
    check_urls(tmp_path / "both_text_document", kept + more)


def test_without_the_documents_there_are_no_urls(prefix, tmp_path, webtext):
    shutil.rmtree(tmp_path / "input")
    done = webtext("index-tokens", prefix, "--workers", 1, "--json").json
    assert done["urls"] == 0
    assert "no URLs, as the documents that were tokenized are not there" in done["problems"][0]
    assert SuffixIndex(prefix).url(5) is None


def test_token_files_of_another_program_are_indexed(tmp_path, webtext):
    with IndexedTokensWriter(tmp_path / "theirs", np.int32) as writer:
        for document in ([70_000, 5, 70_000], [], [5]):
            writer.add(document)
    assert webtext("index-tokens", tmp_path / "theirs", "--workers", 1, "--json").json["urls"] == 0
    index = SuffixIndex(tmp_path / "theirs")
    assert index.positions[0].tolist() == [3, 1, 2, 0]


def test_token_files_that_have_changed_are_indexed_again(prefix, documents, write_shards, tmp_path, webtext, contents):
    flags = ("index-tokens", prefix, "--part-tokens", 300, "--workers", 1)
    assert webtext(*flags).code == 0
    before = contents(tmp_path / "corpus_text_document.suffixes")
    fewer = [documents[0][:20]]
    write_shards(fewer)
    (tmp_path / "input" / "part-00001.jsonl.zst").unlink()
    assert webtext("tokenize", tmp_path / "input", "--output", tmp_path / "corpus", "--workers", 1).code == 0
    with pytest.raises(IndexedTokensError, match="was made from other token files"):
        SuffixIndex(prefix)
    assert webtext(*flags).code == 0
    check_urls(prefix, [document for document in fewer[0] if document.text])
    assert len(contents(tmp_path / "corpus_text_document.suffixes")) < len(before), "parts that are no longer there"


def test_a_killed_run_goes_on_behind_its_last_part(prefix, webtext, start, gate, contents, tmp_path):
    folder = tmp_path / "corpus_text_document.suffixes"
    assert webtext("index-tokens", prefix, "--part-tokens", 300, "--workers", 1).code == 0
    expected = contents(folder)
    shutil.rmtree(folder)
    gate.close()
    command = ("small-index-tokens", prefix, "--part-tokens", 300, "--workers", 1, "--gate", gate.folder)
    running = start(*command)
    running.wait_until(running.at_the_gate, "the third part")
    os.kill(running.process.pid, signal.SIGKILL)
    assert running.end().code == -signal.SIGKILL
    assert not (folder / "index.json").exists()
    with pytest.raises(IndexedTokensError, match="has no index"):
        SuffixIndex(prefix)
    gate.open()
    noted = gate.folder / "sorted"
    assert noted.read_text().split() == ["part-00000", "part-00001"]
    noted.unlink()
    assert webtext(*command).code == 0
    assert noted.read_text().split()[0] == "part-00002"
    found = contents(folder)
    assert found.keys() == expected.keys()
    assert {name for name in found if found[name] != expected[name]} == {"stage.json"}  # the stage has another name


def test_a_dry_run_says_what_it_takes_and_writes_nothing(prefix, tmp_path, webtext):
    done = webtext("index-tokens", prefix, "--dry-run", "--part-tokens", 1000)
    assert done.code == 0
    assert "of disk" in done.out
    found = webtext("index-tokens", prefix, "--dry-run", "--part-tokens", 1000, "--workers", 2, "--json").json
    assert found["disk_bytes"] >= 4 * found["tokens"] > 4000
    assert found["documents"] == 99
    assert not list((tmp_path / "corpus_text_document.suffixes").glob("[!.]*"))


def test_what_can_not_be_indexed_is_said(prefix, tmp_path, webtext):
    elsewhere = webtext("index-tokens", prefix, "--output", tmp_path / "elsewhere")
    assert (elsewhere.code, "leave out --output" in elsewhere.sentence) == (2, True)
    assert not (tmp_path / "elsewhere").exists()
    nothing = webtext("index-tokens")
    assert (nothing.code, "needs --input PREFIX" in nothing.sentence) == (2, True)
    several = webtext("index-tokens", prefix, tmp_path / "other")
    assert (several.code, "one pair of token files" in several.sentence) == (2, True)
    absent = webtext("index-tokens", tmp_path / "absent")
    assert (absent.code, "absent" in absent.sentence) == (2, True)
    with IndexedTokensWriter(tmp_path / "none", np.uint16):
        pass
    for flags in ((), ("--dry-run",)):
        none = webtext("index-tokens", tmp_path / "none", *flags)
        assert (none.code, "none holds no documents" in none.sentence) == (2, True)


def test_the_record_follows_from_the_input(prefix, tmp_path, webtext):
    assert webtext("index-tokens", prefix, "--workers", 1).code == 0
    record = json.loads((tmp_path / "corpus_text_document.suffixes" / "stage.json").read_bytes())
    assert record["inputs"][0]["stage"] == "tokenize"
    assert str(tmp_path) not in json.dumps(record)
    (tmp_path / "urls.txt").write_text("http://site1.org/1\n", encoding="utf-8")
    folder = tmp_path / "corpus_text_document.suffixes"
    refused = webtext("takedown", folder, "--urls", tmp_path / "urls.txt", "--apply")
    assert (refused.code, "made by `webtext index-tokens`" in refused.sentence) == (2, True)


def test_token_files_that_are_not_what_was_written_are_not_indexed(prefix, webtext):
    """An index of tokens that no document has was made without a word."""
    binary = prefix.with_suffix(".bin")
    content = binary.read_bytes()
    binary.write_bytes(content[:50] + bytes([content[50] ^ 1]) + content[51:])
    assert "was damaged or replaced" in webtext("index-tokens", prefix).sentence
    binary.write_bytes(content)
    assert webtext("index-tokens", prefix).code == 0
