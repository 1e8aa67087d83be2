"""Pages held out of training: by their URL alone, for ever, and their copies too."""

import json
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexed_tokens import IndexedTokens, Tokenizer
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.shards import read_documents, shards_in
from webtext_prep.running.job import Job
from webtext_prep.urls.urls import is_held_out

SHARE = 0.3
TEXT = "Page {} tells of the river and the town, and of number {} among all of them."


def url(number):
    return f"http://h{number % 7}.org/{number}"


def page(number, text=TEXT):
    return Document(url(number), text.format(number, number))


def held_out(numbers, share=SHARE):
    return {number for number in numbers if is_held_out(url(number), share)}


def texts(prefix):
    decode = Tokenizer.gpt2().decode
    return {decode(tokens[:-1]) for tokens in IndexedTokens(f"{prefix}_text_document")}


def texts_of(numbers):
    return {page(number).text for number in numbers}


def urls_in(folder):
    return [document.url for shard in shards_in(folder) for document in read_documents(shard)]


def files(folder):
    return {path.name: path.read_bytes() for path in folder.glob("c_*")}


@given(st.lists(st.floats(0, 1), min_size=2, max_size=2).map(sorted), st.integers(0, 10**6))
def test_a_larger_share_holds_out_what_a_smaller_one_does(shares, number):
    assert is_held_out(url(number), shares[0]) <= is_held_out(url(number), shares[1])


def test_the_share_is_about_that_of_the_pages():
    count = len(held_out(range(20_000), 0.1))
    assert abs(count - 2000) < 4 * (20_000 * 0.1 * 0.9) ** 0.5


@pytest.mark.parametrize(
    "same", ["http://{}", "HTTP://{}", "http://{}#part", "http://{}#piece-2", "http://{}#piece-2-1"]
)
def test_all_names_of_a_page_are_on_one_side(same):
    for number in range(40):
        its = url(number)
        assert is_held_out(same.format(its.removeprefix("http://")), SHARE) == is_held_out(its, SHARE)


def test_each_document_is_in_one_of_two_pairs(write_shards, tmp_path, webtext):
    source = write_shards([[page(number) for number in range(part, 60, 3)] for part in range(3)])
    for name, workers in (("one", 1), ("two", 2)):
        words = ("--hold-out", SHARE, "--workers", workers, "--json")
        done = webtext("tokenize", source, "--output", tmp_path / name / "c", *words).json
        mine = held_out(range(60))
        assert 5 < len(mine) < 40
        assert (done["in"], done["out"], done["dropped"]) == (60, 60 - len(mine), {"held_out": len(mine)})
        (other,) = done["companions"]
        assert (other["in"], other["out"], other["dropped"]) == (60, len(mine), {"not_held_out": 60 - len(mine)})
        assert texts(tmp_path / name / "c") == texts_of(set(range(60)) - mine)
        assert texts(tmp_path / name / "c_held_out") == texts_of(mine)
    one, two = (files(tmp_path / name) for name in ("one", "two"))
    assert len(one) == 9
    assert one == two


def test_pages_stay_on_their_side_in_another_corpus(write_shards, tmp_path, webtext):
    """More pages, fewer, and other text of the same ones."""
    other = TEXT.replace("river", "sea")
    corpora = {"grown": (range(90), TEXT), "filtered": (range(0, 60, 2), TEXT), "extracted": (range(60), other)}
    for name, (numbers, text) in corpora.items():
        source = write_shards([[page(number, text) for number in numbers]], tmp_path / f"of_{name}")
        webtext("tokenize", source, "--output", tmp_path / name, "--hold-out", SHARE)
        mine = held_out(numbers)
        assert texts(tmp_path / f"{name}_held_out") == {page(number, text).text for number in mine}
        assert texts(tmp_path / name) == {page(number, text).text for number in set(numbers) - mine}


def test_a_corpus_of_which_no_page_is_held_out(write_shards, tmp_path, webtext):
    number = next(number for number in range(100) if not is_held_out(url(number), SHARE))
    words = ("tokenize", write_shards([[page(number)]]), "--output", tmp_path / "c", "--hold-out", SHARE)
    assert webtext(*words).code == 0
    assert not (tmp_path / "c_held_out_text_document.idx").exists()
    assert webtext(*words, "--json").json["companions"][0]["out"] == 0


def test_a_kill_between_the_two_leaves_the_rest_to_the_same_command(write_shards, tmp_path, webtext, monkeypatch):
    words = ("tokenize", write_shards([[page(number) for number in range(30)]]), "--hold-out", SHARE)
    webtext(*words, "--output", tmp_path / "whole" / "c")
    killed, run = tmp_path / "killed", Job._run

    def run_or_end(job):
        if job.output == killed / "c_held_out":
            raise KeyboardInterrupt
        return run(job)

    monkeypatch.setattr(Job, "_run", run_or_end)
    assert webtext(*words, "--output", killed / "c").code == 130
    assert len(files(killed)) == 5
    monkeypatch.setattr(Job, "_run", run)
    again = webtext(*words, "--output", killed / "c", "--json").json
    assert (again["resumed"], again["companions"][0]["resumed"]) == (True, False)
    assert files(killed) == files(tmp_path / "whole")


@pytest.fixture
def rows(tmp_path):
    """Forty pages as JSON lines, one of them twice."""
    path = tmp_path / "rows.jsonl"
    found = [page(number) for number in [*range(40), 3]]
    path.write_text("".join(json.dumps({"url": its.url, "text": its.text}) + "\n" for its in found))
    return path


def test_merge_holds_out_before_any_filter(rows, tmp_path, webtext):
    words = ("merge", rows, "--output", tmp_path / "merged", "--hold-out", SHARE, "--json")
    done, mine = webtext(*words).json, held_out(range(40))
    twice = 3 in mine
    assert done["dropped"] == {"held_out": len(mine) + twice, **({} if twice else {"duplicate_url": 1})}
    assert sorted(urls_in(tmp_path / "merged")) == sorted(map(url, set(range(40)) - mine))
    assert sorted(urls_in(tmp_path / "merged_held_out")) == sorted(map(url, mine))
    # It is a corpus like any: what was held out is found from there.
    assert webtext("tokenize", tmp_path / "merged_held_out", "--output", tmp_path / "pool_held_out").code == 0
    assert texts(tmp_path / "pool_held_out") == texts_of(mine)


def test_only_what_is_held_out_of_a_corpus_before_it_is_filtered(write_shards, tmp_path, webtext):
    source = write_shards([[page(number) for number in range(40)]])
    words = ("tokenize", source, "--output", tmp_path / "pool_held_out", "--only-held-out", "--json")
    assert "--only-held-out needs --hold-out SHARE" in webtext(*words).sentence
    done = webtext(*words, "--hold-out", SHARE).json
    assert "companions" not in done
    assert texts(tmp_path / "pool_held_out") == texts_of(held_out(range(40)))


def copies(number, length):
    """A text and one that is nearly the same and longer."""
    words = " ".join(f"word{number}x{at}" for at in range(length))
    return words, f"{words} and a few more"


def test_dedup_drops_the_copies_of_what_is_held_out(write_shards, tmp_path, webtext):
    mine = sorted(held_out(range(40)))
    others = [number for number in range(40) if number not in mine]
    pairs = list(zip(mine, others, strict=False))[:5]
    documents = [
        Document(url(number), text) for pair in pairs for number, text in zip(pair, copies(pair[0], 100), strict=True)
    ]
    source = write_shards([documents[::2], documents[1::2]])
    webtext("dedup", source, "--output", tmp_path / "plain")
    assert sorted(urls_in(tmp_path / "plain")) == sorted(url(other) for _, other in pairs)  # the longer ones
    done = webtext("dedup", source, "--output", tmp_path / "safe", "--hold-out", SHARE, "--json").json
    assert sorted(urls_in(tmp_path / "safe")) == sorted(url(first) for first, _ in pairs)
    assert done["copies_of_held_out"] == len(pairs) == 5


def test_token_files_are_joined_with_what_was_held_out_of_them(write_shards, tmp_path, webtext):
    for name, numbers in (("a", range(20)), ("b", range(20, 40))):
        source = write_shards([[page(number) for number in numbers]], tmp_path / f"of_{name}")
        webtext("tokenize", source, "--output", tmp_path / name, "--hold-out", SHARE)
    assert webtext("merge-tokens", tmp_path / "a", tmp_path / "b", "--output", tmp_path / "all").code == 0
    mine = held_out(range(40))
    assert texts(tmp_path / "all") == texts_of(set(range(40)) - mine)
    assert texts(tmp_path / "all_held_out") == texts_of(mine)
    assert webtext("index-tokens", tmp_path / "all_held_out", "--json").json["urls"] == len(mine)


def test_a_page_is_found_and_removed_where_it_is_held_out(rows, tmp_path, webtext):
    merged, corpus = tmp_path / "merged", tmp_path / "corpus"
    first, *rest = sorted(held_out(range(40)))
    webtext("merge", rows, "--output", merged)
    webtext("tokenize", merged, "--output", corpus, "--hold-out", SHARE)
    (story,) = webtext("why", url(first), corpus, "--json").json["stories"]
    told = [(event["stage"], event["verdict"], event.get("reason")) for event in story["events"]]
    assert told == [("merge", "kept", None), ("tokenize", "dropped", "held_out"), ("tokenize", "kept", None)]
    (story,) = webtext("why", url(min(set(range(40)) - held_out(range(40)))), corpus, "--json").json["stories"]
    assert [event["verdict"] for event in story["events"]] == ["kept", "kept"]
    (tmp_path / "remove.txt").write_text(url(first))
    rows.write_text("".join(line for line in rows.open() if json.loads(line)["url"] != url(first)))
    found = webtext("takedown", "--urls", tmp_path / "remove.txt", corpus, "--apply", "--json").json
    assert f"{corpus}_held_out_text_document.bin" in found["written"][f"{corpus}_text_document"]
    assert texts(f"{corpus}_held_out") == texts_of(rest)
    # The last one, too: nothing of an earlier run stays.
    (tmp_path / "remove.txt").write_text("\n".join(map(url, rest)))
    rows.write_text("".join(line for line in rows.open() if json.loads(line)["url"] not in map(url, rest)))
    assert webtext("takedown", "--urls", tmp_path / "remove.txt", corpus, "--apply").code == 0
    assert not list(tmp_path.glob("corpus_held_out*.bin"))


def test_index_and_order_of_what_is_held_out(write_shards, tmp_path, webtext):
    source = write_shards([[page(number) for number in range(30)]])
    webtext("tokenize", source, "--output", tmp_path / "c", "--hold-out", SHARE, "--no-shuffle")
    for name in ("c", "c_held_out"):
        assert webtext("index-tokens", tmp_path / name, "--json").json["urls"] > 0
        shutil.rmtree(tmp_path / f"{name}_text_document.suffixes")
    number = max(held_out(range(30)))
    (story,) = webtext("why", url(number), tmp_path / "c_held_out", "--json").json["stories"]
    assert story["events"][-1]["at"][0]["document"] == len(held_out(range(number)))


def test_the_output_that_holds_what_was_held_out_knows_the_pages_that_were_not(write_shards, tmp_path, webtext):
    """Asked of it, `why` said that no stage had met the page, and `takedown` did not name the training pair."""
    source = write_shards([[page(number) for number in range(30)]])
    webtext("tokenize", source, "--output", tmp_path / "c", "--hold-out", SHARE)
    mine = held_out(range(30))
    other = min(set(range(30)) - mine)
    (story,) = webtext("why", url(other), tmp_path / "c_held_out_text_document", "--json").json["stories"]
    told = {event["place"]: (event["verdict"], event.get("reason")) for event in story["events"]}
    assert told == {
        f"{tmp_path / 'c'}_text_document": ("kept", None),
        f"{tmp_path / 'c'}_held_out_text_document": ("dropped", "not_held_out"),
    }
    (tmp_path / "remove.txt").write_text(f"{url(other)}\n{url(min(mine))}\n")
    for name in ("c_held_out_text_document", "c_held_out", "c"):
        found = webtext("takedown", "--urls", tmp_path / "remove.txt", tmp_path / name, "--json").json
        files = {name: count for step in found["steps"] for name, count in step.get("files", {}).items()}
        assert files == {f"{tmp_path / 'c'}{end}_text_document.bin": 1 for end in ("", "_held_out")}
    # Removed from either, they are gone from both.
    write_shards([[page(number) for number in range(30) if number not in (other, min(mine))]])
    assert webtext("takedown", "--urls", tmp_path / "remove.txt", tmp_path / "c_held_out", "--apply").code == 0
    assert texts(tmp_path / "c") == texts_of(set(range(30)) - mine - {other})
    assert texts(tmp_path / "c_held_out") == texts_of(mine - {min(mine)})


def test_nothing_that_was_held_out_before_stays_beside_a_new_output(write_shards, tmp_path, webtext):
    """Beside a training pair that now had those pages the earlier held-out pair stayed."""
    source = write_shards([[page(number) for number in range(30)]])
    words = ("tokenize", source, "--output", tmp_path / "c")
    webtext(*words, "--hold-out", SHARE)
    assert webtext(*words, "--hold-out", 0, "--restart").code == 0
    assert texts(tmp_path / "c") == texts_of(range(30))
    assert not list(tmp_path.glob("*held_out*"))
    assert not list(tmp_path.glob(".*held_out*"))
    # What somebody made there by hand is no concern of it.
    webtext("tokenize", source, "--output", tmp_path / "c_held_out", "--hold-out", SHARE, "--only-held-out")
    assert webtext(*words, "--hold-out", 0, "--restart").code == 0
    assert texts(tmp_path / "c_held_out") == texts_of(held_out(range(30)))
    # A folder, and pairs that are joined to others than before.
    merge = ("merge", source, "--output", tmp_path / "merged")
    webtext(*merge, "--hold-out", SHARE)
    assert webtext(*merge, "--restart").code == 0
    assert not (tmp_path / "merged_held_out").exists()
    for pair, share in (("a", SHARE), ("b", 0)):
        webtext("tokenize", source, "--output", tmp_path / pair, "--hold-out", share)
        assert webtext("merge-tokens", tmp_path / pair, "--output", tmp_path / "all").code == 0
        assert (tmp_path / "all_held_out_text_document.idx").exists() == bool(share)


def test_token_files_are_not_joined_onto_themselves(write_shards, tmp_path, webtext):
    source = write_shards([[page(number) for number in range(30)]])
    webtext("tokenize", source, "--output", tmp_path / "a")
    webtext("merge-tokens", tmp_path / "a", tmp_path / "a", "--output", tmp_path / "all")
    before = {path: path.read_bytes() for path in tmp_path.glob("a*_text_document.*")}
    for pair, output in (("a", "a_text_document"), ("a", "a"), ("all", "all"), ("all_text_document.idx", "all")):
        done = webtext("merge-tokens", tmp_path / pair, "--output", tmp_path / output)
        assert (done.code, "which is read: give another prefix" in done.sentence) == (2, True)
    assert {path: path.read_bytes() for path in tmp_path.glob("a*_text_document.*")} == before
