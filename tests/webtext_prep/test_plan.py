"""`webtext plan`: what a sample is, what follows from what the stages took for it, and that it resumes."""

import contextlib
import dataclasses
import io
import itertools
import json
import os
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from pages_on_loopback import serve_pages

from command_kit.machine import Disk, Machine
from webtext_audit.plan import planner, profiling, sample
from webtext_audit.plan.plan_file import NAME, Expected, Plan, about, find_plan, read_plan, shown
from webtext_audit.plan.planner import busiest_host, expected, notes_on
from webtext_audit.plan.profiling import Finished, Measured, Measurements, Usage, run_webtext
from webtext_prep import cli
from webtext_prep.documents.folders.sampling import Sample as Contents
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
    return sample.take([str(path)], stage or Blacklist(), folder, share=share, at_least=at_least, at_most=at_most)


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
    assert found.hosts["host0.org"][0] == sum("host0.org" in line.lower() for line in given)
    assert found.hosts["host0.org"][1] == sum("host0.org" in line.lower() for line in lines)


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


def test_a_sample_is_taken_once_unless_the_input_changes(urls, tmp_path, monkeypatch):
    found = take(urls, tmp_path / "a")
    with monkeypatch.context() as patch:
        patch.setattr(sample, "read_urls", None)
        assert take(urls, tmp_path / "a") == found
    urls.write_text(urls.read_text() + "\nhttp://more.org/")
    assert take(urls, tmp_path / "a").total == 4001


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


def test_busy_hosts_are_found_in_bounded_memory():
    hosts = sample.BusyHosts(most=20)
    for at in range(3000):
        hosts.add(f"http://rare{at}.org/")
        if at % 3 == 0:
            hosts.add("http://busy.org/")
    assert len(hosts._counts) <= 20
    ((name, count),) = hosts.most_common(1)
    assert name == "busy.org"
    assert 1000 - 4000 / 20 <= count <= 1000


# The stages


@pytest.mark.parametrize("path", PIPELINES, ids=lambda path: path.stem)
def test_the_stages_of_a_pipeline_follow_each_other(path, tmp_path):
    tables = tomllib.loads(path.read_text())
    stages = planner.stages_of(tables, KNOWN, str(path))
    assert [stage.name for stage, *_ in stages] == [name for name in tables if name in KNOWN]
    links = planner.linked(stages, ("sample",), tmp_path)
    assert links[0].run.input == ("sample",)
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
            "keep_dropped": True,
            "format": "parquet",
        }
    }
    ((stage, run),) = planner.stages_of(tables, KNOWN, "my.toml")
    assert (stage.min_tokens, run.keep_dropped, run.format) == (5, True, "parquet")
    (link,) = planner.linked([(stage, run)], ["in"], Path("out"))
    assert profiling.arguments_of(link, Path("s.toml")) == [
        *["clean", "--config", "s.toml", "--input", "in", "--workers", "1", "--json", "--output", "out/1-clean"],
        *["--keep-dropped", "--format", "parquet"],
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


def measured(read=1000, kept=900, cpu=11.0, wall=30.0, memory=10**8, small=None, **more):
    return Measured(read, kept, more.pop("dropped", {}), more, Usage(cpu, wall, memory), 5 * 10**5, small)


def link_of(stage):
    return Link(stage, RunSettings(input=("in",), output="out", format="jsonl.zst"))


def of(rows, total, **hosts):
    return sample.Sample(
        "", ("in",), "URLs", rows, total, total / rows, {f"{name}.org": counts for name, counts in hosts.items()}
    )


CONTENTS = Contents(1, 10**6, 10**6, 3 * 10**6, 10**6, 10**6, 1000)


def test_the_start_of_a_stage_is_not_multiplied():
    small = (Usage(1.5, 3.0, 0), 50)
    found = expected(link_of(Clean()), measured(small=small), CONTENTS, of(1000, 100_000), 4)
    start = 1.0  # 11 s for 1,000 rows, 1.5 s for 50: 10 ms a row, and 1 s
    assert measured(small=small).start == pytest.approx(start)
    assert found.cpu == pytest.approx(start + 10 * 100)
    assert found.seconds == found.seconds_high == pytest.approx(found.cpu / 4)
    assert (found.read, found.kept, found.output) == (100_000, 90_000, 5 * 10**7)
    assert measured().start == 0.0
    assert measured(small=(Usage(12.0), 50)).start == 12.0  # noise: more for less
    assert [measured(cpu=cpu, small=small).is_mostly_start for cpu in (1.6, 11.0)] == [True, False]


def test_memory_is_what_the_stage_says_or_what_was_seen():
    small, large = (
        expected(link_of(Clean()), measured(memory=memory), CONTENTS, of(1000, 100_000), 3).memory
        for memory in (1, 10**9)
    )
    assert small == Clean().needs(CONTENTS, 3).memory
    assert large == 3 * 10**9


def test_a_sample_leaves_open_how_many_are_left():
    found = expected(link_of(Clean()), measured(), CONTENTS, of(1000, 100_000), 1)
    # The standard deviation of 900 of 1,000 is 9.49, a hundredth less for having seen a hundredth.
    assert (found.kept_low, found.kept_high) == (90_000 - 1850, 90_000 + 1850)
    assert expected(link_of(Clean()), measured(), CONTENTS, of(1000, 1000), 1).kept_low == 900  # all were seen
    files = dataclasses.replace(of(1000, 100_000), unit="files")
    assert expected(link_of(Clean()), measured(), CONTENTS, files, 1).kept_low == 90_000  # nobody knows


def test_duplicates_may_be_many_more_than_in_the_sample():
    def left(duplicates, total, rows=1000):
        dropped = {"duplicate": duplicates}
        found = measured(rows, rows - duplicates, dropped=dropped)
        list_ = dataclasses.replace(of(rows, total), unit="files")  # without the margin of any sample
        one = expected(link_of(Dedup()), found, CONTENTS, list_, 1)
        return one.kept_low, one.kept

    # Five of 1,000 in a tenth: 50 of 10,000 in proportion, and 500 if each was one of a pair.
    assert left(5, 10_000) == (10_000 - 500, 10_000 - 50)
    assert left(2, 10_000) == (10_000 - 300, 10_000 - 20)  # of two, three would not surprise
    assert left(0, 10_000) == (10_000 - 300, 10_000)
    assert left(100, 100_000) == (900, 90_000)  # what is left of the sample is left
    assert left(100, 1000) == (900, 900)  # all of it was run


def test_what_comes_behind_duplicates_is_as_uncertain():
    before = Expected("dedup", "documents", 1000, 900, 450, 900, 1, 1, 1, 0, 0, 0, more_duplicates=450)
    list_ = dataclasses.replace(of(100, 1000), unit="files")
    found = expected(link_of(Clean()), measured(90, 80), CONTENTS, list_, 1, before=before)
    assert (found.kept_low, found.kept, found.kept_high) == (400, 800, 800)
    assert found.more_duplicates == 400


def test_the_busiest_host_bounds_a_download():
    stage = Download(delay=0.5)
    list_ = of(1000, 100_000, busy=(40_000, 400), blocked=(50_000, 500), unseen=(30, 0))
    seconds, host, pages = busiest_host(stage, list_, {"busy.org": 300, "rare.org": 3}, 0.4)
    assert (seconds, host, pages) == (15_000.0, "busy.org", 30_000)
    assert busiest_host(stage, of(1000, 100_000, unseen=(30, 0)), {}, 0.4) == (6.0, "unseen.org", 12)
    found = expected(link_of(stage), measured(cpu=100.0, wall=200.0), CONTENTS, list_, 2, busiest=seconds)
    assert (found.bound, found.seconds, found.seconds_high) == ("host", 15_000.0, 20_000.0)
    found = expected(link_of(stage), measured(cpu=400.0, wall=200.0), CONTENTS, list_, 2, busiest=seconds)
    assert (found.bound, found.seconds, found.seconds_high) == ("processor", 20_000.0, 20_000.0)


def test_notes_say_what_the_numbers_rest_on():
    links = [link_of(Download()), link_of(Dedup()), link_of(Clean())]
    seen = [measured(), measured(dropped={"duplicate": 20}), measured(cpu=1.6, small=(Usage(1.5), 50))]
    list_ = of(1000, 100_000)
    stages = [expected(link, one, CONTENTS, list_, 1, busiest=9_000.0) for link, one in zip(links, seen, strict=True)]
    download, dedup, clean = notes_on(links, seen, stages, list_, "busy.org", 90_000)
    assert download.startswith("download: busy.org has some 90,000 pages, 0.1 s apart, at most")
    assert "2.0% of the sample repeat others" in dedup
    assert "once in 10,000 times" in dedup
    assert clean.startswith("clean: the sample was too small")


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
    """Runs stages in this process, and says that each took what the test tells it."""

    def __init__(self, usage=None):
        self.usage, self.commands = usage or {}, []

    def __call__(self, arguments, is_quiet):
        self.commands.append((arguments[0], "--restart" in arguments, is_quiet))
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = cli.main([*arguments])
        usage = self.usage.get(arguments[0], Usage(1.0, 2.0, 10**6))
        return Finished(usage, code, json.loads(out.getvalue().splitlines()[-1]) if not code else {})


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
    runs = Runs({"download": Usage(8.0, 5.0, 10**8), "clean": Usage(4.0, 4.0, 10**9)})
    monkeypatch.setattr(planner, "run_webtext", runs)
    arguments = ["plan", "--input", tmp_path / "urls.txt", "--config", tmp_path / "pipeline.toml"]
    arguments += ["--output", tmp_path / "plan", "--at-least", 20, "--workers", 4]
    return webtext(*arguments), runs, lambda *more: webtext(*arguments, *more)


def test_a_plan_from_a_list_to_its_table(planned, tmp_path, webtext):
    done, runs, again = planned
    assert done.code == 0, done.err
    assert "plan: 20 of 60 URLs (33.33%) go through blacklist, download, merge, clean" in done.err
    assert "plan: download fetches the pages of the sample from their servers, each once; robots.txt is not" in done.err
    assert [name for name, *_ in runs.commands] == ["blacklist", "download", "merge", "clean"]
    plan = read_plan(tmp_path / "plan")
    stages = {stage.stage: stage for stage in plan.stages}
    assert [stage.read for stage in plan.stages][:2] == [60, 42]  # 40 of 60 URLs, rounded up in the sample: 14 of 20
    assert (stages["download"].seconds, stages["download"].seconds_high) == (8.0 * 3 / 4, 5.0 * 3)
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


@pytest.fixture
def link(write_shards, tmp_path):
    """`clean` over 400 documents."""
    folder = write_shards([[f"Text number {row} of some length. " * 5 for row in range(400)]])
    run = RunSettings(input=(str(folder),), output=str(tmp_path / "out"), format="jsonl.zst")
    return Link(Clean(min_tokens=5, language="any"), run)


def test_a_stage_also_runs_on_little_to_know_its_start(link, tmp_path):
    runs = Runs()
    found, _ = Measurements(tmp_path, "key", runs).measure(link, "")
    assert [(name, is_quiet) for name, _, is_quiet in runs.commands] == [("clean", False), ("clean", True)]
    assert (found.read, found.kept) == (400, 400)
    usage, rows = found.small
    assert (usage, rows) == (Usage(1.0, 2.0, 10**6), pytest.approx(20, abs=15))
    assert Measurements(tmp_path, "key", None).measure(link, "")[0] == found  # kept, and nothing runs
    Measurements(tmp_path, "another sample", runs).measure(link, "")
    assert len(runs.commands) == 4


def test_what_an_interrupted_stage_took_counts_and_a_killed_one_begins_again(link, tmp_path):
    def stopped(arguments, is_quiet):
        return Finished(Usage(5.0, 6.0, 7), 130, {}, is_stopped=True)

    with pytest.raises(KeyboardInterrupt):
        Measurements(tmp_path, "key", stopped).measure(link, "")
    runs = Runs()
    found, _ = Measurements(tmp_path, "key", runs).measure(link, "")
    assert found.usage == Usage(6.0, 8.0, 10**6)
    assert runs.commands[0] == ("clean", False, False)

    def killed(arguments, is_quiet):
        raise SystemExit

    with pytest.raises(SystemExit):
        Measurements(tmp_path, "key 2", killed).measure(link, "")
    found, _ = Measurements(tmp_path, "key 2", runs).measure(link, "")
    assert found.usage == Usage(1.0, 2.0, 10**6)
    assert ("clean", True, False) in runs.commands


def test_a_stage_that_fails_ends_the_plan_with_its_exit_code(link, tmp_path):
    with pytest.raises(WebtextError, match="`webtext clean` ended with exit code 2 on the sample: fix") as caught:
        Measurements(tmp_path, "key", lambda arguments, is_quiet: Finished(Usage(), 2)).measure(link, "")
    assert caught.value.exit_code == 2


def test_a_process_is_measured_with_those_that_it_starts(tmp_path, monkeypatch):
    (tmp_path / "urls.txt").write_text("http://a.org/\n")
    arguments = ["blacklist", "--input", str(tmp_path / "urls.txt"), "--output", str(tmp_path / "out"), "--json"]
    done = run_webtext(arguments, True)
    assert (done.code, done.summary["out"], done.is_stopped) == (0, 1, False)
    assert 0 < done.usage.cpu < 600
    assert done.usage.memory > 5 << 20

    interrupts = iter([KeyboardInterrupt])

    def wait(pid, options, real=os.wait4):
        for interrupt in interrupts:
            raise interrupt
        return real(pid, options)

    monkeypatch.setattr(profiling.os, "wait4", wait)
    done = run_webtext(arguments, True)
    assert done.is_stopped
    assert done.code != 0


# Files and messages


class Small(Machine):
    """A machine with so much disk and memory."""

    def __init__(self, free, memory):
        super().__init__()
        self.free, self.memory = free, memory

    def disk_of(self, place):
        return Disk("first", self.free)

    def available_memory(self):
        return self.memory


@pytest.mark.parametrize(
    ("free", "memory", "notes"),
    [
        (12 * 10**9, 6 * 10**9, []),
        (10**10, 6 * 10**9, ["disk: 11 GB are needed, and 10 GB are free here"]),
        (
            12 * 10**9,
            4 * 10**9,
            ["memory: clean needs 5 GB with 2 tasks at once, and 4 GB are available here: give it"],
        ),
    ],
)
def test_a_plan_says_what_does_not_fit(tmp_path, free, memory, notes):
    stage = Expected("clean", "documents", 10, 9, 8, 10, 1.0, 1.0, 1.0, 5 * 10**9, 10**10, 10**9)
    plan = Plan(("in",), "", 2, "2 cores", "URLs", 1, 10, 10.0, 5.0, (stage,), ("one note " * 30,))
    machine = Small(free, memory)
    found = planner.too_much(plan, tmp_path, machine)
    assert len(found) == len(notes)
    assert all(map(str.startswith, found, notes))
    assert read_plan(plan.write(tmp_path)) == plan
    assert max(map(len, shown(plan).splitlines())) <= 110


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
