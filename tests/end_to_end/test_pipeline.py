"""From URLs to text that a model writes, by the very command of the README, on a few pages and a tiny model."""

import contextlib
import dataclasses
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.gpt2_train import forks

from webtext_run import preflight, runner
from webtext_run import steps as wiring
from webtext_run.preflight import check

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "pipelines" / "run.py"


TINY = """
[pipeline]
site = true
workers = 1

[blacklist]

[download]
allow_private_addresses = true
per_host = 4
delay = 0.0
max_urls = 12

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
    with contextlib.chdir(pipeline.parent):
        return forks.run([sys.executable, RUN, pipeline, "--folder", folder, *arguments])


@pytest.fixture
def play_here(tmp_path, monkeypatch, capfd) -> Callable[..., tuple[int, str, str]]:
    """`play_here("p.toml", ...)` is the same in this process: the exit code, and what it writes."""
    from webtext_run import command as run

    monkeypatch.chdir(tmp_path)

    def played(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run.main([*arguments, "--folder", str(tmp_path / "out")])
        return code, *capfd.readouterr()

    return played


IN_A_GROUP = "import os, runpy, sys; os.setsid(); sys.argv.pop(0); runpy.run_path(sys.argv[0], run_name='__main__')"


def kill_when(condition: Callable[[], bool], pipeline: Path, folder: Path) -> None:
    """Start the pipeline and kill all of its processes at once, with no chance to tidy up, when `condition` holds."""
    with contextlib.chdir(pipeline.parent):
        process = forks.Started([sys.executable, "-c", IN_A_GROUP, RUN, pipeline, "--folder", folder])
    deadline = time.monotonic() + 120
    while not condition():
        assert process.returncode is None, "the pipeline ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def weights(model: Path) -> dict[str, bytes]:
    from gpt2_train.conversion.formats import open_weights

    found = open_weights(model).load()
    return {name: value.detach().numpy().tobytes() for name, value in found.state_dict().items()}


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("pipeline") / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture(scope="module")
def until_trained(pipeline) -> Path:
    """The pipeline without what it does with the model, which it does whenever it is run."""
    path = pipeline.with_name("until_trained.toml")
    path.write_text(TINY.partition("[evaluate]")[0])
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
    bits = dict(re.findall(r"^    (this model|gzip -9|zstd -19|unigram model) +([\d.]+)$", done.stdout, re.MULTILINE))
    assert len(bits) == 4
    assert 1 < float(bits["zstd -19"]) < float(bits["gzip -9"]) < 8
    assert 1 < float(bits["unigram model"]) < float(bits["this model"]) < 8  # in 8 steps it has learned nothing
    for command in ("gpt2 generate --checkpoint", "gpt2 serve --checkpoint", "pipelines/run.py own_text --input"):
        assert f"./uvw run {command}" in done.stdout
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


@pytest.mark.exhaustive
def test_what_is_done_is_not_done_again(until_trained, finished):
    folder, _ = finished
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("part-*.jsonl.zst")}
    again = play(until_trained, folder)
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("already done") == 6
    assert "nothing to do" in again.stderr
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.exhaustive
def test_a_killed_pipeline_goes_on_to_the_same_tokens_and_weights(pipeline, finished):
    whole, done = finished
    assert done.returncode == 0, done.stderr
    folder = pipeline.parent / "killed"
    metrics = folder / "model" / "metrics.jsonl"
    kept = folder / "download" / ".state" / "kept"
    kill_when(lambda: any(path.stat().st_size for path in kept.glob("*")), pipeline, folder)
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
def test_a_mistake_in_the_file_is_named_before_anything_runs(play_here, text, named):
    Path("wrong.toml").write_text("[blacklist]\n" + text if text.startswith("[") else text)
    code, out, err = play_here("wrong.toml", "--urls", "urls.txt")
    assert (code, out) == (2, "")
    assert named in err
    assert "Traceback" not in err
    assert not Path("out/blacklist").exists()


def test_an_unknown_name_is_answered_with_the_known_ones(play_here):
    code, _, err = play_here("absent")
    assert code == 2
    assert "openwebtext, " in err
    assert "quickstart" in err


def test_a_failing_step_is_named_and_stops_the_rest(play_here):
    Path("p.toml").write_text("[blacklist]\n[download]\n")
    Path("urls.txt").write_text("http://youtube.com/watch\n")
    code, _, err = play_here("p.toml", "--urls", "urls.txt")
    assert code == 1
    assert "the step [blacklist] (`webtext blacklist`) ended with exit code 1: fix what" in err
    assert not Path("out/download").exists()


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


def test_a_pipeline_that_is_killed_leaves_none_of_its_steps_running():
    parent = "import signal; from webtext_run import runner; runner.in_process(signal.pause, {'--a': '--b'})"
    with subprocess.Popen([sys.executable, "-c", parent], stderr=subprocess.PIPE) as process:
        child = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        deadline = time.monotonic() + 60
        while not child.read_text().split():
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.kill()
        assert process.stderr is not None
        process.stderr.read()


def test_a_model_written_elsewhere_is_the_one_that_is_measured_and_that_writes(tmp_path):
    tables = {"train": {"output": "elsewhere"}, "evaluate": {}, "generate": {"checkpoint": "another"}}
    train, evaluate, generate = wiring.plan(tmp_path / "x.toml", tables, tmp_path, [])
    assert train.output == "elsewhere"
    assert evaluate.arguments == ["held-out-loss", f"{tmp_path}/corpus_text_document", "--checkpoint", "elsewhere"]
    assert "--checkpoint" not in generate.arguments


def test_a_tokenizer_is_used_by_what_follows_and_documents_pass_it_by(tmp_path):
    tables = {"merge": {}, "train-tokenizer": {}, "clean": {}, "tokenize": {}, "merge-tokens": {}}
    merge, train, clean, tokenize, join = wiring.plan(tmp_path / "x.toml", tables, tmp_path, ["texts"])
    assert train.arguments == ["--input", merge.output, "--output", f"{tmp_path}/train-tokenizer"]
    assert clean.arguments[1] == merge.output
    assert tokenize.arguments == [
        "--input", clean.output, "--output", f"{tmp_path}/corpus", "--tokenizer", train.output,
    ]  # fmt: skip
    assert join.arguments[1] == f"{tmp_path}/corpus_text_document"
    del tables["merge-tokens"]
    for own in ({"tokenizer": "gpt2"}, {"vocabulary": "v.json", "merges": "m.txt"}):
        *_, tokenize = wiring.plan(tmp_path / "x.toml", tables | {"tokenize": own}, tmp_path, ["texts"])
        assert "--tokenizer" not in tokenize.arguments


def test_indexed_token_files_are_what_texts_are_traced_in(tmp_path):
    tables = {"merge": {}, "tokenize": {}, "index-tokens": {}, "train": {}, "generate": {"prompt": ["a"]}}
    _, _, index, _, generate = wiring.plan(tmp_path / "x.toml", tables, tmp_path, ["texts"])
    assert index.arguments == ["--input", f"{tmp_path}/corpus_text_document"]
    assert index.output == f"{tmp_path}/corpus_text_document.suffixes"
    assert generate.arguments[-2:] == ["--trace", f"{tmp_path}/corpus_text_document"]
    del tables["index-tokens"]
    assert "--trace" not in wiring.plan(tmp_path / "x.toml", tables, tmp_path, ["texts"])[-1].arguments


def test_a_corpus_can_be_exported_before_or_after_it_is_tokenized(tmp_path):
    for order in (["merge", "export", "tokenize"], ["merge", "tokenize", "export"]):
        steps = wiring.plan(tmp_path / "x.toml", {name: {} for name in order}, tmp_path, ["texts"])
        inputs = {step.name: step.settings.input for step in steps}
        assert inputs["export"] == inputs["tokenize"] == (f"{tmp_path}/merge",)


def test_a_command_that_looks_at_folders_gets_the_last_one(tmp_path):
    *_, look = wiring.plan(tmp_path / "x.toml", {"merge": {}, "inspect": {"samples": 1}}, tmp_path, ["texts"])
    assert look.arguments == [f"{tmp_path}/merge"]
    *_, look = wiring.plan(tmp_path / "x.toml", {"merge": {}, "tokenize": {}, "inspect": {}}, tmp_path, ["texts"])
    assert look.arguments == [f"{tmp_path}/corpus_text_document"]


def test_a_report_gets_the_model_and_what_it_wrote(tmp_path):
    tables = {"merge": {}, "tokenize": {}, "train": {}, "generate": {"prompt": "a"}, "report": {}}
    *_, report = wiring.plan(tmp_path / "x.toml", tables, tmp_path, ["texts"])
    assert report.arguments == [
        f"{tmp_path}/corpus_text_document", "--output", f"{tmp_path}/report.html", "--run", f"{tmp_path}/model",
        "--samples", f"{tmp_path}/samples.json",
    ]  # fmt: skip
    assert report.output == f"{tmp_path}/report.html"
    *_, report = wiring.plan(tmp_path / "x.toml", {"merge": {}, "report": {"output": "r.html"}}, tmp_path, ["texts"])
    assert report.arguments == [f"{tmp_path}/merge"]
    assert report.output == "r.html"


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    """A folder with texts, and tokens and a model of one step made from them."""
    home = tmp_path_factory.mktemp("texts")
    (home / "texts").mkdir()
    for number in range(12):
        (home / "texts" / f"{number}.txt").write_text(f"Text number {number} says a few words. " * (5 + number))
    (home / "first.toml").write_text(ONE_STEP)
    done = play(home / "first.toml", Path("first"), "--input", "texts")
    assert done.returncode == 0, done.stderr
    return home


ONE_STEP = """
[merge]
[tokenize]
[train]
layers = 1
hidden = 8
heads = 2
sequence_length = 16
steps = 1
global_batch_size = 2
threads = 1
split = "80,20,0"
"""

WRONG = {
    "an input that is not there": ("[merge]\n", "absent", "[merge]: ", "absent"),
    "an input of a later stage": ('[merge]\n[clean]\ninput = ["absent"]\n', "texts", "[clean]: ", "absent"),
    "an input of another kind": ('[merge]\n[clean]\ninput = ["texts"]\n', "texts", "[clean]: ", "texts"),
    "standard input": ("[dedup]\n", "-", "[dedup]: ", "standard input"),
    "a list of rules": ('[blacklist]\nblocked_domains = "absent.txt"\n', "texts", "[blacklist]: ", "absent.txt"),
    "a function": ('[merge]\n[filter]\nfunction = "absent.py:keep"\n', "texts", "[filter]: ", "absent.py"),
    "a tokenizer": ('[merge]\n[tokenize]\ntokenizer = "absent"\n', "texts", "[tokenize]: ", "no tokenizer absent"),
    "an engine": ('[merge]\n[clean]\nengine = "steam"\n', "texts", "[clean]: ", "--engine steam"),
    "a format": ('[merge]\n[clean]\nformat = "docx"\n', "texts", "[clean]: ", "--set clean.format=docx is not known"),
    "an output with other files": ('[merge]\n[clean]\noutput = "first/model"\n', "texts", "[clean]: ", "other files"),
    "an output that is a file": ('[merge]\noutput = "first.toml"\n', "texts", "[merge]: ", "is a file"),
    "too few tokens": ("[merge]\n[train-tokenizer]\nvocabulary_size = 99\n", "texts", "[train-tokenizer]: ", "257"),
    "a batch": ("[merge]\n[tokenize]\n[train]\nglobal_batch_size = 8\nmicro_batch_size = 3\n", "texts", "[train]: ",
        "--set train.micro_batch_size=3"),
    "a layout": ("[merge]\n[tokenize]\n[train]\ntensor_parallel = 5\n", "texts", "[train]: ",
        "--set train.tensor_parallel=5 does not divide"),
    "a vocabulary that cannot be shared": (
        "[merge]\n[train-tokenizer]\nvocabulary_size = 300\n[tokenize]\n[train]\nlayers = 1\nhidden = 9\nheads = 9\n"
        "tensor_parallel = 9\n", "texts", "[train]: ", "padded vocabulary (384)"),
    "a vocabulary smaller than the tokenizer's": (
        "[merge]\n[train-tokenizer]\nvocabulary_size = 300\n[tokenize]\n[train]\nvocabulary_size = 280\n", "texts",
        "[train]: ", "the tokenizer has 300"),
    "a device": ('[merge]\n[tokenize]\n[train]\ndevice = "cuda"\n', "texts", "[train]: ", "no GPU"),
    "token files": ("[merge]\n[train]\n", "texts", "[train]: ", "no token files"),
    "token files by name": ('[train]\ndata = ["absent"]\n', "texts", "[train]: ", "no token files absent"),
    "a model": ('[merge]\n[tokenize]\n[evaluate]\n', "texts", "[evaluate]: ", "no model"),
    "an empty split": ('[merge]\n[tokenize]\n[train]\nsplit = "100,0,0"\n[evaluate]\n', "texts", "[evaluate]: ",
        "valid is empty"),
    "a text to evaluate on": (
        '[merge]\n[tokenize]\n[train]\n[evaluate]\ntask = "text-loss"\ntext = "absent.txt"\n', "texts", "[evaluate]: ",
        "text is absent.txt"),
    "a prompt": ("[merge]\n[tokenize]\n[train]\n[generate]\n", "texts", "[generate]: ", "no prompt"),
    "a file of an evaluation task": ('[merge]\n[tokenize]\n[train]\neval_task = "lambada:absent"\n', "texts",
        "[train]: ", "absent"),
    "a file of prompts": ('[merge]\n[tokenize]\n[train]\n[generate]\nprompts = "absent"\n', "texts", "[generate]: ",
        "absent"),
    "a run with other settings": (ONE_STEP.replace("heads = 2", "heads = 1") + 'output = "first/model"\n', "texts",
        "[train]: ", "heads was 2, now 1"),
}  # fmt: skip


LINES_AND_MODULES = """
import runpy, sys
stderr, program = sys.stderr, sys.argv[1]
class Noted:
    def write(self, text):
        loaded = [name for name in ("command_kit", "numpy", "torch") if name in sys.modules]
        if text.strip():
            stderr.write(f"{loaded} {text.strip()}\\n")
    def flush(self): pass
    def isatty(self): return False
class Finder:
    def find_spec(self, name, *_):
        if name == "torch":
            raise ImportError("torch was asked for")
sys.meta_path.insert(0, Finder())
sys.stderr, sys.argv = Noted(), sys.argv[1:]
runpy.run_path(program, run_name="__main__")
"""


def test_the_first_lines_come_before_what_takes_long_to_load(tmp_path):
    """On a busy machine nothing was to be seen for 43 s: PyTorch and the site came before the first line."""
    command = [sys.executable, "-c", LINES_AND_MODULES, str(RUN), "quickstart", "--folder", "out", "--check"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    first, second, third, fourth, fifth, *_ = done.stderr.splitlines()
    assert first == "[] run.py: loading the commands"
    assert second.startswith("['command_kit', 'numpy'] quickstart: the documentation of Python and its packages")
    assert third == "['command_kit', 'numpy'] checking the settings of all steps against this machine"
    assert fourth == "['command_kit', 'numpy'] loading PyTorch"
    assert "torch was asked for" in fifth


@pytest.fixture
def check_without_gpu(texts, monkeypatch, capsys) -> Callable[..., str]:
    """`check_without_gpu(text, input, ...)` is what `run.py --check`, or run.py, says of a file with that text."""
    from webtext_run import command as run

    monkeypatch.chdir(texts)
    monkeypatch.setattr(preflight, "count_gpus", lambda names: 0)
    monkeypatch.setattr(run, "run_steps", lambda steps, *_: pytest.fail(f"{steps} were run"))

    def said(text: str, *arguments: str, code: int = 2) -> str:
        Path("wrong.toml").write_text(text)
        assert run.main(["wrong.toml", "--folder", "out", *arguments]) == code
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        assert not Path("out").exists()
        return out + err

    return said


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_found_before_anything_runs(check_without_gpu, what):
    """A mistake in the last table was found after the download."""
    text, source, table, named = WRONG[what]
    said = check_without_gpu(text, "--input", source)
    (error,) = (line for line in said.splitlines() if line.startswith("run.py: error: "))
    assert table in error
    assert named in error


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["quickstrat"], "no pipeline quickstrat: did you mean quickstart? give the path of a TOML file"),
        (["own_txt.toml"], "no pipeline own_txt.toml: did you mean own_text? "),
        (["quickstart", "--until", "tokenise"], "--until tokenise is not in quickstart.toml: did you mean tokenize? "),
        (["quickstart", "--until", "clean", "--restart", "dedup"], "--restart dedup is not a step: choose one of "),
        (["wrong.toml", "--input", "texts"], "no command [cleen]; did you mean clean? known are "),
        (["rules.toml", "--input", "texts"], "gopher-qualty is not known: did you mean gopher-quality? choose among"),
        (["engine.toml", "--input", "texts"], "--engine rya is not known: did you mean ray? choose one of local"),
    ],
)
def test_a_name_with_a_typing_mistake_is_answered_with_the_nearest_one(texts, monkeypatch, capsys, words, named):
    from webtext_run import command as run

    monkeypatch.chdir(texts)
    Path("wrong.toml").write_text("[merge]\n[cleen]\n")
    Path("rules.toml").write_text('[merge]\n[clean]\nrules = ["gopher-qualty"]\n')
    Path("engine.toml").write_text('[pipeline]\nengine = "rya"\n[merge]\n')
    assert run.main([*words, "--check"]) == 2
    assert named in capsys.readouterr().err


def test_a_missing_input_is_told_before_torch_is_loaded_or_anything_estimated(texts, monkeypatch, capsys):
    """It took 27 s, and showed what the documents of an earlier run in that folder would need."""
    from webtext_run import command as run

    monkeypatch.chdir(texts)
    monkeypatch.setattr(preflight, "count_gpus", lambda names: pytest.fail("torch was loaded"))
    Path("p.toml").write_text(ONE_STEP)
    words = ["p.toml", "--input", "absent", "--folder", "first", "--check"]
    assert run.main(words) == 2
    said = capsys.readouterr().err
    assert "absent" in said.splitlines()[-1]
    assert "needs" not in said


def test_a_list_of_private_addresses_is_refused_before_the_run(texts, monkeypatch, tmp_path, capsys):
    from webtext_run import command as run

    monkeypatch.chdir(tmp_path)
    Path("p.toml").write_text("[blacklist]\n[download]\n")
    Path("urls.txt").write_text("http://127.0.0.1:8100/a\nhttp://localhost/b\nhttp://user:secret@10.0.0.1/c\n")
    check = ["p.toml", "--input", "urls.txt", "--check"]
    assert run.main(check) == 2
    said = capsys.readouterr().err
    assert "[download]: all addresses of urls.txt are private, such as http://127.0.0.1:8100/a; if they are" in said
    assert "--set download.allow_private_addresses=loopback (of this machine)" in said
    assert run.main([*check, "--set", "download.allow_private_addresses=loopback"]) == 0
    Path("urls.txt").write_text("http://127.0.0.1:8100/a\n" * 200 + "http://example.org/b\n")
    assert run.main(check) == 0


def test_where_all_stages_run_is_said_once(check_without_gpu):
    """`[pipeline]` and flags hold for every stage whose table says nothing else."""
    text = '[pipeline]\nengine = "local"\nworkers = 3\n[merge]\n[clean]\nworkers = 1\n[report]\n'
    arguments = ["--input", "texts", "--check"]
    merge, clean, report, *_ = check_without_gpu(text, *arguments, code=0).splitlines()
    assert " --engine local --workers 3 " in merge
    assert "--engine local" in clean
    assert "--workers" not in clean + report
    assert "--workers 2" in check_without_gpu(text, *arguments, "--workers", "2", code=0).splitlines()[0]
    unused = check_without_gpu(text, *arguments, "--ray-address", "head:6379")
    assert "--ray-address is a setting of --engine ray, which no stage of wrong.toml runs on" in unused
    mixed = text.replace('engine = "local"', 'engine = "ray"\nray_address = "auto"')
    mixed = mixed.replace("workers = 1", 'engine = "local"')
    merge, clean, *_ = check_without_gpu(mixed, *arguments, "--shared-scratch", "/shared", code=0).splitlines()
    assert "--shared-scratch /shared" in merge
    assert "--shared-scratch" not in clean
    unused = check_without_gpu(text, *arguments, "--shared-scratch", "/shared")
    assert "--shared-scratch is for tasks on other machines, and every stage of wrong.toml runs here" in unused


def test_a_download_runs_here_wherever_the_other_stages_do(check_without_gpu, tmp_path):
    """One crawl is one process; its own table may not say otherwise."""
    (tmp_path / "urls.txt").write_text("http://example.org/\n")
    text = '[pipeline]\nengine = "ray"\nray_address = "auto"\nworkers = 50\n[download]\nsave_pages = true\n[clean]\n'
    arguments = ["--input", str(tmp_path / "urls.txt"), "--check"]
    download, clean, *_ = check_without_gpu(text, *arguments, code=0).splitlines()
    assert "--engine" not in download and "--workers" not in download
    assert " --engine ray " in clean and " --workers 50 " in clean
    own = text.replace("save_pages = true", 'engine = "ray"\nray_address = "auto"')
    said = check_without_gpu(own, *arguments)
    assert "webtext download works in one process of this machine: leave out --engine ray" in said


def test_all_mistakes_are_named_at_once(check_without_gpu):
    """With --check and without."""
    text = '[merge]\n[tokenize]\ntokenizer = "absent"\n[train]\ntensor_parallel = 5\n'
    for arguments in (["--check"], []):
        said = check_without_gpu(text, "--input", "no", *arguments)
        assert [line.split("]")[0] for line in said.splitlines() if line.startswith("run.py: error")] == [
            f"run.py: error: wrong.toml [{name}" for name in ("merge", "tokenize", "train")
        ]


def test_settings_that_an_output_was_not_made_with_are_found_before_anything_runs(check_without_gpu):
    """A changed setting of the last stage was found when the earlier ones had been run."""
    said = check_without_gpu(ONE_STEP, "--input", "texts", "--check", "--folder", "first", code=0)
    assert "webtext merge" in said
    tables = ONE_STEP.replace("[tokenize]", "[tokenize]\nseed = 5")
    said = check_without_gpu(tables, "--input", "texts", "--folder", "first")
    assert "[tokenize]: first/corpus was made with other settings (seed was 1234, now 5)" in said
    said = check_without_gpu(ONE_STEP, "--input", "texts", "--folder", "first", "--set", "train.hidden=16", "--check")
    assert "[train]: first/model holds a run with other settings (hidden was 8, now 16)" in said


def test_disk_that_is_too_small_for_all_together_is_found_before_anything_runs(check_without_gpu, monkeypatch):
    from command_kit.machine import Disk, Machine

    monkeypatch.setattr(Machine, "disk_of", lambda self, place: Disk("small", 700))
    monkeypatch.setattr(preflight.Estimate, "problem", lambda self: None)
    said = check_without_gpu("[merge]\n[clean]\n[tokenize]\n", "--input", "texts")
    assert "all stages together need about" in said
    check_without_gpu("[merge]\nspace_check = false\n[clean]\n", "--input", "texts", "--check", code=0)


def test_what_archives_have_joins_what_was_fetched(check_without_gpu):
    Path("urls.txt").write_text("http://a.org/")
    text = "[download]\n[rescue]\nrequests = 600\n[extract]\n[merge]\n[clean]\n"
    said = check_without_gpu(text, "--input", "urls.txt", "--folder", "run", "--check", code=0)
    commands = {line.split()[1]: line for line in said.splitlines() if line.startswith("webtext ")}
    assert "--input run/download --output run/rescue " in commands["rescue"]
    assert "--input run/rescue --output run/extract " in commands["extract"]
    assert "--input run/download run/extract --output run/merge " in commands["merge"]
    assert "--input run/merge " in commands["clean"]
    assert "rescue: wayback: some " in said and "at 600 an hour" in said


@pytest.mark.parametrize(
    ("change", "value", "flags"),
    [
        ("train.steps=60", 60, ["--steps", "60"]),
        ("clean.language=any", "any", ["--language", "any"]),
        ('clean.language="any"', "any", ["--language", "any"]),
        ("clean.rules=[]", (), []),
        ("tokenize.shuffle=false", False, ["--no-shuffle"]),
        ("tokenize.append_eod=true", True, ["--append-eod"]),
        ("download.allow_private_addresses=loopback", "loopback", ["--allow-private-addresses", "loopback"]),
        ('generate.prompt=["a b", "-c"]', ("a b", "-c"), ["--prompt=a b", "--prompt=-c"]),
        ("train.lr=1e-3", 0.001, ["--lr", "0.001"]),
    ],
)
def test_a_setting_can_be_changed_on_the_command_line(tmp_path, change, value, flags):
    written = {"download": {}, "clean": {"rules": ["c4"]}, "tokenize": {}}
    written |= {"train": {"tokens": 1000}, "generate": {"prompt": ["x"]}}
    tables = wiring.changed(written, [change], tmp_path)
    steps = wiring.plan(tmp_path / "x.toml", tables, tmp_path, ["urls.txt"], written)
    (step,) = (step for step in steps if change.startswith(f"{step.name}."))
    name = change.partition("=")[0].partition(".")[2]
    assert getattr(step.stage or step.settings, name) == value
    plain = {step.name: step.arguments for step in wiring.plan(tmp_path / "x.toml", written, tmp_path, ["urls.txt"])}
    assert [word for word in step.arguments if word not in plain[step.name]] == flags


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("train.steps", "is not TABLE.SETTING=VALUE"),
        ("steps=3", "is not TABLE.SETTING=VALUE"),
        ("trian.steps=3", "has no table [trian]; did you mean train? it has merge, tokenize, train"),
        ("train.stepz=3", "[train]: unknown setting stepz (did you mean steps?)"),
        ("train.steps=many", "[train]: steps should be a whole number, not 'many'"),
    ],
)
def test_a_change_that_cannot_be_made_is_named(check_without_gpu, change, named):
    assert named in check_without_gpu(ONE_STEP, "--input", "texts", "--set", change)


@pytest.mark.parametrize("gpus", [0, 1, 8])
@pytest.mark.parametrize("shipped", sorted(path.stem for path in RUN.parent.glob("*.toml")))
def test_every_shipped_recipe_fits_a_machine_with_any_number_of_gpus(tmp_path, monkeypatch, texts, shipped, gpus):
    """A shipped recipe failed on every machine with several GPUs, after the download."""
    from webtext_run.steps import read_pipeline

    path, tables = read_pipeline(shipped)
    steps = wiring.plan(path, tables, tmp_path, [str(texts / "texts")], site=True)
    steps[0].made = steps[0].settings.input  # whatever it is that this one reads
    found = check(steps, path, tmp_path, gpus)
    assert found.problems == []


# In its own words


def test_alone_it_lists_the_pipelines(monkeypatch, capsys):
    """`run.py` alone began four minutes of work, and --help did not say which pipelines there are."""
    from webtext_run import command as run

    monkeypatch.setattr(run, "play", lambda _: pytest.fail("a pipeline was run"))
    assert run.main([]) == 2
    listed = capsys.readouterr().err
    with pytest.raises(SystemExit):
        run.main(["--help"])
    for said in (listed, capsys.readouterr().out):
        for name in RUN.parent.glob("*.toml"):
            assert f"\n  {name.stem} " in said
        assert "pages that people on Reddit voted for" in said
        assert "./uvw run pipelines/run.py quickstart\n" in said


def test_a_second_run_in_a_folder_says_that_one_is_at_work(tmp_path, monkeypatch, capsys):
    """It was told that the port of the first one's site is taken, and to remove a file that the first one needs."""
    from webtext_prep.running.claims import locked
    from webtext_run import command as run

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "check", lambda *_: pytest.fail("a second run was begun"))
    with locked(tmp_path / "runs/quickstart" / run.LOCK, tmp_path):
        assert run.main(["quickstart"]) == 2
    at_work = "another run.py is at work on runs/quickstart: wait for it, or give another --folder."
    assert capsys.readouterr().err.endswith(f"run.py: error: {at_work}\n")
    assert [entry.name for entry in Path("runs/quickstart").iterdir()] == [run.LOCK]


@pytest.fixture
def two_steps(tmp_path, monkeypatch) -> Callable[..., tuple[int, str]]:
    """`two_steps(...)` is the exit code of a pipeline of [merge] and [clean] with such flags, and what it says."""
    monkeypatch.chdir(tmp_path)
    Path("p.toml").write_text('[merge]\n[clean]\nlanguage = "any"\nmin_tokens = 1\n')
    Path("texts").mkdir()
    Path("texts/a.txt").write_text("a text")

    def played(*arguments: str) -> tuple[int, str]:
        done = play(tmp_path / "p.toml", tmp_path / "out", "--input", "texts", "--workers", "1", *arguments)
        return done.returncode, done.stderr

    return played


def test_what_was_made_with_other_settings_is_made_again_by_a_flag_that_there_is(two_steps):
    """It advised `--output` and `--restart`, and knew neither."""
    assert two_steps()[0] == 0
    code, said = two_steps("--set", "clean.min_tokens=2")
    assert code == 2
    assert "give another --folder, or --restart clean to make it again from scratch" in said
    code, said = two_steps("--set", "clean.min_tokens=2", "--restart", "clean")
    assert code == 0, said
    assert re.search(r"^merge .*already done", said, re.MULTILINE)
    assert re.search(r"^clean .*\(\d", said, re.MULTILINE)
    code, said = two_steps("--set", "clean.min_tokens=2", "--restart")
    assert code == 0 and "already done" not in said
    code, said = two_steps("--restart", "cleen")
    assert code == 2
    assert (
        "--restart cleen is not a step: did you mean clean? choose one of merge, clean, or name none for all.\n" in said
    )


def test_a_step_speaks_the_flags_of_the_pipeline(two_steps):
    """A step advised `--allow-unreadable` and `--restart`, where the pipeline wants `--set` and the step's name."""
    Path("texts/a.txt").rename("texts/a.jsonl")
    code, said = two_steps("--debug")
    assert code == 2
    advice = "or the settings (and give --restart merge), or accept the loss with --set merge.allow_unreadable=true."
    assert advice in said
    assert "Traceback" in said  # the step was given --debug, too


def test_every_flag_of_a_step_is_said_in_words_that_the_pipeline_knows(tmp_path):
    from command_kit.command import in_words
    from webtext_prep.running.tasks import Tally
    from webtext_prep.stages.download import advice_on

    tables = {"download": {}, "tokenize": {}, "train": {}}
    download, _, train = wiring.plan(tmp_path / "x.toml", tables, tmp_path, ["urls.txt"])
    tally = Tally(read=3)
    tally.dropped["blocked_address"] = 3
    assert in_words(advice_on(tally), wiring.words_of(download)) == (
        "these addresses are private; if they are meant, give --set download.allow_private_addresses=loopback (of this "
        "machine) or --set download.allow_private_addresses=all (any), with --restart download"
    )
    words = wiring.words_of(download)
    assert in_words("give --no-space-check", words) == "give --set download.space_check=false"
    assert in_words("with --state DIR.", words) == "with --set download.state=DIR."
    assert in_words("fewer --workers", words) == "fewer --workers"  # a flag of run.py, too
    assert in_words("--output a/b is a file; `webtext x --restart`", words) == (
        "--output a/b is a file; `webtext x --restart`"
    )
    assert in_words("a lower --lr in another --output", wiring.words_of(train)) == (
        "a lower --set train.lr=VALUE in another --folder"
    )


def test_a_training_that_begins_anew_leaves_nothing_of_the_earlier_run(texts, monkeypatch):
    """`gpt2 train` has no --restart: what its run wrote, and nothing else, is removed."""
    import shutil

    shutil.copytree(texts / "first" / "model", texts / "again")
    (texts / "again" / "mine").write_text("mine")
    (step,) = wiring.plan(texts / "x.toml", {"train": {"data": ["x"]}}, texts, [])
    runner.discard_run(dataclasses.replace(step, output=str(texts / "again")))
    assert [entry.name for entry in (texts / "again").iterdir()] == ["mine"]


def test_the_memory_of_a_run_is_that_of_the_micro_batch_that_fits_its_gpu(tmp_path, monkeypatch, texts):

    path = tmp_path / "x.toml"
    tables = {"merge": {}, "tokenize": {}, "train": {"model": "124M", "global_batch_size": 32}}
    steps = wiring.plan(path, tables, tmp_path, [str(texts / "texts")])

    def peak(gib: int) -> float:
        monkeypatch.setattr(preflight, "gpu_room", lambda: gib * 2.0**30)
        (fact,) = (fact for fact in check(steps, path, tmp_path, 1).facts if "at most" in fact)
        return float(fact.partition("at most ")[2].split()[0])

    assert peak(8) < 8 < peak(80) < 80


def test_the_quickstart_with_the_vocabulary_of_gpt2_is_one_flag_away(tmp_path):
    """It trains a tokenizer of its own, for which nobody waits who wants GPT-2's."""
    path, written = wiring.read_pipeline("quickstart")
    for flags, names, known in (
        ([], ["train-tokenizer", "tokenize"], written["train-tokenizer"]["vocabulary_size"]),
        (["tokenize.tokenizer=gpt2"], ["tokenize"], 50257),
    ):
        tables = wiring.changed(written, flags, path)
        steps = wiring.plan(path, tables, tmp_path, ["urls.txt"], written, site=True)
        assert [step.name for step in steps if step.name.endswith(("tokenizer", "tokenize"))] == names
        found = check(steps, path, tmp_path)
        assert found.problems == []
        assert any(f" {known:,} token ids" in fact for fact in found.facts)


def test_a_layout_that_needs_more_gpus_than_there_are_is_found(tmp_path, texts):
    tables = {"merge": {}, "tokenize": {}, "train": {"data_parallel": 4}}
    path = tmp_path / "x.toml"
    steps = wiring.plan(path, tables, tmp_path, [str(texts / "texts")])
    (problem,) = check(steps, path, tmp_path, 2).problems
    assert "--set train.tensor_parallel=1 times --set train.data_parallel=4 needs 4 GPUs, and this machine" in problem


def test_checking_shows_the_steps_and_runs_none(play_here, tmp_path):
    Path("p.toml").write_text("[merge]\n[clean]\nlanguage = 'any'\n[tokenize]\n")
    for name in ("texts", "more"):
        Path(name).mkdir()
        Path(name, "a.txt").write_text("a text")
    code, shown, err = play_here(str(tmp_path / "p.toml"), "--input", "texts", "more", "--check")
    assert code == 0, err
    out, config = tmp_path / "out", f"--config {tmp_path / 'p.toml'}"
    assert shown.splitlines() == [
        f"webtext merge --input texts more --output {out}/merge {config}",
        f"webtext clean --input {out}/merge --output {out}/clean {config}",
        f"webtext tokenize --input {out}/clean --output {out}/corpus {config}",
    ]
    assert not out.exists()


def test_checking_says_what_each_stage_will_need(play_here):
    """From the input of the first stage, which is there, for all that follow."""
    Path("p.toml").write_text("[merge]\n[clean]\nlanguage = 'any'\n[tokenize]\n")
    Path("texts").mkdir()
    for number in range(50):
        Path("texts", f"{number}.txt").write_text(f"text {number} " * 3000)
    code, _, err = play_here("p.toml", "--input", "texts", "--check")
    assert code == 0
    lines = err.splitlines()[2:]  # after what says that it is checked
    assert [line.split(": needs about ")[0] for line in lines[:3]] == ["merge", "clean", "tokenize"]
    assert all(line.endswith(" for some 50 documents") for line in lines[:3])
    assert lines[3].startswith("all outputs together: about ")
    assert not Path("out").exists()


@pytest.mark.parametrize("flags", [["--until", "clean"], ["--until=clean", "--restart", "clean"]])
def test_what_stops_before_the_training_ends_with_the_command_that_trains(tmp_path, flags):
    """It ended with what to look at, and nothing said that the same command without --until trains."""
    from webtext_run import command as run

    (tmp_path / "p.toml").write_text("[merge]\n[clean]\n[tokenize]\n[train]\n")
    words = [str(tmp_path / "p.toml"), "--input", "my texts", *flags, "--folder", "out"]
    arguments = run.make_parser().parse_args(words)
    arguments.words = words
    steps = wiring.plan(tmp_path / "p.toml", {"merge": {}, "clean": {}}, tmp_path, ["my texts"])
    rest = run.command_of_the_rest(arguments, steps)
    assert runner.next_commands(steps, tmp_path, is_first_try=False, rest=rest)[-2:] == [
        f"  ./uvw run pipelines/run.py {tmp_path}/p.toml --input 'my texts' --folder out",
        "      the rest: a model that learns from it",
    ]
    (tmp_path / "p.toml").write_text("[merge]\n[clean]\n[tokenize]\n")
    assert run.command_of_the_rest(arguments, steps) == []


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
    steps = wiring.plan(tmp_path / "x.toml", tables, tmp_path, [])
    first, *_ = runner.next_commands(steps, tmp_path, is_first_try=False)
    assert shlex.split(first) == ["./uvw", "run", "gpt2", "generate", "--checkpoint", "model", *hint]
