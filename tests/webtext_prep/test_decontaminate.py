"""`webtext decontaminate`: n-grams of evaluation texts are found exactly, and cut out by the published rules."""

import json
import random
import re
import sys
import unicodedata

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from webtext_audit.report.collect import gather
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.shards import shards_in, write_documents
from webtext_prep.documents.folders.stage_record import trace
from webtext_prep.documents.formats.compression import read_chunks
from webtext_prep.errors import InputError
from webtext_prep.text.contamination import (
    LINE_END,
    SENTENCE_END,
    NGrams,
    cut,
    read_evaluation,
)
from webtext_prep.text.words import places_of, words_of

WORDS = [f"word{number}" for number in range(1000)]


def sentences(seed: int, count: int) -> str:
    """Sentences of random words, some of them long."""
    source = random.Random(seed)
    return " ".join(" ".join(source.choices(WORDS, k=source.randint(5, 20))).capitalize() + "." for _ in range(count))


QUESTION = "Alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron."


def rows(path):
    """The objects in a table."""
    return [json.loads(line) for line in b"".join(read_chunks(path)).splitlines()]


# The simple definitions


def plain_ngrams(texts: list[str], size: int, least: int) -> set[tuple[str, ...]]:
    found = set()
    for text in texts:
        words = words_of(text)
        if len(words) >= least:
            own = min(size, len(words))
            found |= {tuple(words[at : at + own]) for at in range(len(words) - own + 1)}
    return found


def plain_hits(text: str, ngrams: set[tuple[str, ...]]) -> list[tuple[int, tuple[str, ...]]]:
    words, sizes = words_of(text), sorted({len(ngram) for ngram in ngrams}, reverse=True)
    found = []
    for at in range(len(words)):
        for size in sizes:
            if at + size <= len(words) and tuple(words[at : at + size]) in ngrams:
                found.append((at, tuple(words[at : at + size])))
                break
    return found


MARKS = ".!?。！؟।"


def behind(text: str, at: int) -> int:
    """Where a sentence ends whose mark is at `at`."""
    while at < len(text) and text[at] in MARKS:
        at += 1
    while at < len(text) and (text[at] in ")」”" or re.match(r"[\"'](?!\w)", text[at:])):
        at += 1
    return at


def plain_pieces(text: str, find, margin: int, shortest: int) -> list[str]:
    """The published procedure: cut at the first hit, and do the same with what follows."""
    pieces, waiting = [], [text]
    while waiting:
        text = waiting.pop(0)
        hit = find(text)
        if hit is None:
            pieces.append(text)
            continue
        start, end = hit
        at = start - margin
        while at > 0 and text[at] not in MARKS:
            at -= 1
        first = text[: behind(text, at)] if at > 0 else ""
        at = end + margin
        while at < len(text) and text[at] not in MARKS:
            at += 1
        second = text[behind(text, at) :]
        if len(first) > shortest:
            pieces.append(first)
        if len(second) > shortest:
            waiting.append(second)
    return [piece.strip() for piece in pieces]


few_words = st.lists(st.sampled_from(["a", "b", "c", "d", "Été", "İx", "ΣΑΣ", "\u0345", "-"]), max_size=30).map(
    " ".join
)


@given(st.lists(few_words, min_size=1, max_size=5), few_words, st.integers(1, 6), st.integers(1, 6))
def test_hits_equal_the_simple_definition(evaluation, text, size, least):
    least = min(size, least)
    ngrams = NGrams.of((("e", entry) for entry in evaluation), size, least)
    expected = plain_ngrams(evaluation, size, least)
    assert {tuple(ngrams.text_of(number).split()) for number in range(len(ngrams))} == expected
    assert len(ngrams) == len(expected)
    if expected:
        hits = [(at, tuple(ngrams.text_of(number).split())) for at, number in ngrams.hits(text)]
        assert hits == plain_hits(text, expected)
        assert not hits or ngrams.suspects(["", text, "z"])[1]


@given(st.text('x .!。।」")', max_size=120), st.integers(0, 12), st.integers(0, 12))
def test_pieces_equal_the_published_procedure(filling, margin, shortest):
    """`HIT` stands for a match."""
    text = re.sub("xx", "HIT", filling)

    def first(rest: str) -> tuple[int, int] | None:
        found = re.search("HIT", rest)
        return found.span() if found else None

    hits = [found.span() for found in re.finditer("HIT", text)]
    assert cut(text, hits, margin, shortest)[0] == plain_pieces(text, first, margin, shortest)


def test_ends_of_sentences_are_those_of_unicode():
    known = [character for character in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(character) != "Cn"]
    found = {character for character in known if SENTENCE_END.fullmatch(character)}
    assert found == set(regex.findall(r"\p{Sentence_Terminal}", "".join(known)))


@given(st.text('a \n.!。」"\U00011047\U00010450', max_size=40))
def test_ends_in_all_scripts_are_found_as_by_the_plain_expression(text):
    """U+11047 ends a sentence, U+10450 is a letter."""
    plain = r'[.!。\U00011047]+(?:」|"(?!\w))*'
    for ends, expected in (SENTENCE_END, plain), (LINE_END, rf"{plain}|\n"):
        assert [found.span() for found in ends.finditer(text)] == [
            found.span() for found in re.finditer(expected, text)
        ]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("我们去了北京。天气很好！", "他说：「走吧。」然后我们走了。"),
        ("他说：「走吧。」", "（真的。）我们走了。"),
        ("東京に行きました。", "楽しかったですか？はい。"),
        ("यह पहला वाक्य है।", " यह दूसरा वाक्य है।"),
        ("ذهبنا إلى السوق؟", " هل تعرف ذلك؟ نعم."),
        ("یہ پہلا جملہ ہے۔", " یہ دوسرا جملہ ہے۔"),
        ("Սա առաջինն է։", " Սա երկրորդն է։"),
        ("ይህ የመጀመሪያው ነው።", " ይህ ሁለተኛው ነው።"),
        ("ဒါပထမပါ။", "ဒါဒုတိယပါ။"),
        ("នេះជាទីមួយ។", "នេះជាទីពីរ។"),
        ('She said: "Go." (He did.)', " Then what?! Nothing."),
    ],
)
def test_sentences_end_in_every_script(before, after):
    """A page without one of `.!?` fell whole where one passage matched."""
    mark = before.rstrip('」)"')[-1]
    text = f"{before}xx HIT yy{mark}{after}"
    at = text.index("HIT")
    assert cut(text, [(at, at + 3)], 0, 0)[0] == [before.strip(), after.strip()]


def test_places_are_those_of_the_words():
    text = "An İstanbul night, naïve_2 — 中文 ok."
    assert words_of(text) == [text[slice(*place)].casefold() for place in places_of(text)]


@pytest.fixture
def evaluation(tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text(json.dumps({"id": 1, "question": "Too short."}) + "\n" + json.dumps({"q": [QUESTION]}) + "\n")
    return path


@pytest.fixture
def run(webtext, tmp_path, evaluation):
    """Runs the stage on a folder with the evaluation file."""

    def call(folder, *flags, output="out"):
        return webtext(
            "decontaminate", "--input", folder, "--output", tmp_path / output, "--evaluation", evaluation,
            "--json", "--workers", 1, *flags,
        )  # fmt: skip

    return call


def test_a_passage_is_cut_out_to_the_ends_of_sentences(run, write_shards, read_shards, tmp_path):
    before, after = sentences(1, 20), sentences(2, 20)
    folder = write_shards([[Document("http://a", f"{before} {QUESTION} {after}", {"title": "A"}), sentences(3, 9)]])
    done = run(folder).json
    assert (done["in"], done["added"], done["out"], done["dropped"], done["notes"]) == (2, 1, 3, {}, {"cut": 1})
    first, second, other = read_shards(tmp_path / "out")
    assert (first.url, first.metadata) == ("http://a", {"title": "A", "piece": 1})
    assert (second.url, second.metadata) == ("http://a", {"title": "A", "piece": 2})
    assert before.startswith(first.text)
    assert 200 <= len(before) - len(first.text) <= 400
    assert first.text.endswith(".")
    assert after.endswith(second.text)
    assert 200 <= len(after) - len(second.text) <= 400
    assert other.text == sentences(3, 9)
    record = json.loads((tmp_path / "out" / "stage.json").read_text())
    assert record["shards"] == {"part-00000.jsonl.zst": 3}
    facts = {
        "evaluation_texts": 1,
        "evaluation_texts_too_short": 1,
        "evaluation_records_left_out": 1,
        "ngrams": 3,
        "frequent_ngrams": 0,
        "matches": 1,
        "pieces": 3,
    }
    assert record["facts"] == facts
    (match,) = rows(tmp_path / "out" / "matches.jsonl.zst")
    assert match == {
        "url": "http://a",
        "start": len(before) + 1,
        "match": QUESTION[: QUESTION.index(" xi")],
        "ngram": QUESTION[: QUESTION.index(" xi")].lower(),
        "evaluation": "questions.jsonl, line 2",
        "evaluation_text": QUESTION,
    }


@pytest.fixture
def pieces(webtext, write_shards, tmp_path, evaluation):
    """Of three pages two are cut into two documents each; a filter of one's own drops the second piece of one."""
    a, b = (f"{sentences(seed, 20)} {QUESTION} {sentences(seed + 10, 20)}" for seed in (1, 2))
    documents = [Document("http://a/x", a), Document("http://b/x?q", b), Document("http://c/x", sentences(3, 9))]
    place = shards_in(write_shards([documents]))[0]
    place.rename(place.with_name("pages.jsonl.zst"))
    (tmp_path / "mine.py").write_text("def keep(document):\n    return document.id[7:] != 'b/x?q#piece-2' or 'mine'\n")
    for stage, read, output, *more in (
        ("merge", "input", "merged"),
        ("decontaminate", "merged", "cut", "--evaluation", evaluation),
        ("filter", "cut", "kept", "--function", f"{tmp_path / 'mine.py'}:keep"),
        ("tokenize", "kept", "corpus"),
    ):
        done = webtext(stage, "--input", tmp_path / read, "--output", tmp_path / output, "--workers", 1, *more)
        assert done.code == 0, done.err
    return tmp_path


def by_id(documents):
    return sorted((document.id, document.text, document.metadata) for document in documents)


def test_merge_gives_the_pieces_of_a_page_back(pieces, webtext, read_shards):
    """Pieces shared one URL, and merge dropped all but the first of each page, also of our own export, whose card
    promises the same documents."""
    before = by_id(read_shards(pieces / "cut"))
    assert [identity for identity, *_ in before] == [
        *("http://a/x#piece-1", "http://a/x#piece-2", "http://b/x?q#piece-1", "http://b/x?q#piece-2", "http://c/x"),
    ]
    for number, format_name in enumerate(("parquet", "jsonl.gz")):
        exported = pieces / f"exported-{number}"
        assert webtext("export", "--input", pieces / "cut", "--output", exported, "--format", format_name).code == 0
        done = webtext("merge", "--input", exported / "data", "--output", pieces / f"back-{number}", "--json").json
        assert (done["in"], done["out"], done["dropped"]) == (5, 5, {})
        assert by_id(read_shards(pieces / f"back-{number}")) == before
    folders = (pieces / "cut", pieces / "kept", pieces / "merged")
    done = webtext("merge", "--input", *folders, "--output", pieces / "all", "--json").json
    # What came before counts, be it the pieces of a page or the whole of it.
    assert (done["in"], done["out"], done["dropped"]) == (12, 5, {"duplicate_url": 7})
    assert by_id(read_shards(pieces / "all")) == before
    again = webtext("inspect", pieces / "all", "--dropped", "duplicate_url", "--samples", 9, "--json").json
    assert len(again["samples"]) == 7
    assert webtext("merge", "--input", pieces / "merged", pieces / "cut", "--output", pieces / "whole").code == 0
    assert by_id(read_shards(pieces / "whole")) == by_id(read_shards(pieces / "merged"))


def test_a_piece_that_is_cut_again_keeps_its_number(pieces, webtext, read_shards, evaluation):
    """Both halves of two pieces were called 1 and 2: four documents with two names."""
    (second,) = (document for document in read_shards(pieces / "cut") if document.id == "http://a/x#piece-2")
    evaluation.write_text(json.dumps({"q": " ".join(second.text.split()[80:95])}))
    flags = ("--input", pieces / "cut", "--output", pieces / "again", "--evaluation", evaluation, "--margin", 0)
    done = webtext("decontaminate", *flags, "--shortest-piece", 0, "--json").json
    assert (done["in"], done["added"], done["out"]) == (5, 1, 6)
    found = [document.id for document in read_shards(pieces / "again") if document.url == "http://a/x"]
    assert found == ["http://a/x#piece-1", "http://a/x#piece-2-1", "http://a/x#piece-2-2"]
    assert rows(pieces / "again" / "matches.jsonl.zst")[0]["url"] == "http://a/x#piece-2"
    told = webtext("why", "http://a/x", pieces / "again", "--json").json["stories"]
    assert [story["url"] for story in told] == found


def test_every_piece_has_its_own_story(pieces, webtext):
    """`why` told of the pieces of a page as if they were one document: that one of them was dropped was not told."""

    def stories(what):
        found = webtext("why", what, pieces / "corpus", "--json").json["stories"]
        return {story["url"]: {event["stage"]: event for event in story["events"]} for story in found}

    found = stories("http://b/x?q")
    assert list(found) == ["http://b/x?q#piece-1", "http://b/x?q#piece-2"]
    kept, dropped = found.values()
    assert [event["verdict"] for event in kept.values()] == ["kept"] * 4
    assert [event["verdict"] for event in dropped.values()] == ["kept", "kept", "dropped", "absent"]
    assert dropped["filter"]["reason"] == "mine"
    assert [len(event["at"]) for event in kept.values()] == [1] * 4
    assert stories("http://b/x?q#piece-2") == {"http://b/x?q#piece-2": dropped}
    assert "has met the URL http://b/x?q#piece-3" in webtext("why", "http://b/x?q#piece-3", pieces / "corpus").sentence


def test_a_report_counts_pieces(pieces, webtext):
    """Its figures were scaled by documents in / pieces, as if it had looked at more documents than there are."""
    page = pieces / "report.html"
    assert webtext("report", pieces / "cut", "--output", page, "--workers", 1).code == 0
    (corpus,) = gather([trace(pieces / "cut")], sample=0, workers=1, run=None).corpora
    assert (corpus.documents, corpus.figures.documents, corpus.scale) == (5, 5, 1.0)
    assert "added: further pieces" in page.read_text(encoding="utf-8")


def test_a_removal_takes_all_pieces_of_a_page(pieces, webtext, read_shards):
    """`takedown --apply` refused every chain in which something was cut: "does not read all documents"."""
    (pieces / "remove.txt").write_text("http://a/x\n")
    source = pieces / "input" / "pages.jsonl.zst"
    with write_documents(source) as writer:
        for document in read_shards(pieces / "merged"):
            if document.url != "http://a/x":
                writer.write(document)
    done = webtext("takedown", "--urls", pieces / "remove.txt", pieces / "corpus", "--apply", "--json", "--workers", 1)
    assert done.code == 0, done.err
    assert [document.id for document in read_shards(pieces / "cut")] == [
        *("http://b/x?q#piece-1", "http://b/x?q#piece-2", "http://c/x"),
    ]
    record = json.loads((pieces / "corpus_text_document.json").read_text())
    (kept,) = record["inputs"]
    (cut_summary,) = kept["inputs"]
    assert [step.get("added", 0) for step in (cut_summary, kept, record)] == [1, 0, 0]
    assert (record["in"], record["out"]) == (2, 2)


def test_without_much_around_it_a_document_is_dropped(run, write_shards, read_shards, tmp_path):
    folder = write_shards([[f"Short. {QUESTION} Short.", sentences(1, 5)]])
    done = run(folder).json
    assert done["dropped"] == {"contaminated": 1}
    assert [document.metadata["reason"] for document in read_shards(tmp_path / "out" / "dropped")] == ["contaminated"]


def test_a_document_of_many_pieces_is_dropped(run, write_shards):
    parts = [sentences(seed, 12) for seed in range(12)]
    folder = write_shards([[f" {QUESTION} ".join(parts), f" {QUESTION} ".join(parts[:5]), "x" * 300]])
    # Seen 15 times: not frequent enough to be left alone.
    done = run(folder, "--frequent", 100).json
    assert (done["added"], done["out"], done["dropped"]) == (4, 6, {"too_many_pieces": 1})


def test_frequent_ngrams_are_left_alone_and_listed(run, write_shards, read_shards, tmp_path):
    """Every place counts, also those that overlap: of a text that ten documents quote, all n-grams are frequent."""
    texts = [f"{sentences(seed, 9)} {QUESTION}" for seed in range(10)]
    folder = write_shards([texts[:5], texts[5:]])
    assert run(folder, "--frequent", 11).json["notes"] == {"cut": 10}
    assert run(folder, output="other").json["notes"] == {}
    assert [document.text for document in read_shards(tmp_path / "other")] == texts
    table = rows(tmp_path / "other" / "frequent_ngrams.jsonl.zst")
    assert [row["count"] for row in table] == [10, 10, 10]
    assert table[0]["ngram"] == QUESTION[: QUESTION.index(" xi")].lower()
    assert rows(tmp_path / "other" / "matches.jsonl.zst") == []


def test_short_evaluation_texts_count_as_a_whole(run, write_shards, evaluation):
    evaluation.write_text(json.dumps({"q": " ".join(WORDS[:8])}) + "\n" + json.dumps({"q": " ".join(WORDS[8:15])}))
    folder = write_shards([[" ".join(WORDS[:8]), " ".join(WORDS[8:15]) + " x" * 300]])
    assert run(folder).json["dropped"] == {"contaminated": 1}


def test_a_changed_evaluation_file_is_read_again(run, write_shards, evaluation):
    folder = write_shards([[f"{QUESTION} {sentences(1, 3)}", sentences(2, 3)]])
    assert run(folder).json["dropped"] == {"contaminated": 1}
    assert run(folder).json["resumed"]
    evaluation.write_text(json.dumps({"q": "Nothing of " + QUESTION[20:]}))
    assert run(folder).json["dropped"] == {}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("e.txt", QUESTION),
        ("e.csv", f'question,answer\n"{QUESTION}",yes\n'),
        ("e.json", json.dumps([{"data": {"paragraphs": [{"context": QUESTION}]}}])),
    ],
)
def test_evaluation_files_of_any_kind(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    found = list(read_evaluation([tmp_path / name], ()))
    assert QUESTION in [text for _, text in found]
    assert all(place.startswith(name) for place, _ in found)


def test_only_the_chosen_keys(tmp_path):
    path = tmp_path / "e.jsonl"
    path.write_text(json.dumps({"question": "q", "answers": {"text": ["a", "b"]}, "source": "s"}))
    assert [text for _, text in read_evaluation([path], ["answers", "question"])] == ["a", "b", "q"]
    with pytest.raises(InputError, match="none of the keys quiz \\(but answers, question, source\\)"):
        list(read_evaluation([path], ["quiz"]))


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ([], "needs --evaluation FILE"),
        (["--evaluation", "no_such.txt"], "--evaluation no_such.txt is not a file"),
        (["--evaluation", "README.md", "--least-words", 20], "--least-words 20 is more than --ngram 13"),
    ],
)
def test_wrong_settings(webtext, write_shards, tmp_path, flags, sentence):
    folder = write_shards([["x"]])
    result = webtext("decontaminate", "--input", folder, "--output", tmp_path / "out", *flags)
    assert result.code == 2
    assert sentence in result.sentence


def test_evaluation_files_without_enough_words(run, write_shards, evaluation):
    evaluation.write_text('{"q": "one two"}')
    result = run(write_shards([["x"]]))
    assert result.code == 2
    assert "holds no text of 8 words" in result.sentence


@pytest.mark.parametrize("distance", [0, 1, 397, 398, 399, 400, 401, 800, 2000])
@pytest.mark.parametrize("marks", [".", '."', "...", '?!")'])
def test_the_last_end_of_a_sentence_is_found_however_far_back(distance, marks):
    """It is looked for in one stretch after another, and a row of marks may lie on the edge of two."""
    text = f"One. Two{marks} {'x' * distance}WORD"
    start = text.index("WORD")
    assert cut(text, [(start, start + 4)], 0, 0, SENTENCE_END)[0] == [f"One. Two{marks}"]
