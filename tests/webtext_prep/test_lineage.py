"""The steps behind an output: found by path, recognised by digest, known by summary where they are gone."""

import json
import shutil

import pytest

from webtext_audit.lineage import stage_of
from webtext_audit.receipts import drops_of
from webtext_prep.cli import find_stages, main
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.shards import write_documents
from webtext_prep.documents.folders.stage_record import all_steps, trace, trace_all
from webtext_prep.errors import InputError

LONG = "The quick brown fox jumps over the lazy dog and runs along the river until the evening comes. " * 12


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Two merged folders, cleaned apart, deduplicated together, and as token files."""
    home = tmp_path_factory.mktemp("home")
    texts = {"source": [[LONG, LONG + " More.", "short"], ["Ein kurzer Text."]]}
    texts["other"] = [[f"{LONG} {number}" for number in range(2)] + ["tiny"]]
    for name, shards in texts.items():
        for number, shard in enumerate(shards):
            with write_documents(home / name / f"part-{number:05}.jsonl.zst") as writer:
                for row, text in enumerate(shard):
                    writer.write(Document(f"http://{number}.org/{row}", text))
    work = home / "work"
    for stage, given, output, *flags in (
        ("merge", [home / "source"], "one"),
        ("merge", [home / "other"], "two"),
        ("clean", [work / "one"], "one-clean"),
        ("clean", [work / "two"], "two-clean"),
        ("dedup", [work / "one-clean", work / "two-clean"], "unique"),
        ("tokenize", [work / "unique"], "tokens/corpus"),
        ("merge-tokens", [work / "tokens" / "corpus"], "all"),
    ):
        words = [stage, "--input", *given, "--output", work / output, "--workers", 1, *flags]
        assert main(list(map(str, words))) == 0
    return home


@pytest.fixture
def run(finished, tmp_path):
    """That run in a folder of its own, as if it had been made there."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    for path in tmp_path.rglob("run.json"):
        path.write_text(path.read_text().replace(str(finished), str(tmp_path)))
    return tmp_path / "work"


def test_every_step_is_found_once_with_its_record_and_how_it_ran(run):
    end = trace(str(run / "all"))
    steps = all_steps(end)
    assert [step.stage for step in steps] == [
        "merge", "clean", "merge", "clean", "dedup", "tokenize", "merge-tokens",
    ]  # fmt: skip
    assert [step.place for step in steps[:5]] == [
        run / "one", run / "one-clean", run / "two", run / "two-clean", run / "unique",
    ]  # fmt: skip
    assert end.is_tokens
    assert end.inputs[0].place == run / "tokens" / "corpus_text_document"
    for step in steps:
        assert step.record["in"] == step.record["out"] + sum(step.record["dropped"].values())
        assert step.run["seconds"] >= 0
        assert step.run["version"]


@pytest.mark.parametrize("name", ["corpus", "corpus_text_document", "corpus_text_document.bin"])
def test_token_files_are_found_by_prefix_or_name(run, name):
    assert trace(run / "tokens" / name).place == run / "tokens" / "corpus_text_document"


def test_plain_input_files_are_named(run, tmp_path):
    (first, *_) = all_steps(trace(run / "unique"))
    assert first.files == tuple(tmp_path / "source" / f"part-0000{number}.jsonl.zst" for number in range(2))
    assert first.plain_files == 2
    assert first.input_files() == list(first.files)


def test_the_files_that_a_step_read_come_in_their_order(run):
    unique = trace(run / "unique")
    assert unique.input_files() == [run / "one-clean/part-00000.jsonl.zst", run / "two-clean/part-00000.jsonl.zst"]


def test_an_ancestor_of_several_steps_is_one_step(run, webtext):
    for name in ("a", "b"):
        webtext("clean", "--input", run / "one", "--output", run / name, "--min-tokens", 0 if name == "a" else 1)
    webtext("dedup", "--input", run / "a", run / "b", "--output", run / "both")
    steps = all_steps(trace(run / "both"))
    assert [step.place.name for step in steps] == ["one", "a", "b", "both"]
    assert steps[1].inputs[0] is steps[2].inputs[0]


def test_what_several_outputs_have_in_common_is_one_step(run):
    unique, cleaned = trace_all([run / "unique", run / "one-clean"])
    assert unique.inputs[0] is cleaned
    assert len(all_steps(unique, cleaned)) == 5


def test_a_run_that_was_moved_is_found_beside_its_output(run, tmp_path):
    moved = tmp_path / "elsewhere" / "deep" / "work"
    moved.parent.mkdir(parents=True)
    run.rename(moved)
    steps = all_steps(trace(moved / "all"))
    assert [step.place and step.place.name for step in steps] == [
        "one", "one-clean", "two", "two-clean", "unique", "corpus_text_document", "all_text_document",
    ]  # fmt: skip


def test_a_copy_without_state_is_found_beside_its_output(run):
    shutil.rmtree(run / "unique" / ".state")
    assert [step.place for step in trace(run / "unique").inputs] == [run / "one-clean", run / "two-clean"]


def test_what_is_gone_is_known_by_its_summary(run):
    shutil.rmtree(run / "one-clean")
    gone, there = trace(run / "unique").inputs
    assert (gone.place, gone.was, gone.run) == (None, str(run / "one-clean"), {})
    assert gone.stage == "clean"
    assert gone.record["dropped"] == {"too_short": 2}
    assert gone.inputs[0].stage == "merge"
    assert there.place == run / "two-clean"
    with pytest.raises(InputError, match=r"one-clean.* is gone, or was made again since"):
        trace(run / "unique").input_files()


def test_a_folder_that_was_made_again_since_is_not_taken_for_the_old_one(run, webtext):
    webtext("clean", "--input", run / "one", "--output", run / "one-clean", "--restart", "--min-tokens", 0)
    assert trace(run / "unique").inputs[0].place is None
    assert trace(run / "unique").inputs[0].record["settings"]["min_tokens"] == 128


def test_two_folders_with_equal_records_are_two_steps(webtext, write_shards, tmp_path):
    for name in ("x", "y"):
        shards = write_shards([[Document(f"http://{name}.org/", LONG + name)]], f"source-{name}")
        webtext("merge", "--input", shards, "--output", tmp_path / name)
    assert (tmp_path / "x/stage.json").read_bytes() == (tmp_path / "y/stage.json").read_bytes()
    webtext("dedup", "--input", tmp_path / "x", tmp_path / "y", "--output", tmp_path / "both", "--similarity", 1)
    assert [step.place for step in trace(tmp_path / "both").inputs] == [tmp_path / "x", tmp_path / "y"]


def test_a_folder_without_a_record_is_an_error(tmp_path):
    with pytest.raises(InputError, match="holds no record of a stage"):
        trace(tmp_path)


def test_receipts_lie_beside(run):
    unique = trace(run / "unique")
    assert {receipt.metadata["duplicate_of"] for receipt in drops_of(unique)} == {"http://0.org/1"}
    assert [receipt.metadata["reason"] for receipt in drops_of(unique.inputs[0])] == ["too_short"] * 2


def test_a_stage_is_made_again_as_its_record_says(run):
    stage = stage_of(trace(run / "one-clean"), find_stages())
    assert (stage.name, stage.min_tokens, stage.language) == ("clean", 128, "en")


def test_a_stage_of_another_version_is_not_made_again(run):
    path = run / "one-clean" / "stage.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "version": 99}))
    here = find_stages()["clean"].version
    with pytest.raises(InputError, match=f"version 99 of `webtext clean`, and here is version {here}"):
        stage_of(trace(run / "one-clean"), find_stages())


def test_a_stage_with_another_version_of_a_library_is_not_made_again(run):
    """Removals and stories asked an upgraded library, and said what it says, not what had been decided."""
    path = run / "one-clean" / "stage.json"
    record = json.loads(path.read_text())
    assert set(record["libraries"]) == {"ftfy", "langdetect", "tiktoken"}
    path.write_text(json.dumps({**record, "libraries": {**record["libraries"], "ftfy": "1.0"}}))
    with pytest.raises(InputError, match=r"one-clean was made with ftfy 1\.0 \(here it is \d"):
        stage_of(trace(run / "one-clean"), find_stages())
