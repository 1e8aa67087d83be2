"""`webtext report`: the figures on the page, where they come from, and that hostile text stays text."""

import html
import json
import re
import shutil
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from practice_corpus import SCRIPT, make_corpus, make_run

from command_kit.charts.numbers import brief, short
from webtext_audit.report import counters
from webtext_audit.report.counters import LogHistogram, Lowest, TopCounter, group_of
from webtext_audit.report.funnel import Level, draw_funnel
from webtext_prep.running.estimates import readable


@pytest.fixture(scope="module")
def shared_corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture
def corpus(request, tmp_path):
    """A download with outcomes, and what clean, dedup and tokenize made of it; a test may ask for its own to change."""
    return make_corpus(tmp_path) if hasattr(request, "param") else request.getfixturevalue("shared_corpus")


@pytest.fixture
def run(tmp_path):
    """A training run, and the summaries of the pipeline next to it."""
    return make_run(tmp_path)


@pytest.fixture
def page(corpus, webtext):
    """`page(folder, ...)` is the page about it."""

    def make(*folders, **settings):
        flags = [
            part
            for name, value in settings.items()
            for part in (f"--{name.replace('_', '-')}", value)
            if part is not True
        ]
        done = webtext("report", *folders, "--output", corpus / "report.html", "--workers", 1, *flags)
        assert done.code == 0, done.err
        assert done.out == f"report: {corpus / 'report.html'}\n"
        return (corpus / "report.html").read_text(encoding="utf-8")

    return make


def words_in(page: str) -> str:
    """The text of a page, as a reader sees it."""
    return re.sub(
        r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)))
    )


def rows_of(page: str, section: str) -> list[list[str]]:
    """The rows of the tables of one section."""
    body = page.partition(f'<section id="{section}">')[2].partition("</section>")[0]
    return [
        [words_in(cell).strip() for cell in re.findall(r"<td.*?</td>", row)]
        for row in re.findall(r"<tr>.*?</tr>", body)
    ]


def test_the_funnel_goes_back_to_the_sources(corpus, page):
    found = page(corpus / "corpus")
    rows = rows_of(found, "from-source-to-corpus")
    assert ["blacklist", "in", "50", ""] in rows
    assert ["", "blocked_domain", "9", "18%"] in rows
    assert ["", "http_404", "2", "5.9%"] in rows
    assert ["", "too_short", "1", "3.3%"] in rows
    assert ["", "duplicate", "3", "10.7%"] in rows
    assert [row[0] for row in rows if row[1:2] == ["in"]] == ["blacklist", "download", "clean", "dedup", "tokenize"]
    assert "The folders of blacklist are gone" in words_in(found)


@pytest.mark.parametrize("corpus", ["its own"], indirect=True)
def test_a_folder_that_was_deleted_since_still_has_its_funnel(corpus, page):
    before = rows_of(page(corpus / "corpus"), "from-source-to-corpus")
    for folder in ("download", "clean", "dedup"):
        shutil.rmtree(corpus / folder)
    found = page(corpus / "corpus")
    assert rows_of(found, "from-source-to-corpus") == before
    assert "Lengths" in words_in(found)
    assert '<section id="domains">' not in found


def test_documents_bytes_and_tokens_by_domain_add_up(corpus, page, read_shards):
    found = page(corpus / "corpus")
    documents = read_shards(corpus / "dedup")
    tokens = json.loads((corpus / "corpus_text_document.json").read_text())["facts"]["tokens"]
    rows = [row for row in rows_of(found, "domains") if row]
    for number in range(4):
        mine = [document for document in documents if f"site{number}.org" in document.url]
        (row,) = [row for row in rows if row[0] == f"site{number}.org"]
        assert row[1].split()[0] == str(len(mine))
        assert row[2].startswith(readable(sum(len(document.text.encode()) for document in mine)))
    assert f"tokens {brief(tokens)}" in words_in(found) or f"tokens {short(tokens)}" in words_in(found)


def test_outcomes_are_shown_by_kind_and_host(corpus, page):
    rows = [row for row in rows_of(page(corpus / "corpus"), "downloads") if row]
    assert ["http_404", "2 5.9%"] in rows
    assert next(row[1] for row in rows if row[0] == "gone.org").startswith("4 URLs, 0% with text")


def test_duplicates_are_shown_with_what_stays(corpus, page):
    found = words_in(page(corpus / "corpus"))
    assert "Similarity of what was dropped to what stays" in found
    assert "1 groups in all" in found or "1 group in all" in found
    assert "copy.net" in found


def test_each_reason_has_examples(corpus, page):
    found = page(corpus / "corpus")
    examples = found.partition('<section id="examples">')[2].partition("</section>")[0]
    for reason in ("http_404", "timeout", "robots", "too_short", "language_fr", "duplicate"):
        assert f'<span class="reason-name">{reason}</span>' in examples
    assert "http://gone.org/0" in examples
    assert "Le chat est sur la table" in examples
    assert f"Too short {html.escape(SCRIPT)}" in examples


def test_a_training_run_shows_losses_and_texts(corpus, run, page):
    found = page(corpus / "corpus", run=run)
    body = words_in(found.partition('<section id="training">')[2])
    assert "after 51.2k tokens" in words_in(found)
    assert "5.125" in words_in(found)
    assert "Held-out loss 5.200 nats per token; a unigram model of the same text has 6.500" in body
    assert f"The cat sat {SCRIPT}" in html.unescape(re.sub(r"</?(span|div)[^>]*>", "", found))
    assert ["100", "5", "5.125", "0.001"] in rows_of(found, "training")
    assert words_in(found).count("layers 4") == 1


def test_the_legend_shows_what_is_drawn(corpus, run, page):
    """Each curve has the colour of its name, also one of a single point."""
    rows = [{"step": step, "loss": 5.0} for step in (1, 2)] + [{"step": 2, "valid_loss": 5.1}]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    body = page(corpus / "corpus", run=run).partition('<section id="training">')[2]
    named = re.findall(r'class="fill-(c\d)"[^>]*></rect></svg>(\w+) loss', body)
    assert named == [("c1", "training"), ("c2", "validation")]
    chart = body[body.index("Loss in nats per token by step") :]
    assert re.findall(r'class="curve curve-(c\d)"|class="dot dot-(c\d)"', chart)[:4] == [
        ("c1", ""), ("", "c1"), ("", "c1"), ("", "c2"),
    ]  # fmt: skip


def test_samples_and_tasks_of_the_training_are_shown_by_step(corpus, run, page):
    """Some of many steps, the first and the last among them; and no figure of a task passes for a loss of the run."""
    found = page(corpus / "corpus", run=run)
    body = words_in(found.partition('<section id="training">')[2])
    assert f"lambada, input {SCRIPT}.jsonl" in body
    assert ["0", "0", "77"] in rows_of(found, "training")
    assert ["100", "0.5", "77"] in rows_of(found, "training")
    assert "last word accuracy by step" in found
    assert f"Once {SCRIPT} at 0 ⟨U+001B⟩[2J<b>" in body
    assert body.count(f"Once {SCRIPT} at ") == 8
    assert "step 100 Once" in body
    assert ["100", "5", "5.125", "0.001"] in rows_of(found, "training")


def test_rows_that_say_other_than_they_should_do_no_harm(corpus, run, page):
    """The log of a run may come from anywhere."""
    odd = [{"step": "x", "kind": "sample"}, {"step": 3, "kind": "sample", "prompt": None, "sample": "y", "text": 5},
           {"step": 3, "kind": "task"}, {"step": 3, "kind": "task", "task": 7, "settings": [1], "result": {"a": "b"}},
           {"step": 3, "kind": "task", "task": "counts", "result": {"lines": 3, "yes": True}}]  # fmt: skip
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines("\n" + json.dumps(row) for row in odd)
    found = page(corpus / "corpus", run=run)
    assert ["3", "3"] in rows_of(found, "training")


def test_texts_may_come_from_a_file(corpus, run, page, tmp_path):
    (tmp_path / "texts.json").write_text(json.dumps({"samples": [{"prompt": "Once", "text": " upon"}]}))
    assert "Once upon" in re.sub(
        r"</?span[^>]*>", "", page(corpus / "corpus", run=run, samples=tmp_path / "texts.json")
    )


def test_what_the_pipeline_measured_and_traced_is_shown(corpus, run, page, tmp_path):
    """Bits per byte next to compressors', passages that stand in the corpus; and damaged figures do no harm."""
    summaries = json.loads((run.parent / "pipeline.json").read_text())
    summaries["evaluate"] |= {"bits_per_byte": 1.5, "bytes": 4_000, "tokens": 1_000, "documents": 7}
    summaries["evaluate"]["compressed"] = {"zstd -19": 2.25, "odd": "x"}
    (run.parent / "pipeline.json").write_text(json.dumps(summaries))
    passage = {"begin": 1, "end": 5, "tokens": 4, "sources": [{"url": "http://a.org/1"}]}
    odd = [7, {"begin": 2, "end": 4}, {"begin": 6, "end": 99}, {"begin": None}]
    trace = {"verbatim_tokens": 4, "minimum_tokens": 3, "passages": [passage, *odd]}
    texts = [{"prompt": "Once", "text": " upon a", "trace": trace}, {"text": 7, "trace": []}]
    (tmp_path / "texts.json").write_text(json.dumps({"samples": texts}))
    found = page(corpus / "corpus", run=run, samples=tmp_path / "texts.json")
    assert '<mark class="copied">upon</mark> a' in found
    assert found.count("<mark") == 1
    shown = words_in(found)
    assert "4 tokens stand in the corpus word for word, in passages of 3 or more: http://a.org/1" in shown
    assert "bits per byte, held out 1.50 zstd -19 2.25" in shown
    assert [row[:2] for row in rows_of(found, "training")[1:4]] == [
        ["this model", "1.50"], ["zstd -19", "2.25"], ["unigram model", "2.34"],
    ]  # fmt: skip
    assert "over all 1,000 tokens of the 7 documents held out" in shown


def test_the_page_is_called_by_its_pipeline_and_begins_with_what_became_of_its_sources(corpus, page):
    found = page(corpus / "corpus")
    assert "<h1>corpus</h1>" in found
    assert "50% of 50 URLs are in the corpus. The largest part of the rest: blocked domain (9)." in words_in(found)
    try:
        (corpus / "pipeline.json").write_text("{}")
        assert f"<h1>{corpus.name}</h1>" in page(corpus / "corpus")
    finally:
        (corpus / "pipeline.json").unlink()


ABLATION = {
    "sentences": ["strict against plain: better by 0.012 bits per byte [0.008, 0.016] on <b>texts</b>"],
    "baseline": "plain",
    "arms": [
        {"name": name, "documents": documents, "unique_tokens": 9_000, "epochs": 1.4}
        for name, documents in (("plain", 1_200), ("strict", 800))
    ],
    "sets": [{"name": "<b>texts</b>"}],
    "bits_per_byte": {"<b>texts</b>": {"plain": [1.5, 1.6], "strict": [1.49, 1.58]}},
    "comparisons": [
        {"arm": "strict", "set": "<b>texts</b>", "differences": [0.01, 0.014], "mean": 0.012, "median": 0.012,
         "interval": {"low": 0.008, "high": 0.016}, "can_see": 0.006, "verdict": "better"}
    ],
    "against_itself": [
        {"set": "<b>texts</b>", "differences": [0.001, -0.002], "mean": -0.0005, "median": -0.0005,
         "interval": {"low": -0.003, "high": 0.002}}
    ],
}  # fmt: skip


def test_an_ablation_shows_each_seed_and_the_intervals(corpus, page, webtext, tmp_path):
    (tmp_path / "ablation.json").write_text(json.dumps(ABLATION))
    found = page(corpus / "corpus", ablation=tmp_path)
    section = found.partition('<section id="ablation">')[2].partition("</section>")[0]
    assert ABLATION["sentences"][0] in words_in(section)
    assert section.count('class="dot dot-c1"') == section.count('class="dot dot-c2"') == 2
    assert ["strict", "800", "9,000", "1.40", "1.5350"] in rows_of(found, "ablation")
    assert rows_of(found, "ablation")[1][1:] == [
        "+0.0100 +0.0140", "+0.0120", "+0.0120", "[+0.0080, +0.0160]", "0.0060", "better",
    ]  # fmt: skip
    assert "<b>" not in section
    (tmp_path / "ablation.json").write_text("{}")
    done = webtext("report", corpus / "corpus", "--output", tmp_path / "page.html", "--ablation", tmp_path)
    assert done.code == 2
    assert "ablation.json is damaged" in done.err


def test_settings_versions_and_times_of_each_stage_are_there(corpus, page):
    found = words_in(page(corpus / "corpus"))
    run = json.loads((corpus / "clean" / ".state" / "run.json").read_text())
    assert run["python"] in found
    assert run["host"] in found
    assert "min_tokens 128" in found
    assert "similarity 0.8" in found


def test_hostile_text_stays_text(corpus, run, page):
    found = page(corpus / "corpus", corpus / "clean", run=run, title=SCRIPT)
    assert "<script" not in found.lower()
    assert "<img" not in found.lower()
    assert found.count(html.escape(SCRIPT)) >= 5  # title, heading, text, problems, a setting
    assert "⟨U+202E⟩evil" in found
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", found)
    assert re.search(r'Content-Security-Policy" content="default-src &#x27;none&#x27;; style-src &#x27;sha256-', found)
    assert not re.search(r"(?:src|href|srcset|data|action)=(?!\"#)", found)
    assert not re.search(r"<[^>]+\s(?:on\w+|style)=", found)


def test_the_page_is_the_same_whatever_the_workers(corpus, webtext):
    pages = []
    for workers in (1, 2):
        assert webtext("report", corpus / "corpus", "--output", corpus / "r.html", "--workers", workers).code == 0
        pages.append((corpus / "r.html").read_bytes())
    assert pages[0] == pages[1]


def test_a_sample_says_that_it_is_one_and_is_the_same_again(corpus, page):
    whole, part = page(corpus / "dedup"), page(corpus / "dedup", sample=10)
    assert "Estimated from" not in whole
    found = re.search(r"Estimated from (\d+) of (\d+) documents", words_in(part))
    assert found is not None
    assert 0 < int(found[1]) < int(found[2]) == 25
    assert page(corpus / "dedup", sample=10) == part
    assert page(corpus / "dedup", sample=10, all=True) == whole


def test_several_folders_are_shown_together(corpus, page):
    found = page(corpus / "dedup", corpus / "clean")
    assert found.count("Characters of a document</h3>") == 2
    # What is given is the end of a stream of its own; what both were made from is there once.
    assert found.count('class="funnel wide"') == 2
    rows = [row for row in rows_of(found, "from-source-to-corpus") if row]
    assert [row[0] for row in rows if row[1:2] == ["in"]] == ["blacklist", "download", "clean", "dedup"]


def test_one_loopback_address_is_no_news(tmp_path, webtext):
    (tmp_path / "urls.txt").write_text("http://127.0.0.1:8100/a\nhttp://127.0.0.1:8100/b\n")
    flags = ("--output", tmp_path / "urls", "--workers", 1)
    assert webtext("blacklist", "--input", tmp_path / "urls.txt", *flags).code == 0
    assert webtext("report", tmp_path / "urls", "--output", tmp_path / "report.html").code == 0
    assert "<h2>Domains</h2>" not in (tmp_path / "report.html").read_text()


def test_lists_of_urls_have_domains_and_no_lengths(tmp_path, webtext):
    (tmp_path / "urls.txt").write_text("http://a.org/1\nhttp://a.org/2\nhttp://b.org/1\nnothing\n")
    assert webtext("blacklist", "--input", tmp_path / "urls.txt", "--output", tmp_path / "urls").code == 0
    assert webtext("report", tmp_path / "urls", "--output", tmp_path / "r.html").code == 0
    found = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert ["a.org", "2 66.7%"] in rows_of(found, "domains")
    assert '<section id="lengths">' not in found


def test_kinds_of_pages_have_documents_and_bytes(tmp_path, webtext):
    rows = [{"url": f"http://a.org/{n}", "text": "x" * 100, "kind": ["forum", "article"][n == 0]} for n in range(4)]
    rows[0] |= {"language": "el", "text_share": 0.95}
    rows[1] |= {"text": "x" * 200, "text_share": 0.9}
    (tmp_path / "texts.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert webtext("merge", "--input", tmp_path / "texts.jsonl", "--output", tmp_path / "texts").code == 0
    assert webtext("report", tmp_path / "texts", "--output", tmp_path / "r.html").code == 0
    found = rows_of((tmp_path / "r.html").read_text(encoding="utf-8"), "kinds-of-pages")
    assert found[1:3] == [["forum", "3 75%", "400 bytes 80%"], ["article", "1 25%", "100 bytes 20%"]]
    # Where little or nearly all of a page is its text, the extractor may be wrong.
    assert found[4:] == [
        ["forum", "3", "2 66.7%", "0 0%"],
        ["el, article", "1", "1 100%", "1 100%"],
        ["all", "4", "3 75%", "1 50%"],
    ]


def test_what_cannot_be_shown_is_a_sentence(corpus, webtext, tmp_path):
    (tmp_path / "empty").mkdir()
    where = ("--output", tmp_path / "r.html")
    assert "needs a DIR" in webtext("report", *where).sentence
    assert "needs --output" in webtext("report", corpus / "clean").sentence
    assert "no record of a stage" in webtext("report", tmp_path / "empty", *where).sentence
    assert "is a folder" in webtext("report", corpus / "clean", "--output", tmp_path).sentence
    (tmp_path / "mine.jsonl").write_text("{}")
    for flags in (
        ("--output", tmp_path / "mine.jsonl"),
        ("--output", tmp_path / "a", "--funnel", tmp_path / "mine.jsonl"),
    ):
        assert "mine.jsonl is there, and is no page" in webtext("report", corpus / "clean", *flags).sentence
    assert (tmp_path / "mine.jsonl").read_text() == "{}"
    assert "metrics.jsonl" in webtext("report", corpus / "clean", *where, "--run", tmp_path / "empty").sentence
    assert "--run RUN" in webtext("report", corpus / "clean", *where, "--samples", "x.json").sentence
    assert not (tmp_path / "r.html").exists()


# Its parts


@given(st.lists(st.tuples(st.text("abcdef", max_size=2), st.integers(0, 9)), max_size=60), st.integers(0, 60))
def test_counters_of_parts_add_up_to_that_of_the_whole(rows, at):
    whole, first, second = TopCounter(2), TopCounter(2), TopCounter(2)
    for place, (name, value) in enumerate(rows):
        whole.add(name, 1, value)
        (first if place < at else second).add(name, 1, value)
    first.merge(second)
    assert first.names == whole.names
    assert dict(Counter(name for name, _ in rows)) == {name: values[0] for name, values in whole.names.items()}
    assert not first.is_cut


def test_a_counter_of_too_many_names_keeps_the_frequent_ones_and_says_what_it_lost(monkeypatch):
    monkeypatch.setattr(counters, "MOST_NAMES", 10)
    found = TopCounter(2)
    for number in range(1000):
        found.add(f"rare{number}", 1, 5)
        found.add("often", 1, 7)
    assert len(found.names) <= 20
    assert found.top(1) == [("often", [1000, 7000])]
    assert found.is_cut
    assert found.totals() == [2000, 12000]
    assert found.lost >= 1


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=80))
def test_a_histogram_knows_count_sum_and_about_the_median(values):
    found = LogHistogram()
    for value in values:
        found.add(value)
    assert found.count == len(values)
    assert found.total == sum(values)
    middle = sorted(values)[(len(values) - 1) // 2]
    assert found.quantile(0.5) == pytest.approx(middle, rel=0.05) if middle else found.quantile(0.5) == 0
    assert sum(times for _, _, times in found.columns()) == sum(value > 0 for value in values)


@given(st.lists(st.integers(0, 1000), max_size=30), st.integers(0, 30))
def test_the_lowest_keys_are_the_same_in_any_order(keys, at):
    one, other = Lowest(3), Lowest(3)
    for key in keys[:at]:
        one.add(key, f"entry {key}")
    for key in keys[at:]:
        other.add(key, f"entry {key}")
    one.merge(other)
    assert one.ordered() == [f"entry {key}" for key in sorted(set(keys))[:3]]


def widths(svg: str, kind: str) -> list[float]:
    return [float(width) for width in re.findall(rf'<rect class="{kind}"[^>]*width="([\d.]+)"', svg)]


def test_the_stream_is_as_wide_as_there_are_documents():
    svg = draw_funnel([Level("a", 1000, 600, [("x", 300), ("y", 100)]), Level("b", 600, 300, [("z", 300)])], width=960)
    first, second, last = widths(svg, "node")
    assert second / first == pytest.approx(0.6, abs=0.01)
    assert last / first == pytest.approx(0.3, abs=0.01)
    assert "times wider" not in svg


def test_a_stream_that_became_thin_is_drawn_wider_and_says_so():
    svg = draw_funnel([Level("a", 1000, 10, [("x", 990)]), Level("b", 10, 10)], width=960)
    first, second, last = widths(svg, "node")
    assert first == pytest.approx(second, abs=1) == pytest.approx(last, abs=1)
    assert "drawn 100 times wider" in svg


def test_many_reasons_are_put_together_in_the_picture():
    svg = draw_funnel([Level("a", 100, 10, [(f"reason{number}", 9) for number in range(10)])], width=360)
    assert "5 other reasons" in svg
    assert "  45" in svg


def test_every_outcome_belongs_to_a_group():
    groups = {
        "ok": ["ok"],
        "client": ["http_301", "http_404"],
        "server": ["http_503"],
        "robots": ["robots", "robots_unreachable"],
        "network": ["dns", "timeout"],
        "content": ["empty", "not_html", ""],
    }
    for group, outcomes in groups.items():
        assert [group_of(outcome) for outcome in outcomes] == [group] * len(outcomes)


# What was dropped


@pytest.mark.parametrize("corpus", ["its own"], indirect=True)
def test_examples_of_what_was_dropped_are_shown_with_their_texts_from_the_input(corpus, webtext, page):
    done = webtext("clean", "--input", corpus / "download", "--output", corpus / "other", "--workers", 1)
    assert done.code == 0
    examples = page(corpus / "other").partition('<section id="examples">')[2]
    assert '<span class="reason-name">language_fr</span>' in examples
    assert "Le chat est sur la table" in examples
    shutil.rmtree(corpus / "download")
    assert '<span class="reason-name">language_fr</span>' in page(corpus / "other"), "the receipt is there without it"


def test_too_many_domains_are_put_together_and_the_page_says_so(corpus, page, monkeypatch):
    monkeypatch.setattr(counters, "MOST_NAMES", 2)
    found = words_in(page(corpus / "dedup"))
    assert "Rare domains were put together: none that is shown lacks more than" in found
    assert "more than" in found.partition("Rare domains")[0]
