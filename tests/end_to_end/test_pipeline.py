"""From URLs to text that a model writes, by the very command of the README, on a few pages and a tiny model."""

import json
import os
import runpy
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from command_kit import UsageError

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "pipelines" / "run.py"

TINY = """
[pipeline]
site = true

[blacklist]

[download]
allow_private_addresses = true
per_host = 4
delay = 0.0
max_urls = 30

[merge]

[clean]

[dedup]

[tokenize]

[train]
layers = 1
hidden = 16
heads = 2
sequence_length = 32
steps = 8
global_batch_size = 2
log_every = 1
save_every = 2
dropout = 0.1
lr = 1e-2
split = "70,30,0"
threads = 1

[evaluate]
split = "valid"

[generate]
prompt = ["The module"]
tokens = 5
"""


def play(pipeline: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(RUN), str(pipeline), "--folder", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=pipeline.parent)


def kill_when(condition: Callable[[], bool], pipeline: Path, folder: Path) -> None:
    """Start the pipeline and kill all of its processes at once, with no chance to tidy up, when `condition` holds."""
    command = [sys.executable, str(RUN), str(pipeline), "--folder", str(folder)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, cwd=pipeline.parent, start_new_session=True, **quiet)
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, "the pipeline ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def weights(model: Path) -> dict[str, bytes]:
    from gpt2_train.checkpoint import load_model

    found, _, _ = load_model(model, "cpu")
    return {name: value.detach().numpy().tobytes() for name, value in found.state_dict().items()}


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("pipeline") / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture(scope="module")
def finished(pipeline) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = pipeline.parent / "whole"
    return folder, play(pipeline, folder)


def test_one_command_goes_from_urls_to_generated_text(finished):
    folder, done = finished
    assert done.returncode == 0, done.stderr
    assert "What the model writes:" in done.stdout
    assert "| The module" in done.stdout
    assert "unigram model" in done.stdout
    assert str(folder / "model") in done.stdout
    summaries = json.loads((folder / "pipeline.json").read_text())
    assert list(summaries) == [
        "blacklist", "download", "merge", "clean", "dedup", "tokenize", "train", "evaluate", "generate",
    ]  # fmt: skip
    for stage in ("blacklist", "download", "merge", "clean", "dedup", "tokenize"):
        found = summaries[stage]
        assert found["in"] == found["out"] + sum(found["dropped"].values()) > 0
    assert summaries["blacklist"]["dropped"].keys() == {
        "blocked_domain", "blocked_extension", "duplicate", "malformed",
    }  # fmt: skip
    assert summaries["tokenize"]["tokens"] > 1000
    assert 0 < summaries["evaluate"]["loss"] < 11


def test_the_same_command_again_does_nothing_twice(pipeline, finished):
    folder, _ = finished
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("part-*.jsonl.zst")}
    again = play(pipeline, folder)
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("already done") == 6
    assert "nothing to do" in again.stderr
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_killed_pipeline_goes_on_to_the_same_tokens_and_weights(pipeline, finished):
    whole, done = finished
    assert done.returncode == 0, done.stderr
    folder = pipeline.parent / "killed"
    metrics = folder / "model" / "metrics.jsonl"
    journals = folder / "download" / ".state" / "scratch" / "journals"
    kill_when(lambda: any(path.stat().st_size for path in journals.glob("*")), pipeline, folder)
    assert not (folder / "download" / "stage.json").exists()
    kill_when(lambda: (folder / "clean" / ".state").exists(), pipeline, folder)
    kill_when(lambda: metrics.exists() and metrics.read_text().count("\n") >= 3, pipeline, folder)
    assert not (folder / "model" / "checkpoints" / "step-0000008").exists()
    again = play(pipeline, folder)
    assert again.returncode == 0, again.stderr
    name = "corpus_text_document"
    for ending in (".bin", ".idx"):
        assert (folder / f"{name}{ending}").read_bytes() == (whole / f"{name}{ending}").read_bytes()
    assert weights(folder / "model") == weights(whole / "model")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[clean]\nmin_token = 5\n", "min_tokens"),
        ("[train]\nlayerz = 5\n", "layers"),
        ("[clean]\nmin_tokens = 'many'\n", "min_tokens should be a whole number"),
        ("[cleen]\n", "no command [cleen]"),
        ("x = 1\n", "outside a table"),
        ("[clean\n", "not valid TOML"),
        ("", "describes no step"),
    ],
)
def test_a_mistake_in_the_file_is_named_before_anything_runs(tmp_path, text, named):
    path = tmp_path / "wrong.toml"
    path.write_text("[blacklist]\n" + text if text.startswith("[") else text)
    done = play(path, tmp_path / "out", "--urls", "urls.txt")
    assert (done.returncode, done.stdout) == (2, "")
    assert named in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out" / "blacklist").exists()


def test_an_unknown_name_is_answered_with_the_known_ones(tmp_path):
    done = play(tmp_path / "absent", tmp_path / "out")
    assert done.returncode == 2
    assert "openwebtext, quickstart" in done.stderr


def test_a_failing_step_is_named_and_stops_the_rest(tmp_path):
    (tmp_path / "p.toml").write_text("[blacklist]\n[download]\n")
    (tmp_path / "urls.txt").write_text("http://youtube.com/watch\n")
    done = play(tmp_path / "p.toml", tmp_path / "out", "--urls", "urls.txt")
    assert done.returncode == 1
    assert "the step [blacklist] (`webtext blacklist`) ended with exit code 1: fix what" in done.stderr
    assert not (tmp_path / "out" / "download").exists()


def test_a_pipeline_that_is_asked_to_end_ends_its_command_and_says_that_it_goes_on(tmp_path):
    (tmp_path / "p.toml").write_text('[blacklist]\ninput = ["-"]\n')
    process = subprocess.Popen(
        [sys.executable, str(RUN), "p.toml", "--folder", "out"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    state = tmp_path / "out" / "blacklist" / ".state"
    deadline = time.monotonic() + 60
    while not list(state.glob(".stdin.*")):  # the command waits for its standard input
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    assert process.stderr is not None
    said = process.stderr.read()  # it ends when the last process that could write to it has ended
    assert process.wait() == 130
    assert said.count("webtext: interrupted; the same command resumes from here.") == 1
    assert said.endswith("run.py: interrupted; the same command resumes from here.\n")


def test_a_model_written_elsewhere_is_the_one_that_is_measured_and_that_writes(tmp_path):
    tables = {"train": {"output": "elsewhere"}, "evaluate": {}, "generate": {"checkpoint": "another"}}
    train, evaluate, generate = runpy.run_path(str(RUN))["plan"](tmp_path / "x.toml", tables, tmp_path, [])
    assert train.output == "elsewhere"
    assert evaluate.arguments[:2] == ["--checkpoint", "elsewhere"]
    assert "--checkpoint" not in generate.arguments


@pytest.mark.parametrize(
    ("gpus", "table", "named"),
    [
        (
            0,
            "global_batch_size = 8\nmicro_batch_size = 3\n",
            r"\[train\]: --global-batch-size 8 .* --micro-batch-size 3",
        ),
        (0, "tensor_parallel = 5\n", r"\[train\]: --tensor-parallel 5 does not divide"),
        (2, "data_parallel = 4\n", r"\[train\]: .* needs 4 GPUs, and this machine has 2"),
    ],
)
def test_a_batch_or_layout_that_does_not_fit_is_found_before_anything_runs(tmp_path, gpus, table, named):
    """A batch that could not be shared among the processes was found after the download, when training began."""
    path = tmp_path / "x.toml"
    tables = tomllib.loads(f"[download]\n[tokenize]\n[train]\n{table}")
    with pytest.raises(UsageError, match=named):
        runpy.run_path(str(RUN))["plan"](path, tables, tmp_path, ["urls.txt"], gpus)


@pytest.mark.parametrize("gpus", [0, 1, 2, 4, 8])
@pytest.mark.parametrize("shipped", ["quickstart", "openwebtext"])
def test_every_shipped_recipe_fits_a_machine_with_any_number_of_gpus(tmp_path, shipped, gpus):
    """A shipped recipe failed on every machine with several GPUs, after the download."""
    path = RUN.parent / f"{shipped}.toml"
    tables = tomllib.loads(path.read_text())
    assert runpy.run_path(str(RUN))["plan"](path, tables, tmp_path, ["urls.txt"], gpus)


def test_checking_shows_the_steps_and_runs_none(tmp_path):
    (tmp_path / "p.toml").write_text("[merge]\n[clean]\nlanguage = 'any'\n[tokenize]\n")
    done = play(tmp_path / "p.toml", tmp_path / "out", "--input", "texts", "more", "--check")
    assert (done.returncode, done.stderr) == (0, "")
    out, config = tmp_path / "out", f"--config {tmp_path / 'p.toml'}"
    assert done.stdout.splitlines() == [
        f"webtext merge --input texts more --output {out}/merge {config}",
        f"webtext clean --input {out}/merge --output {out}/clean {config}",
        f"webtext tokenize --input {out}/clean --output {out}/corpus {config}",
    ]
    assert not out.exists()


def test_checking_says_what_each_stage_will_need(tmp_path):
    """From the input of the first stage, which is there, for all that follow."""
    (tmp_path / "p.toml").write_text("[merge]\n[clean]\nlanguage = 'any'\n[tokenize]\n")
    (tmp_path / "texts").mkdir()
    for number in range(50):
        (tmp_path / "texts" / f"{number}.txt").write_text(f"text {number} " * 3000)
    done = play(tmp_path / "p.toml", tmp_path / "out", "--input", str(tmp_path / "texts"), "--check")
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert [line.split(": needs about ")[0] for line in lines[:3]] == ["merge", "clean", "tokenize"]
    assert all(line.endswith(" for some 50 documents") for line in lines[:3])
    assert lines[3].startswith("all outputs together: about ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("generate", "hint"),
    [
        ({"prompt": ["Once upon"], "tokens": 5}, ["--prompt", "Once upon"]),
        ({"prompt": []}, []),
        ({}, []),
        (None, []),
    ],
)
def test_the_closing_hint_has_the_pipelines_own_prompt(tmp_path, generate, hint):
    """Every pipeline, whatever its texts, ended with the quickstart's prompt."""
    tables = {"train": {"output": "model"}} | ({} if generate is None else {"generate": generate})
    module = runpy.run_path(str(RUN))
    steps = module["plan"](tmp_path / "x.toml", tables, tmp_path, [])
    assert module["write_more"](steps) == ["./uvw", "run", "gpt2", "generate", "--checkpoint", "model", *hint]


def test_every_shipped_pipeline_is_valid(tmp_path):
    for path in sorted(RUN.parent.glob("*.toml")):
        done = subprocess.run(
            [
                sys.executable,
                str(RUN),
                str(path),
                "--folder",
                str(tmp_path / path.stem),
                "--urls",
                "u.txt",
                "--until",
                "x",
            ],
            capture_output=True,
            text=True,
        )
        assert "--until x is not in" in done.stderr, done.stderr
