"""`webtext plan`: what a pipeline takes and leaves at most, by the table of what each stage takes."""

import tomllib
from pathlib import Path

import pytest

from webtext_audit.commands.plan import NAME, find_plan, make_plan, read_plan, stages_of
from webtext_prep import cli
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.shards import write_documents
from webtext_prep.errors import InputError
from webtext_prep.running.estimates import about
from webtext_prep.stages.download import Download
from webtext_prep.stages.merge import Merge

KNOWN = cli.find_stages()
PIPELINES = sorted((Path(__file__).parents[2] / "pipelines").glob("*.toml"))


@pytest.fixture
def urls(tmp_path):
    """1,000 lines, of which each second one is of one host."""
    lines = [f"http://host{at if at % 2 else 0}.org/{at}" for at in range(1000)]
    (tmp_path / "urls.txt").write_text("\n".join(lines))
    return tmp_path / "urls.txt"


@pytest.mark.parametrize("path", PIPELINES, ids=lambda path: path.stem)
def test_each_stage_of_a_pipeline_reads_what_one_before_it_leaves(path, urls):
    stages = [stage for stage, _ in stages_of(tomllib.loads(path.read_text()), KNOWN, str(path))]
    suffixes = (urls.with_suffix(suffix) for suffix in (".jsonl", ".warc"))
    file = urls.rename(next(name for name in suffixes if stages[0].reads.accepts(name)))
    if file.suffix == ".warc":
        file.write_text("WARC/1.1\r\nWARC-Type: response\r\n\r\n<p>A page.</p>\r\n\r\n" * 1000)
    found = make_plan(stages, [str(file)], str(path), 4).stages
    assert [one.stage for one in found] == [stage.name for stage in stages]
    assert found[0].read == 1000
    left = found[0].read
    for stage, one in zip(stages, found, strict=True):
        assert one.read == left
        assert one.seconds > 0 and one.memory >= 4 * 100 << 20
        assert (one.tokens > 0) == (stage.writes.made == "tokens")
        left = one.kept if stage.writes.made in ("documents", "tokens") else left


def test_settings_change_what_a_stage_takes(urls):
    def planned(stage, workers=2):
        return make_plan([stage], [str(urls)], "", workers).stages[0]

    fast, usual = planned(Download(extractor="resiliparse", delay=0.0)), planned(Download(delay=0.0))
    assert fast.seconds < usual.seconds / 3
    assert planned(Download(save_pages=True)).output > 10 * usual.output
    assert planned(Download(max_urls=100, delay=0.0)).seconds == pytest.approx(usual.seconds / 10, rel=0.1)
    assert planned(Download(delay=0.0), workers=4).seconds == usual.seconds / 2


def test_the_busiest_host_bounds_a_download(urls):
    plan = make_plan([Download(delay=3.0)], [str(urls)], "", 2)
    assert plan.stages[0].seconds == 1500
    assert any(note.startswith("download: host0.org has some 500 pages, 3 s apart") for note in plan.notes)


def test_texts_between_the_phases_of_merge_are_larger_than_its_output(tmp_path):
    with write_documents(tmp_path / "in" / "part-00000.jsonl.zst") as writer:
        for at in range(3000):
            words = " ".join(f"word{at * place % 1237}" for place in range(400))
            writer.write(Document(f"http://a.org/{at}", words))
    (found,) = make_plan([Merge()], [str(tmp_path / "in")], "", 2).stages
    assert found.scratch > found.output == (tmp_path / "in" / "part-00000.jsonl.zst").stat().st_size


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
        stages_of(tables, KNOWN, "my.toml")


def test_numbers_have_the_digits_of_an_estimate():
    counts = (0, 7, 1234, 99_961, 123_456, 23_412_001)
    assert [about(count) for count in counts] == ["0", "7", "1,230", "100,000", "123k", "23.4M"]


def test_a_plan_is_a_table_a_file_and_a_part_of_the_report(urls, tmp_path, webtext):
    done = webtext("plan", "--input", urls, "--output", tmp_path / "plan", "--workers", 4)
    assert done.code == 0, done.err
    table = [line for line in done.out.splitlines() if line.startswith("  ") and not line.startswith("   ")]
    names = ["stage", "blacklist", "download", "merge", "clean", "dedup", "tokenize", "all"]
    assert [line.split()[0] for line in table[: len(names)]] == names
    assert done.out.endswith(f"plan: {tmp_path / 'plan' / NAME}\n")
    plan = read_plan(tmp_path / "plan")
    assert (plan.workers, plan.stages[0].read, plan.stages[1].kept) == (4, 1000, 600)

    assert webtext("blacklist", "--input", urls, "--output", tmp_path / "blacklist").code == 0
    page, given = tmp_path / "report.html", ["--plan", tmp_path / "elsewhere.json"]
    report = ["report", tmp_path / "blacklist", "--output", page, "--workers", 1]
    assert webtext(*report).code == 0  # found in plan/
    assert "with 4 tasks at once" in page.read_text()
    assert "<b>1000</b> <i>100% of the plan</i>" in page.read_text().replace("1,000", "1000")
    (tmp_path / "plan" / NAME).rename(tmp_path / "elsewhere.json")
    assert webtext(*report).code == 0
    assert "Plan and what happened" not in page.read_text()
    assert webtext(*report, *given).code == 0
    assert "Plan and what happened" in page.read_text()
    (tmp_path / "elsewhere.json").write_text("{}")
    assert "is no plan of this version" in webtext(*report, *given).sentence


def test_a_plan_is_found_beside_folders_or_in_plan_there(tmp_path):
    (tmp_path / "plan").mkdir()
    assert find_plan([tmp_path / "clean"]) is None
    for place in (tmp_path / NAME, tmp_path / "plan" / NAME):
        place.touch()
        assert find_plan([tmp_path / "clean"]) == place


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--input", "urls.txt"], "webtext plan needs --output DIR"),
        (["--output", "plan"], "webtext plan needs --input PATH"),
        (["--output", "plan", "--input", "not_there.txt"], "no file or folder not_there.txt"),
        (["--output", "plan", "--config", "not_there.toml"], "no settings file not_there.toml"),
    ],
)
def test_errors_are_sentences(webtext, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    done = webtext("plan", *arguments)
    assert sentence in done.sentence
    assert done.code == 2
