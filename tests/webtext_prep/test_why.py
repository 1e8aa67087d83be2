"""`webtext why`: what became of one document at every stage, and why."""

import contextlib
import json
import random

import pytest

from indexed_tokens import IndexedTokens, Tokenizer
from webtext_prep.cli import main
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.shards import write_documents

WORDS = (
    "river mountain station letter garden window morning evening winter summer people market story music paper bridge "
    "doctor teacher village history language science machine number question answer reason picture silver copper"
)


def text(seed, words=160):
    """English enough for a detector, and unlike the texts of other seeds."""
    chosen = random.Random(seed).choices(WORDS.split(), k=words)
    return " ".join(f"the {word}" if at % 3 else f"and in this {word} of" for at, word in enumerate(chosen)) + "."


GERMAN = "Die alte Brücke über den Fluss wurde im letzten Jahr erneuert, und viele Leute kamen zum Fest. " * 12
NEAR = text(1).replace("river", "stream", 1)
EVALUATION = text(99, 40)


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """From shards with metadata to token files, by every stage that needs no network."""
    home = tmp_path_factory.mktemp("home")
    documents = [Document(f"http://site{number}.org/page", text(number)) for number in range(8)]
    documents += [
        Document("http://short.org/", "Too short to be of use."),
        Document("http://german.org/", GERMAN),
        Document("http://near.org/", NEAR),
        Document("http://user:secret@dirty.org/a", text(50) + " " + EVALUATION + " " + text(51)),
        Document("http://site0.org/page#again", text(70)),
        Document("http://long.org/", text(80) + " " + "x" * 2000),
    ]
    for number, part in enumerate((documents[:7], documents[7:])):
        with write_documents(home / "source" / f"part-{number:05}.jsonl.zst") as writer:
            for document in part:
                writer.write(document)
    (home / "eval.jsonl").write_text(json.dumps({"text": EVALUATION}) + "\n")
    (home / "mine.py").write_text("def keep(document):\n    return 'x' * 100 not in document.text or 'xxx'\n")
    folder = home / "work"
    for stage, given, output, *settings in (
        ("merge", home / "source", "merged", "--shards", 2),
        ("clean", folder / "merged", "clean"),
        ("filter", folder / "clean", "mine", "--function", f"{home / 'mine.py'}:keep"),
        ("dedup", folder / "mine", "unique", "--similarity", 0.7),
        ("decontaminate", folder / "unique", "decontaminated", "--evaluation", home / "eval.jsonl"),
        ("tokenize", folder / "decontaminated", "corpus"),
    ):
        words = [stage, "--input", given, "--output", folder / output, "--workers", 1, *settings]
        assert main(list(map(str, words))) == 0
    return folder


@contextlib.contextmanager
def without(folder):
    """A folder is somewhere else for a while."""
    away = folder.parents[1] / "out" / "of" / "reach"
    away.parent.mkdir(parents=True)
    folder.rename(away)
    yield
    away.rename(folder)


@pytest.fixture
def why(webtext, work):
    """`why(what)` returns its stories."""

    def ask(what, *flags, place="corpus"):
        return webtext("why", what, work / place, "--json", *flags).json["stories"]

    return ask


def events(story):
    return {event["stage"]: event for event in story["events"]}


def test_a_kept_document_is_followed_to_its_tokens(why, work):
    (story,) = why("http://site3.org/page")
    found = events(story)
    assert [event["verdict"] for event in found.values()] == ["kept"] * 6
    assert found["merge"]["listed"][0]["line"] == 4
    (place,) = found["tokenize"]["at"]
    tokens = IndexedTokens(work / "corpus_text_document")
    sequence = tokens[place["document"]]
    assert Tokenizer.gpt2().decode(sequence[:-1]) == text(3)
    assert place["tokens"] == len(sequence)
    assert tokens.offsets[place["document"]] == 2 * place["first_token"]


def test_a_short_document_is_told_with_its_tokens(why):
    found = events(why("http://short.org/")[0])
    assert (found["clean"]["verdict"], found["clean"]["reason"]) == ("dropped", "too_short")
    assert found["clean"]["values"]["tokens"] == len(Tokenizer.gpt2().encode("Too short to be of use."))
    assert found["clean"]["values"]["min_tokens"] == 128
    assert found["tokenize"]["verdict"] == "absent"


def test_a_language_is_told_with_its_confidence(why):
    found = events(why("http://german.org/")[0])["clean"]
    assert found["reason"] == "language_de"
    assert found["values"]["language"] == "de"
    assert found["values"]["confidence"] > 0.9


def test_a_reason_of_a_function_of_ones_own(why):
    assert events(why("http://long.org/")[0])["filter"]["reason"] == "xxx"


def test_a_duplicate_is_told_with_what_it_repeats(why):
    stories = [events(why(url)[0])["dedup"] for url in ("http://near.org/", "http://site1.org/page")]
    (lost,) = (event for event in stories if event["verdict"] == "dropped")
    (kept,) = (event for event in stories if event["verdict"] == "kept")
    assert lost["similarity"] > 0.7
    assert lost["match"] in NEAR
    assert lost["duplicate_of"] in ("http://near.org/", "http://site1.org/page")
    assert kept["kept_instead_of"] == 1


def test_a_url_is_found_without_its_password_and_what_was_cut_out(why):
    story = why("http://user:secret@dirty.org/a")[0]
    assert story["url"] == "http://dirty.org/a"
    assert "secret" not in json.dumps(story)
    found = events(story)["decontaminate"]
    assert found["verdict"] == "kept"
    assert found["cut_out"][0]["match"] in text(50) + " " + EVALUATION + " " + text(51)
    assert len(found["at"]) == len(events(story)["tokenize"]["at"]) >= 1


def test_two_documents_of_one_url_are_told(why):
    found = events(why("http://site0.org/page")[0])["merge"]
    assert found["copies_in"] == 2
    assert [place["line"] for place in found["listed"]] == [1, 6]


def test_the_other_scheme_is_suggested(webtext, work):
    sentence = webtext("why", "https://www.site3.org/page/", work / "corpus").sentence
    assert "but one has http://site3.org/page" in sentence


def test_an_unknown_url_is_an_error(webtext, work):
    assert "no stage below" in webtext("why", "http://nowhere.org/", work / "corpus").sentence


def test_an_output_that_was_made_again_is_told_as_it_is_now(webtext, write_shards, tmp_path):
    shards = write_shards([[Document("http://short.org/", "Too short."), text(1)]])
    for least, verdict in ((128, "dropped"), (0, "kept")):
        words = ("clean", "--input", shards, "--output", tmp_path / "out", "--language", "any", "--min-tokens", least)
        assert webtext(*words, "--restart").code == 0
        (story,) = webtext("why", "http://short.org/", tmp_path / "out", "--json").json["stories"]
        assert events(story)["clean"]["verdict"] == verdict


def test_a_folder_that_is_gone_is_unknown_and_the_rest_is_told(work, why):
    with without(work / "clean"):
        found = events(why("http://site3.org/page")[0])
    assert found["clean"]["verdict"] == "unknown"
    assert found["dedup"]["verdict"] == "kept"


PASSAGE = " ".join(text(3).split()[40:80])


def test_a_passage_is_found_whatever_its_white_space(why):
    assert why(PASSAGE.replace(" ", "\n  ", 5))[0]["url"] == "http://site3.org/page"


@pytest.mark.parametrize("begin", range(0, 60, 7))
def test_a_passage_of_enough_words_is_always_found(why, begin):
    words = text(5).split()
    passage = " ".join(words[begin : begin + 25])[2:-1]
    assert why(passage)[0]["url"] == "http://site5.org/page"


def test_a_passage_of_two_words_is_found(why, webtext, work):
    done = webtext("why", "too short to be of USE"[:12].capitalize(), work / "corpus", "--json").json
    assert done["stories"][0]["url"] == "http://short.org/"
    assert done["notes"] == []


def test_a_passage_that_a_filter_dropped_is_found_upstream(why):
    assert why(" ".join(GERMAN.split()[3:40]))[0]["url"] == "http://german.org/"


def test_a_passage_that_stands_nowhere_is_an_error(webtext, work):
    assert "no document holds that passage" in webtext("why", text(1234), work / "corpus").sentence


def test_a_passage_of_several_documents(webtext, why, work, write_shards, tmp_path):
    same = text(7, 60)
    shards = write_shards([[f"{text(200 + number)} {same} {text(300 + number)}" for number in range(5)]], "several")
    webtext("merge", "--input", shards, "--output", tmp_path / "several-merged")
    done = webtext("why", same, tmp_path / "several-merged", "--most", 2, "--json").json
    assert len(done["stories"]) == 2
    assert "--most" in done["notes"][0]


def test_people_read_it_too_and_hostile_text_can_do_nothing(webtext, write_shards, tmp_path):
    shards = write_shards([[Document("http://a.org/", "\x1b[31mred \x07" + text(1)), Document("http://b.org/", "x")]])
    webtext("clean", "--input", shards, "--output", tmp_path / "out")
    shown = webtext("why", "http://b.org/", tmp_path / "out").out
    assert "dropped: too_short" in shown
    assert "tokens: 1" in shown
    assert "\x1b" not in webtext("why", "http://a.org/", tmp_path / "out").out


def test_a_url_list_is_told_by_line_and_rule(webtext, tmp_path):
    (tmp_path / "urls.txt").write_text(
        "# a comment\nhttp://good.org/a\n\nhttps://www.youtube.com/watch\nhttp://good.org/b.jpg\nHTTP://good.org:80/a\n"
    )
    webtext("blacklist", "--input", tmp_path / "urls.txt", "--output", tmp_path / "urls")
    asked = {
        url: webtext("why", url, tmp_path / "urls", "--json").json["stories"][0]["events"][0]
        for url in ("http://good.org/a", "https://www.youtube.com/watch", "http://good.org/b.jpg")
    }
    kept, site, ending = asked.values()
    assert (kept["verdict"], [place["line"] for place in kept["listed"]]) == ("kept", [2, 6])
    assert (site["reason"], site["values"]["rule"]) == ("blocked_domain", "youtube")
    assert (ending["reason"], ending["values"]["rule"]) == ("blocked_extension", "jpg")
    assert ending["listed"][0]["line"] == 5


@pytest.fixture
def submissions(tmp_path, webtext):
    """`urls` of a dump: http://b.org/ has a low score, http://a.org/ was submitted twice."""
    rows = [("http://a.org/", 9, "a"), ("http://b.org/", 2, "b"), ("http://a.org/?utm_source=x", 5, "c")]
    fixed = {"over_18": False, "is_self": False, "title": "T", "subreddit": "news", "created_utc": 1, "num_comments": 0}
    lines = [json.dumps({"url": url, "score": score, "id": name, **fixed}) for url, score, name in rows]
    (tmp_path / "RS_2012-06.jsonl").write_text("\n".join(lines) + "\n")

    def run(*flags):
        words = ["--input", tmp_path / "RS_2012-06.jsonl", "--output", tmp_path / "urls", "--workers", 1, *flags]
        assert webtext("urls", *words).code == 0
        return tmp_path / "urls"

    return run


def test_a_submission_is_told_by_its_dump_and_the_totals(webtext, submissions):
    folder = submissions()
    low, double = (
        webtext("why", url, folder, "--json").json["stories"][0]["events"][0]
        for url in ("http://b.org/", "http://a.org/?utm_source=x")
    )
    assert (low["verdict"], low["listed"][0]["line"]) == ("dropped", 2)
    assert low["reasons_of_this_step"] == double["reasons_of_this_step"] == ["duplicate_url", "low_score"]


def test_dumps_that_are_too_large_are_not_searched(webtext, submissions, monkeypatch):
    monkeypatch.setattr("webtext_audit.search.MOST_DUMP_BYTES", 100)
    done = webtext("why", "http://b.org/", submissions())
    assert done.code == 2
    assert "are not searched." in done.err


def test_a_tokenizer_tells_what_it_was_learned_from(why, webtext, work, tmp_path, monkeypatch):
    monkeypatch.setattr("webtext_prep.stages.train_tokenizer.HELD_OUT_EVERY", 2)
    for name, flags in (("all", []), ("sample", ["--sample-bytes", 1])):
        words = ["--input", work / "unique", "--output", tmp_path / name, "--vocabulary-size", 300, *flags]
        assert webtext("train-tokenizer", *words, "--workers", 1).code == 0
    verdicts = {}
    for name in ("all", "sample"):
        told = [why(f"http://site{n}.org/page", place=tmp_path / name)[0]["events"][-1] for n in (2, 3, 4, 5, 6)]
        verdicts[name] = [event.get("reason", event["verdict"]) for event in told]
    assert set(verdicts["all"]) == {"held_out", "kept"}
    assert verdicts["sample"] == [told.replace("kept", "unknown") for told in verdicts["all"]]


def test_token_files_in_the_order_of_the_input_and_joined_ones(webtext, work, tmp_path):
    webtext("tokenize", "--input", work / "decontaminated", "--output", tmp_path / "plain", "--no-shuffle")
    webtext("merge-tokens", "--input", work / "corpus", tmp_path / "plain", "--output", tmp_path / "joined")
    found = webtext("why", "http://site4.org/page", tmp_path / "joined", "--json").json["stories"][0]["events"]
    places = {event["place"]: event["at"] for event in found if "first_token" in event.get("at", [{}])[0]}
    assert len(places) == 3
    for prefix, at in places.items():
        for place in at:
            sequence = IndexedTokens(prefix)[place["document"]]
            assert Tokenizer.gpt2().decode(sequence[:-1]) == text(4)
    assert len(places[str(tmp_path / "joined_text_document")]) == 2


def test_training_steps_are_those_that_read_the_document(webtext, work, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    settings = {"data": [str(work / "corpus_text_document")], "split": "1,0,0", "sequence_length": 1024}
    lines = [f"{name} = {json.dumps(value)}" for name, value in {**settings, "global_batch_size": 1}.items()]
    (run / "config.toml").write_text("\n".join(["[train]", *lines]) + "\n")
    (run / "metrics.jsonl").write_text('{"step": 1}\n{"step": 40}\n')
    (story,) = webtext("why", "http://site3.org/page", work / "clean", "--run", run, "--json").json["stories"]
    training = story["training"]
    (document,) = training["documents"]
    assert training["steps"] == 40
    assert document["document"] == events(story)["tokenize"]["at"][0]["document"]
    assert document["steps"]
    assert len(document["steps"]) < 40
    assert document["steps"][-1] <= 40
    assert (
        f"read in {len(document['steps'])} steps"
        in webtext("why", "http://site3.org/page", work / "clean", "--run", run).out
    )


# What a removal touches


def test_a_takedown_names_files_and_token_numbers_and_writes_nothing(webtext, work, tmp_path, contents):
    urls = ["http://site3.org/page", "http://short.org/", "http://user:secret@dirty.org/a", "http://nowhere.org/"]
    (tmp_path / "urls.txt").write_text("\n".join([*urls, "http://SITE3.org/page#top"]))
    before = contents(work / "merged")
    found = webtext("takedown", "--urls", tmp_path / "urls.txt", work / "corpus", "--json").json
    assert (found["urls"], found["not_found"]) == (4, ["http://nowhere.org/"])
    steps = {step["stage"]: step for step in found["steps"]}
    assert {stage: sum(step["files"].values()) for stage, step in steps.items()} == {
        "merge": 3, "clean": 3, "filter": 2, "dedup": 2, "decontaminate": 2, "tokenize": 2,
    }  # fmt: skip
    assert sum(steps["merge"]["lists"].values()) == 3
    assert contents(work / "merged") == before
    shown = webtext("takedown", "--urls", tmp_path / "urls.txt", work / "corpus").out
    assert "4 URLs, 3 of them found" in shown
    assert "secret" not in shown


def test_a_takedown_tells_what_a_training_run_has_read(webtext, work, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text(
        f'[train]\ndata = ["{work / "corpus_text_document"}"]\nsplit = "1,0,0"\nsequence_length = 64\n'
    )
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 400}\n')
    (tmp_path / "urls.txt").write_text("http://site3.org/page\nhttp://site4.org/page\n")
    words = ("takedown", "--urls", tmp_path / "urls.txt", work / "corpus", "--run", tmp_path / "run")
    training = webtext(*words, "--json").json["training"]
    assert len(training["documents"]) == 2
    assert all(document["steps"] for document in training["documents"])


def test_a_takedown_of_nothing_is_an_error(webtext, work, tmp_path):
    (tmp_path / "urls.txt").write_text("# none\n")
    assert "holds no URL" in webtext("takedown", "--urls", tmp_path / "urls.txt", work / "corpus").sentence
