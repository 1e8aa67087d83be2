"""What readers of finished outputs say once the files that these were made from, or hold, have changed."""

import json
import shutil

import pytest

from indexed_tokens import IndexedTokens, Tokenizer
from webtext_prep.documents.folders.shards import read_documents, write_documents
from webtext_prep.documents.folders.stage_record import trace

PAGES = {f"http://h{number}.org/p": f"Page {number} tells of the river and its {number} towns." for number in range(40)}
GONE = "http://h5.org/p"
OTHERS = [url for url in PAGES if url != GONE]


def rows(pages):
    return "".join(json.dumps({"url": url, "text": text}) + "\n" for url, text in pages.items())


@pytest.fixture(params=[(), ("--no-shuffle",), ("--hold-out", 0.3)], ids=["shuffled", "in order", "held out"])
def corpus(request, tmp_path, webtext):
    """Token files of a file of the user's own, of which a line was taken out since."""
    own = tmp_path / "own" / "part-00000.jsonl"
    own.parent.mkdir()
    own.write_text(rows(PAGES))
    assert webtext("tokenize", own.parent, "--output", tmp_path / "c", *request.param).code == 0
    own.write_text(rows({url: PAGES[url] for url in OTHERS}))
    return tmp_path / "c"


def tokens_of(prefix, place):
    return Tokenizer.gpt2().decode(IndexedTokens(prefix)[place["document"]][:-1])


def test_documents_are_found_by_their_tokens_after_the_input_has_changed(corpus, webtext):
    for url in OTHERS[::4]:
        found = webtext("why", url, corpus, "--json").json
        kept = [event for event in found["stories"][0]["events"] if event["verdict"] == "kept"]
        assert [tokens_of(event["place"], place) for event in kept for place in event["at"]] == [PAGES[url]]
        assert "own/part-00000.jsonl has changed (" in found["notes"][0]


def test_what_was_taken_out_is_not_said_to_have_never_been_there(corpus, webtext, tmp_path):
    assert "own/part-00000.jsonl has changed (" in webtext("why", GONE, corpus).sentence
    (tmp_path / "urls.txt").write_text(f"{GONE}\n{OTHERS[0]}\n")
    done = webtext("takedown", "--urls", tmp_path / "urls.txt", corpus)
    assert done.code == 1
    assert f"not found in what is there now: {GONE}" in done.out
    assert "own/part-00000.jsonl has changed (" in done.out
    (tmp_path / "urls.txt").write_text(OTHERS[0])
    found = webtext("takedown", "--urls", tmp_path / "urls.txt", corpus, "--json")
    assert (found.code, found.json["not_found"]) == (0, [])
    assert sum(count for step in found.json["steps"] for count in step.get("files", {}).values()) == 1


@pytest.mark.parametrize("settings", [(), ("--no-shuffle",), ("--hold-out", 0.3)])
def test_what_was_taken_out_of_files_of_ones_own_is_removed_from_their_token_files(tmp_path, webtext, settings):
    own = [tmp_path / "own" / f"part-{number:05}.jsonl" for number in range(2)]
    own[0].parent.mkdir()
    urls = list(PAGES)
    for path, its in zip(own, (urls[::2], urls[1::2]), strict=True):
        path.write_text(rows({url: PAGES[url] for url in its}))
    assert webtext("tokenize", own[0].parent, "--output", tmp_path / "c", *settings).code == 0
    gone = [urls[5], urls[6], urls[7]]
    (tmp_path / "urls.txt").write_text("\n".join(gone))
    words = ("takedown", "--urls", tmp_path / "urls.txt", tmp_path / "c")
    before = {step["place"]: step.get("files") for step in webtext(*words, "--json").json["steps"]}
    assert sum(count for files in before.values() for count in (files or {}).values()) == len(gone)
    for path, its in zip(own, (urls[::2], urls[1::2]), strict=True):
        path.write_text(rows({url: PAGES[url] for url in its if url not in gone}))
    done = webtext(*words, "--json")
    told = json.loads(done.out)
    assert (done.code, told["not_found"], bool(told["changes"])) == (1, gone, True)
    assert webtext(*words, "--apply").code == 0
    assert sum(IndexedTokens(prefix).documents for prefix in before) == len(PAGES) - len(gone)


def test_a_text_that_was_rewritten_or_added_since_is_not_said_to_be_in_the_token_files(corpus, webtext, tmp_path):
    own = tmp_path / "own" / "part-00000.jsonl"
    own.write_text(rows(dict.fromkeys(OTHERS, "Another text of the same page.")))
    done = webtext("why", OTHERS[3], corpus)
    assert "tokens" not in done.out
    assert "own/part-00000.jsonl has changed (" in done.out + done.err


def test_input_that_was_moved_along_is_the_same_and_one_that_is_gone_is_named(corpus, webtext, tmp_path):
    (tmp_path / "own" / "part-00000.jsonl").write_text(rows(PAGES))
    assert "has been written again" in trace(corpus).changes()[0]
    shutil.copytree(tmp_path, tmp_path / "copied" / "to", ignore=shutil.ignore_patterns("copied"))  # with other times
    shutil.rmtree(tmp_path / "own")
    copied = tmp_path / "copied" / "to" / "c"
    assert trace(copied).changes() == []
    assert "part-00000.jsonl is gone: " in trace(corpus).changes()[0]
    assert "part-00000.jsonl is gone: " in webtext("why", OTHERS[0], corpus).sentence


@pytest.fixture
def merged(tmp_path, webtext):
    """A folder of a stage of which one shard has lost a document since."""
    source = tmp_path / "source" / "part-00000.jsonl"
    source.parent.mkdir()
    source.write_text(rows(PAGES))
    assert webtext("merge", source, "--output", tmp_path / "merged").code == 0
    assert webtext("tokenize", tmp_path / "merged", "--output", tmp_path / "c").code == 0
    (shard,) = (tmp_path / "merged").glob("part-*")
    documents = [document for document in read_documents(shard) if document.url != GONE]
    shard.unlink()
    with write_documents(shard) as writer:
        for document in documents:
            writer.write(document)
    return tmp_path / "merged"


CHANGED = "part-00000.jsonl.zst has changed ("


def test_every_reader_says_that_a_shard_has_changed(merged, webtext, tmp_path):
    corpus = tmp_path / "c"
    found = webtext("why", OTHERS[9], corpus, "--json").json
    assert tokens_of(tmp_path / "c_text_document", found["stories"][0]["events"][-1]["at"][0]) == PAGES[OTHERS[9]]
    assert CHANGED in found["notes"][0]
    (tmp_path / "urls.txt").write_text(OTHERS[9])
    assert CHANGED in webtext("takedown", "--urls", tmp_path / "urls.txt", corpus).out
    assert CHANGED in webtext("inspect", merged).out
    page = tmp_path / "report.html"
    assert CHANGED in webtext("report", merged, "--output", page).out
    assert CHANGED in page.read_text()
    for stage, given, output in (("export", merged, ("--output", tmp_path / "data")), ("index-tokens", corpus, ())):
        done = webtext(stage, given, *output, "--json")
        assert done.code == 0
        assert CHANGED in " ".join(done.json["problems"]), stage
    assert done.json["urls"] == 0


def test_urls_of_an_index_are_left_out_where_as_many_other_documents_are_there(tmp_path, webtext):
    """Their number was the same, and so each document after the changed one had the URL of another."""
    own = tmp_path / "own.jsonl"
    own.write_text(rows(PAGES))
    assert webtext("tokenize", own, "--output", tmp_path / "c", "--no-shuffle").code == 0
    assert trace(tmp_path / "c").changes() == []
    own.write_text(rows({**{url: PAGES[url] for url in OTHERS}, "http://new.org/": "A page that is new."}))
    done = webtext("index-tokens", tmp_path / "c", "--json").json
    assert done["urls"] == 0
    assert "own.jsonl has changed (" in done["problems"][0]
