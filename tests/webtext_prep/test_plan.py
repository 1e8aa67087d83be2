"""`webtext plan`: what a sample is, what follows from what the stages took for it, and that it resumes."""

import contextlib
import io
import itertools
import json
import os
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from pages_on_loopback import serve_pages

from webtext_audit.plan import planner, sample
from webtext_audit.plan.plan_file import NAME, about, find_plan, read_plan
from webtext_audit.plan.planner import run_webtext
from webtext_prep import cli
from webtext_prep.documents.folders.shards import read_documents
from webtext_prep.documents.folders.url_lists import read_urls
from webtext_prep.errors import InputError, WebtextError
from webtext_prep.running.settings import Link, RunSettings
from webtext_prep.stages.blacklist import Blacklist
from webtext_prep.stages.clean import Clean
from webtext_prep.stages.dedup import Dedup
from webtext_prep.stages.download import Download
from webtext_prep.stages.merge import Merge

KNOWN = cli.find_stages()
PIPELINES = sorted((Path(__file__).parents[2] / "pipelines").glob("*.toml"))


@pytest.fixture
def urls(tmp_path):
    """4,000 lines, of which each tenth URL stands there twice, in two spellings."""
    lines = [f"http://host{at % 7}.org/{at}" for at in range(3600)] + [
        f"HTTP://Host{at % 7}.org/{at}#top" for at in range(0, 3600, 9)
    ]
    (tmp_path / "urls.txt").write_text("\n".join(lines))
    return tmp_path / "urls.txt"


def take(path, folder, stage=None, share=0.05, at_least=1, at_most=10**6):
    stage = stage or Blacklist()
    folder.mkdir(exist_ok=True)
    return sample.take(stage.reads.find([str(path)], folder)[0], stage, folder, share, at_least, at_most)


# The sample


def test_rows_are_chosen_by_what_makes_two_urls_one_page(urls, tmp_path):
    found = take(urls, tmp_path / "a")
    lines = Path(found.files[0]).read_text().split()
    assert len(lines) == found.rows
    assert found.rows == pytest.approx(200, abs=1)  # 5%, and perhaps the copy of the last one
    assert (found.total, found.scale) == (4000, 4000 / found.rows)
    given = urls.read_text().split()
    assert lines == [line for line in given if line in set(lines)]
    pages = Counter(line.lower().removesuffix("#top") for line in given)
    assert Counter(line.lower().removesuffix("#top") for line in lines) == {
        page: count for page, count in pages.items() if page in {line.lower() for line in lines}
    }
    assert 2 in pages.values()


def test_the_sample_is_the_same_whatever_the_order_of_the_list(urls, tmp_path):
    first = take(urls, tmp_path / "a")
    urls.write_text("\n".join(reversed(urls.read_text().split())))
    second = take(urls, tmp_path / "b")
    one, two = (Path(found.files[0]).read_text().split() for found in (first, second))
    assert (sorted(one), one != two) == (sorted(two), True)


@pytest.mark.parametrize(
    ("at_least", "at_most", "rows"), [(1, 10**6, 40), (900, 10**6, 900), (1, 7, 7), (9000, 9000, 4000)]
)
def test_a_sample_has_a_least_and_a_most(urls, tmp_path, at_least, at_most, rows):
    found = take(urls, tmp_path / "a", share=0.01, at_least=at_least, at_most=at_most)
    assert found.rows in (rows, rows + 1)
    assert found.scale >= 1


def test_metadata_of_a_row_and_what_is_no_url_stay(tmp_path):
    (tmp_path / "urls.jsonl").write_text(
        '{"url": "http://a.org/", "by": "me"}\n{"url": "no url"}\n{"url": "http://b.org/\\u00e9"}\n'
    )
    found = take(tmp_path / "urls.jsonl", tmp_path / "a", share=1)
    rows = list(read_urls(Path(found.files[0])))
    assert [(row.url, row.metadata) for row in rows] == [
        ("http://a.org/", {"by": "me"}),
        ("no url", {}),
        ("http://b.org/\u00e9", {}),
    ]


def test_of_document_shards_rows_of_some_files_are_chosen(tmp_path, write_shards):
    folder = write_shards([[f"text {shard} {row} " * 9 for row in range(50)] for shard in range(20)])
    found = take(folder, tmp_path / "a", Clean(), share=0.02)
    documents = list(read_documents(Path(found.files[0])))
    assert len(documents) == found.rows == pytest.approx(20, abs=4)
    assert found.total == pytest.approx(1000, rel=0.1)
    assert 1 <= len({document.url.split("/")[2] for document in documents}) <= 5  # a tenth or two of the 20 files
    assert all(document.text for document in documents)


@pytest.mark.parametrize(
    ("suffix", "at_least", "expected_"), [("txt", 1, (4, 10)), ("txt", 8, (8, 5)), ("jsonl", 8, (4, 10))]
)
def test_of_anything_else_whole_files_are_chosen(tmp_path, suffix, at_least, expected_):
    (tmp_path / "in").mkdir()
    for number in range(40):
        (tmp_path / "in" / f"{number}.{suffix}").write_text('{"text": "words"}')
    found = take(tmp_path / "in", tmp_path / "a", Merge(), share=0.1, at_least=at_least)
    assert (found.rows, found.scale, found.total) == (*expected_, 40)
    assert found.unit == ("documents" if suffix == "txt" else "files")
    assert all(Path(file).is_file() for file in found.files)
    assert take(tmp_path / "in" / f"3.{suffix}", tmp_path / "b", Merge(), share=0.1).scale == 1


def test_texts_of_all_sizes_count_alike(tmp_path):
    """Files for a tenth of the bytes, of which one was most, were taken for a tenth of the documents."""
    (tmp_path / "in").mkdir()
    for number in range(40):
        (tmp_path / "in" / f"{number}.txt").write_text("word " * (1 if number else 10_000))
    assert take(tmp_path / "in", tmp_path / "a", Merge(), share=0.1).scale == 10


def test_a_file_whose_name_is_not_utf8_can_be_chosen(latin, tmp_path):
    """The hash of such a name was an internal error."""
    (latin / os.fsdecode(b"\xe9.txt")).write_text("a text")
    assert take(latin, tmp_path / "a", Merge()).files == (str(latin / os.fsdecode(b"\xe9.txt")),)
    assert take(latin, tmp_path / "a", Merge()).rows == 1


def test_no_rows_are_an_error(tmp_path):
    (tmp_path / "urls.txt").write_text("# nothing\n")
    with pytest.raises(InputError, match="no URLs in the input"):
        take(tmp_path / "urls.txt", tmp_path / "a")


# The stages


def of(rows, total):
    return sample.ChosenSample(("in",), "URLs", rows, total, total / rows)


@pytest.mark.parametrize("path", PIPELINES, ids=lambda path: path.stem)
def test_the_stages_of_a_pipeline_follow_each_other(path, tmp_path):
    tables = tomllib.loads(path.read_text())
    stages = planner.stages_of(tables, KNOWN, str(path))
    assert [stage.name for stage, *_ in stages] == [name for name in tables if name in KNOWN]
    links = planner._linked(stages, of(1, 1), tmp_path)
    assert links[0].run.input == ("in",)
    by_name = {link.name: link for link in links}
    tokenizing = ("train-tokenizer", "tokenize")
    *_, documents = itertools.takewhile(lambda link: link.name not in tokenizing, links)
    for link in links:
        if link.name == "index-tokens":
            assert link.run.input == (f"{by_name['tokenize'].run.output}_text_document",)
        elif link.name in tokenizing:
            assert links[link.reads] is documents
            assert link.run.input == (documents.run.output,)
        elif link.reads >= 0:
            assert link.run.input == (links[link.reads].run.output,)
    if "train-tokenizer" in by_name:
        assert by_name["tokenize"].stage.tokenizer == by_name["train-tokenizer"].run.output


def test_where_and_how_stages_run_is_left_out():
    tables = {
        "clean": {
            "min_tokens": 5,
            "engine": "ray",
            "ray_address": "auto",
            "workers": 9,
            "format": "parquet",
        }
    }
    ((stage, run),) = planner.stages_of(tables, KNOWN, "my.toml")
    assert (stage.min_tokens, run.format) == (5, "parquet")
    (link,) = planner._linked([(stage, run)], of(1, 1), Path("out"))
    assert planner._arguments(link, Path("s.toml")) == [
        *["clean", "--config", "s.toml", "--input", "in", "--workers", "1", "--json", "--restart"],
        *["--output", "out/1-clean", "--format", "parquet"],
    ]


@pytest.mark.parametrize(
    ("tables", "sentence"),
    [
        ({"train": {"steps": 3}}, "my.toml has no table of a stage, such as"),
        ({"clean": {"min_tokns": 3}}, r"my.toml \[clean\]: unknown setting min_tokns"),
        ({"merge": {"input": "a"}, "clean": {"input": "b"}}, r"my.toml \[clean\] names an input of its own"),
    ],
)
def test_what_a_file_may_not_say(tables, sentence):
    with pytest.raises(InputError, match=sentence):
        planner.stages_of(tables, KNOWN, "my.toml")


# From the sample to the whole


def did(read=1000, kept=900, cpu=11.0, start=1.0, seconds=30.0, memory=10**8, **more):
    took = {"cpu": cpu, "start": start, "seconds": seconds, "memory": memory, "bytes": 5 * 10**5}
    return {"in": read, "out": kept} | took | more


@pytest.fixture
def link(write_shards, tmp_path):
    """`clean` over 400 documents."""
    folder = write_shards([[f"Text number {row} of some length. " * 5 for row in range(400)]])
    run = RunSettings(input=(str(folder),), output=str(tmp_path / "out"), format="jsonl.zst")
    return Link(Clean(min_tokens=5, language="any"), run)


def test_counts_and_work_are_multiplied_and_the_start_is_not(link):
    found = planner._expected(link, did(), 100.0, 4)
    assert found.seconds == pytest.approx((1.0 + 10.0 * 100) / 4)
    assert (found.read, found.kept, found.output) == (100_000, 90_000, 5 * 10**7)
    assert planner._notes(link, did(), found, 100.0) == []
    (note,) = planner._notes(link, did(cpu=1.2), found, 100.0)
    assert note.startswith("clean: the sample was too small")


def test_memory_is_what_the_stage_says_or_what_was_seen(link):
    small, large = (planner._expected(link, did(memory=memory), 100.0, 3).memory for memory in (1, 10**9))
    assert 3 * Clean.process_bytes <= small < large == 3 * 10**9


def test_the_busiest_host_bounds_a_download(tmp_path):
    (tmp_path / "urls.txt").write_text("http://a.org/1\nhttp://b.org/1\nhttp://b.org/2\n")
    stage = Download(delay=0.5)
    link = Link(
        stage, RunSettings(input=(str(tmp_path / "urls.txt"),), output=str(tmp_path / "out"), format="jsonl.zst")
    )
    found = planner._expected(link, did(cpu=0.2, start=0.0), 1000.0, 2)
    assert found.seconds == 1000.0
    assert planner._expected(link, did(cpu=4.0, start=0.0), 1000.0, 2).seconds == 2000.0
    (note,) = planner._notes(link, did(start=0.0), found, 1000.0)
    assert note.startswith("download: b.org has some 2,000 pages, 0.5 s apart; it takes 8.4")


def test_duplicates_are_said_to_be_more_than_in_the_sample(link):
    found = did(dropped={"duplicate": 20})
    dedup = Link(Dedup(), link.run)
    (note,) = planner._notes(dedup, found, planner._expected(dedup, found, 100.0, 1), 100.0)
    assert note.startswith("dedup: 2.0% of the sample repeat others. More of the whole will: two copies are both")
    assert note.endswith("once in 10,000 times")


def test_numbers_have_the_digits_of_an_estimate():
    assert [about(count) for count in (0, 7, 1234, 99_961, 123_456, 23_412_001)] == [
        "0",
        "7",
        "1,230",
        "100,000",
        "123k",
        "23.4M",
    ]


# Runs


class Runs:
    """Runs stages in this process, and says that each took what the test tells it: cpu and seconds, and memory."""

    def __init__(self, took=None):
        self.took, self.commands = took or {}, []

    def __call__(self, arguments, *, is_quiet=False):
        self.commands.append((arguments[0], is_quiet))
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = cli.main([*arguments])
        took = dict(zip(("cpu", "seconds", "memory"), self.took.get(arguments[0], (1.0, 2.0, 10**6)), strict=True))
        return (json.loads(out.getvalue().splitlines()[-1]) if not code else {}) | took, code


@pytest.fixture
def site():
    """Pages of some hundred words, of which each fifth is missing."""
    with serve_pages(lambda path: None if path.endswith(("0", "5")) else PAGE.format(path=path)) as base:
        yield base


PAGE = (
    "<html><body><h1>Page {path}</h1>"
    + "<p>The quick brown fox jumps over the lazy dog by the river.</p>" * 20
    + "</body></html>"
)
CONFIG = """
[pipeline]
description = "not a stage"
[blacklist]
[download]
allow_private_addresses = "loopback"
delay = 0.0
robots = false
max_urls = 40
[merge]
[clean]
min_tokens = 5
[train]
steps = 3
"""


@pytest.fixture
def planned(tmp_path, site, monkeypatch, webtext):
    """A plan of 60 pages from 20 of them, and the runs that it took."""
    (tmp_path / "urls.txt").write_text("".join(f"{site}/{at}\n" for at in range(60)))
    (tmp_path / "pipeline.toml").write_text(CONFIG)
    runs = Runs({"download": (8.0, 5.0, 10**8), "clean": (4.0, 4.0, 10**9)})
    monkeypatch.setattr(planner, "run_webtext", runs)
    arguments = ["plan", "--input", tmp_path / "urls.txt", "--config", tmp_path / "pipeline.toml"]
    arguments += ["--output", tmp_path / "plan", "--at-least", 20, "--workers", 4]
    return webtext(*arguments), runs, lambda *more: webtext(*arguments, *more)


def test_a_plan_from_a_list_to_its_table(planned, tmp_path, webtext):
    done, runs, again = planned
    assert done.code == 0, done.err
    assert "plan: 20 of 60 URLs (33.33%) go through blacklist, download, merge, clean" in done.err
    assert "plan: download on the sample: its pages are fetched from their servers, each once" in done.err
    assert [name for name, *_ in runs.commands] == ["blacklist", "download", "merge", "clean"]
    plan = read_plan(tmp_path / "plan")
    stages = {stage.stage: stage for stage in plan.stages}
    assert [stage.read for stage in plan.stages][:2] == [60, 42]  # 40 of 60 URLs, rounded up in the sample: 14 of 20
    assert stages["download"].seconds == 8.0 * 3 / 4
    assert stages["clean"].memory == 4 * 10**9
    assert stages["clean"].seconds == 4.0 * 3 / 4
    assert done.out.startswith("20 of 60 URLs took 13 s; all of them, on 4 cores like this machine's:\n\n  stage")
    assert done.out.endswith(f"plan: {tmp_path / 'plan' / NAME}\n")
    table = [line for line in done.out.splitlines() if line.startswith("  ") and not line.startswith("   ")]
    assert [line.split()[0] for line in table[:6]] == ["stage", "blacklist", "download", "merge", "clean", "all"]

    # Once more: nothing is left to measure.
    runs.commands.clear()
    found = again("--json")
    assert runs.commands == []
    assert found.json == json.loads((tmp_path / "plan" / NAME).read_bytes()) | {"output": str(tmp_path / "plan" / NAME)}

    # Other settings of one stage: it is measured again, and what follows it.
    (tmp_path / "pipeline.toml").write_text(CONFIG.replace("[merge]", "[merge]\nshards = 2"))
    again()
    assert [name for name, *_ in runs.commands] == ["merge", "clean"]


def test_the_report_compares_the_plan_with_what_happened(planned, tmp_path, webtext):
    stages = [("blacklist", "urls.txt"), ("download", "blacklist"), ("merge", "download"), ("clean", "merge")]
    for stage, source in stages:
        flags = ["--config", tmp_path / "pipeline.toml", "--workers", 1]
        assert webtext(stage, "--input", tmp_path / source, "--output", tmp_path / stage, *flags).code == 0
    page = tmp_path / "report.html"
    assert webtext("report", tmp_path / "clean", "--output", page, "--workers", 1).code == 0  # found in plan/
    text = page.read_text()
    assert "Plan and what happened" in text
    assert "from 20 of 60 URLs, with 4 tasks at once" in text
    kept = json.loads((tmp_path / "clean" / "stage.json").read_bytes())["out"]
    expected_ = read_plan(tmp_path / "plan").stages[-1].kept
    assert f"<b>{kept}</b> <i>{kept / expected_:.0%} of the plan</i>" in text
    (tmp_path / "plan" / NAME).rename(tmp_path / "elsewhere.json")
    assert webtext("report", tmp_path / "clean", "--output", page, "--workers", 1).code == 0
    assert "Plan and what happened" not in page.read_text()
    given = ["--plan", tmp_path / "elsewhere.json"]
    assert webtext("report", tmp_path / "clean", "--output", page, "--workers", 1, *given).code == 0
    assert "Plan and what happened" in page.read_text()
    (tmp_path / "elsewhere.json").write_text("{}")
    assert "is no plan of this version" in webtext("report", tmp_path / "clean", "--output", page, *given).sentence


def test_a_plan_is_found_beside_folders_or_in_plan_there(tmp_path):
    (tmp_path / "plan").mkdir()
    assert find_plan([tmp_path / "clean"]) is None
    for place in (tmp_path / NAME, tmp_path / "plan" / NAME):
        place.touch()
        assert find_plan([tmp_path / "clean"]) == place


def test_a_stage_also_runs_on_little_to_know_its_start(link, tmp_path, monkeypatch):
    runs = Runs()
    monkeypatch.setattr(planner, "run_webtext", runs)
    found = planner._measured(link, "key", tmp_path)
    assert runs.commands == [("clean", False), ("clean", True)]
    assert (found["in"], found["out"], found["start"]) == (400, 400, 1.0)  # as long for a twentieth as for all
    assert planner._measured(link, "key", tmp_path) == found  # kept, and nothing runs
    assert len(runs.commands) == 2
    planner._measured(link, "another key", tmp_path)
    assert len(runs.commands) == 4


def test_a_stage_that_fails_ends_the_plan_with_its_exit_code(link, tmp_path, monkeypatch):
    monkeypatch.setattr(planner, "run_webtext", lambda arguments, **_: ({}, 2))
    with pytest.raises(WebtextError, match="`webtext clean` ended with exit code 2 on the sample: fix") as caught:
        planner._measured(link, "key", tmp_path)
    assert caught.value.exit_code == 2


def test_a_process_is_measured_with_those_that_it_starts(tmp_path, monkeypatch):
    (tmp_path / "urls.txt").write_text("http://a.org/\n")
    arguments = ["blacklist", "--input", str(tmp_path / "urls.txt"), "--output", str(tmp_path / "out"), "--json"]
    did, code = run_webtext(arguments, is_quiet=True)
    assert (code, did["out"]) == (0, 1)
    assert 0 < did["cpu"] < 600
    assert did["memory"] > 5 << 20

    def interrupted(pid, options):
        raise KeyboardInterrupt

    monkeypatch.setattr(planner.os, "wait4", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_webtext(arguments, is_quiet=True)


# Messages


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--input", "urls.txt"], "webtext plan needs --output DIR"),
        (["--output", "plan"], "webtext plan needs --input PATH"),
        (["--output", "plan", "--input", "not_there.txt"], "no file or folder not_there.txt"),
        (["--output", "plan", "--at-least", "9", "--at-most", "8"], "--at-least 9 is more than --at-most 8"),
        (["--output", "plan", "--config", "not_there.toml"], "no settings file not_there.toml"),
    ],
)
def test_errors_are_sentences(webtext, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    done = webtext("plan", *arguments)
    assert sentence in done.sentence
    assert done.code == 2
