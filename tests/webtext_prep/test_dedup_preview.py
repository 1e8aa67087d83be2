"""`webtext dedup --dry-run` and `--sample`: what it says is what a run with that similarity does."""

import random

import pytest
from dedup_runs import WORDS, run, scratch_used, urls, write
from jobs import job_of

from command_kit.machine import Disk, Machine
from webtext_prep.cli import main
from webtext_prep.dedup.reports import THRESHOLDS, sample_hash, wilson
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.shards import shards_in
from webtext_prep.errors import InputError
from webtext_prep.stages.dedup import Dedup


def documents_of_all_similarities() -> list[Document]:
    """Families of pages, each with copies that change more and more words."""
    found = []
    for family in range(10):
        source = random.Random(family)
        words = source.choices(WORDS, k=300 + family)
        for copy in range(7):
            changed = list(words)
            for at in source.sample(range(300), copy * (1 + family % 3)):
                changed[at] = f"changed{copy}"
            found.append(Document(f"http://{family}.org/{copy}", " ".join(changed)))
    return found


def test_a_dry_run_says_what_runs_do(tmp_path, capsys):
    documents = documents_of_all_similarities()
    source = write(tmp_path / "in", documents, 2)
    found = run(capsys, source, tmp_path / "out", "--dry-run")
    assert (found["documents"], found["sampled"]) == (70, 70)
    assert [row["similarity"] for row in found["similarities"]] == list(THRESHOLDS)
    lengths = {document.url: len(document.text) for document in documents}
    for row in found["similarities"][::3]:
        output = tmp_path / f"run-{row['similarity']}"
        summary = run(capsys, source, output, "--similarity", row["similarity"])
        gone = set(lengths) - urls(output)
        assert row["dropped"] == len(gone) == summary["dropped"]["duplicate"]
        assert row["share"] == round(len(gone) / 70, 6)
        assert row["characters"] == sum(lengths[url] for url in gone)
        assert row["characters_share"] == round(row["characters"] / sum(lengths.values()), 6)
    assert len({row["dropped"] for row in found["similarities"]}) > 4


def test_examples_are_hardly_more_alike_than_the_similarity(tmp_path, capsys):
    source = write(tmp_path / "in", documents_of_all_similarities())
    found = run(capsys, source, tmp_path / "out", "--dry-run")
    examples = [(row["similarity"], example) for row in found["similarities"] for example in row["examples"]]
    assert len(examples) > 10
    for similarity, example in examples:
        assert similarity <= example["similarity"] < similarity + 0.05
        assert example["url"].split("/")[2] == example["duplicate_of"].split("/")[2]
        assert example["match"]


def test_a_dry_run_writes_nothing_and_leaves_the_output_free(tmp_path, capsys):
    source = write(tmp_path / "in", documents_of_all_similarities())
    output = tmp_path / "out"
    run(capsys, source, output, "--dry-run")
    assert [path.name for path in output.iterdir()] == [".state"]
    assert [path.name for path in (output / ".state").iterdir()] == ["lock"]
    run(capsys, source, output, "--similarity", 0.6)
    made = {path: path.read_bytes() for path in output.glob("*") if path.is_file()}
    # Nor does one of a finished run, whatever its settings.
    run(capsys, source, output, "--dry-run", "--similarity", 0.6)
    assert {path: path.read_bytes() for path in output.glob("*") if path.is_file()} == made
    assert run(capsys, source, output, "--similarity", 0.6)["resumed"]


def test_a_sample_is_decided_as_in_the_whole_corpus(tmp_path, capsys):
    documents = documents_of_all_similarities()
    source = write(tmp_path / "in", documents, 3)
    chosen = {url.decode() for url in sorted((d.url.encode() for d in documents), key=sample_hash)[:25]}
    found = run(capsys, source, tmp_path / "out", "--sample", 25)
    assert (found["documents"], found["sampled"]) == (70, 25)
    for row in found["similarities"][1::4]:
        output = tmp_path / f"run-{row['similarity']}"
        run(capsys, source, output, "--similarity", row["similarity"])
        gone = chosen - urls(output)
        assert row["dropped"] == len(gone)
        assert row["interval"][0] <= row["share"] == len(gone) / 25 < row["interval"][1]
        assert row["characters_share"] == round(
            sum(len(d.text) for d in documents if d.url in gone)
            / sum(len(d.text) for d in documents if d.url in chosen),
            6,
        )


@pytest.mark.parametrize("size", [70, 1000])
def test_a_sample_of_everything_is_no_sample(tmp_path, capsys, size):
    source = write(tmp_path / "in", documents_of_all_similarities(), 2)
    whole = run(capsys, source, tmp_path / "out", "--dry-run")
    assert run(capsys, source, tmp_path / "out", "--sample", size) == whole


def test_a_dry_run_counts_new_documents_only(tmp_path, capsys):
    documents = documents_of_all_similarities()
    run(capsys, write(tmp_path / "old-in", documents[::2]), tmp_path / "old", "--similarity", 1)
    source = write(tmp_path / "new", documents[1::2])
    arguments = ("--against", tmp_path / "old", "--against-loses", "shorter")
    found = run(capsys, source, tmp_path / "dry", "--dry-run", *arguments)
    assert found["documents"] == 35
    row = found["similarities"][THRESHOLDS.index(0.8)]
    assert row["dropped"] == run(capsys, source, tmp_path / "out", *arguments)["dropped"]["duplicate"] > 0


def test_the_table_can_be_read(tmp_path, capsys):
    source = write(tmp_path / "in", documents_of_all_similarities())
    arguments = ["dedup", "--input", str(source), "--output", str(tmp_path / "out"), "--workers", "1"]
    assert main([*arguments, "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "dedup, dry run: all 70 documents; nothing was written."
    assert lines[2].split() == ["similarity", "dropped", "share", "characters", "share"]
    assert [line.split()[0] for line in lines[3:13]] == [f"{threshold:.2f}" for threshold in THRESHOLDS]
    assert any("http://" in line for line in lines[13:])
    assert main([*arguments, "--sample", "30"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "dedup, dry run: a sample of 30 of 70 documents; nothing was written."
    assert "95% interval" in lines[2]


def test_intervals_are_those_of_wilson():
    """Values of R's binom.confint(10, 100, methods="wilson"), with 1.96 for 1.959964."""
    assert wilson(10, 100) == pytest.approx((0.05522914, 0.17436566), abs=1e-4)
    assert wilson(0, 50)[0] == 0
    assert wilson(50, 50)[1] == pytest.approx(1)
    assert wilson(0, 0) == (0, 1)


def test_an_interrupted_preview_resumes(tmp_path, capsys, monkeypatch):
    source = write(tmp_path / "in", documents_of_all_similarities(), 2)
    expected = run(capsys, source, tmp_path / "whole", "--sample", 40)
    arguments = ["dedup", "--input", str(source), "--output", str(tmp_path / "out"), "--workers", "1", "--sample", "40"]
    with monkeypatch.context() as patched:
        patched.setattr(Dedup, "examine_part", lambda self, task, context: [][0])
        assert main(arguments) == 1
    with monkeypatch.context() as patched:  # nothing before it is done again
        for phase in ("fingerprint_shard", "sort_bands", "find_components", "collect_candidates"):
            patched.setattr(Dedup, phase, lambda self, task, context: [][0])
        assert run(capsys, source, tmp_path / "out", "--sample", 40) == expected
    assert [path.name for path in (tmp_path / "out" / ".state").iterdir()] == ["lock"]


def test_a_preview_that_will_not_fit_stops_before_it_writes(tmp_path):
    class Full(Machine):
        def disk_of(self, place):
            return Disk("disk", 10_000)

    source = write(tmp_path / "in", documents_of_all_similarities())
    job = job_of(Dedup(dry_run=True), shards_in(source), tmp_path / "out", machine=Full())
    with pytest.raises(InputError, match=r"dedup needs about [\d.]+ kB of disk for .*, and 10 kB are free there"):
        job.preview()
    assert not list((tmp_path / "out" / ".state").rglob("*.*"))
    job = job_of(Dedup(dry_run=True), shards_in(source), tmp_path / "out", machine=Full(), space_check=False)
    assert job.preview().values["documents"] == 70


@pytest.mark.parametrize("options", [{"dry_run": True}, {"sample": 20}], ids=["whole", "sample"])
def test_a_preview_needs_no_more_disk_than_it_says(tmp_path, monkeypatch, options):
    """It needs more of it than a run for files between dedup, and none for an output."""
    source = write(tmp_path / "in", documents_of_all_similarities(), 2)
    job = job_of(Dedup(**options), shards_in(source), tmp_path / "out")
    needed = job.estimate(job.sample()).needs
    run_needs = job_of(Dedup(), shards_in(source), tmp_path / "out").estimate(job.sample()).needs
    assert (needed.output, needed.documents) == (0, run_needs.documents)
    assert needed.scratch > run_needs.scratch
    used = scratch_used(monkeypatch)
    job.preview()
    assert 0.2 * needed.scratch < max(used) <= needed.scratch
