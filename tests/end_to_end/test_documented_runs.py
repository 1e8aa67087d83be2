"""Each command of README, guide, tutorial, projects and coming-from runs, after a quickstart of a few pages."""

from __future__ import annotations

import json
import shlex
import socket
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from pydoc_data.topics import topics

import pytest
from tests.documented import ROOT, blocks, commands_of
from tests.documented_runs import (
    ELSEWHERE,
    ORDER,
    WITHOUT_COMMANDS,
    Done,
    Place,
    all_commands,
    page_text,
    reason_not_to_run,
    site_at,
)
from tests.gpt2_train import forks

from webtext_prep.cli import find_stages
from webtext_run.documentation_site import copied, sources

SHAPE = {"layers": 1, "hidden": 16, "heads": 2, "sequence-length": 32}
LENGTH = {"steps": 4, "global-batch-size": 4, "threads": 1}
COMPARED = SHAPE | {"steps": 4, "seeds": 2, "global-batch-size": 4, "held-out-tokens": 40_000}
OTHER_LENGTHS = {"model": "", "epochs": "", "minutes": ""}
LOOPBACK = {"allow-private-addresses": "loopback", "per-host": 8, "delay": 0}
SETS = {
    "quickstart": {"train-tokenizer.vocabulary_size": 512, "generate.tokens": 8},
    "own_text": {"train-tokenizer.vocabulary_size": 512, "train.eval_every": 0, "generate.tokens": 8},
    "openwebtext": {"download.allow_private_addresses": "loopback", "download.delay": 0},
    "reddit": {"download.allow_private_addresses": "loopback", "download.delay": 0},
}
TRAINS = ("quickstart", "own_text")


def flags(values: Mapping[str, object]) -> list[str]:
    """The words of some flags."""
    return [word for name, value in values.items() for word in (f"--{name}", str(value))]


def without(words: Sequence[str], names: Collection[str]) -> list[str]:
    """Words without some flags, each of which has one value."""
    gone = {f"--{name}" for name in names}
    return [word for before, word in zip(["", *words], words, strict=False) if word not in gone and before not in gone]


def sets(pipeline: str) -> list[str]:
    """The flags that make a pipeline a short one."""
    changes: dict[str, object] = {}
    if pipeline in TRAINS:
        changes |= {f"train.{name.replace('-', '_')}": value for name, value in (SHAPE | LENGTH).items()}
    return [word for key, value in (changes | SETS.get(pipeline, {})).items() for word in ("--set", f"{key}={value}")]


def shorter(words: list[str]) -> list[str]:
    """A command that does the same with less: tiny models, few steps, one worker, a larger share held out."""
    program, name, *rest = words
    if program == "pipelines/run.py":
        kept = [word for word in words if not word.startswith("train.steps=")]
        kept = [word for word, after in zip(kept, [*kept[1:], ""], strict=True) if (word, after[:2]) != ("--set", "--")]
        return [*kept, *sets(name), "--workers", "1"]
    if program == "gpt2" and name == "train":
        values = LENGTH if "--init-from" in rest else SHAPE | LENGTH
        return [program, name, *without(rest, values | OTHER_LENGTHS), *flags(values)]
    if program == "gpt2" and name == "ablate":
        return [program, name, *without(rest, COMPARED | OTHER_LENGTHS), *flags(COMPARED), "--processes", "1"]
    if program == "webtext" and name == "plan":
        return [program, name, *without(rest, {"config"}), "--config", "pipelines/quickstart.toml"]
    if program == "webtext" and name in find_stages():
        is_own_list = name == "download" and "MY_URLS.txt" in rest
        rest = ["en" if word == "hq" else word for word in rest]
        rest = ["0.5" if before == "--hold-out" else word for before, word in zip(["", *rest], rest, strict=False)]
        return [program, name, *rest, *(flags(LOOPBACK) if is_own_list else []), "--workers", "1"]
    return words


def run(words: Sequence[str]) -> Done:
    """Run a Python program without the seconds in which it imports torch."""
    done = forks.run(words)
    return done.returncode, done.stdout, done.stderr


def prepare_quickstart(folder: Path, port: int) -> None:
    """Run the quickstart on some ninety of its pages, with its site at `port`, in the current folder."""
    quickstart = folder / "runs" / "quickstart"
    quickstart.mkdir(parents=True)
    (quickstart / "site.json").write_text(json.dumps({"port": port}))
    names = [f"topic/{name}" for name in sorted(topics)]
    names += [f"module/{name}" for name in [name for name in sources() if name.startswith(("numpy.", "sympy."))][::6]]
    names += [f"{kind}/{name}" for name in copied()[:2] for kind in ("module", "mirror", "print")]
    names += ["about/de", "gone/1"]
    (folder / "few.txt").write_text("".join(f"http://127.0.0.1:{port}/{name}.html\n" for name in names))
    words = [sys.executable, str(ROOT / "pipelines" / "run.py"), "quickstart", "--set", "blacklist.input=few.txt"]
    code, _, said = run([*words, *sets("quickstart"), "--workers", "1"])
    assert code == 0, said


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Where a quickstart of a few pages was, and its site is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    prepare_quickstart(tmp_path, port)
    with site_at(port):
        found = Place(tmp_path, shorter, run, forks.Started)
        found.prepare()
        yield found
        found.close()


@pytest.mark.exhaustive
def test_every_command_of_the_documentation_does_its_work(place: Place) -> None:
    """Ten of twenty-five that somebody drew failed: they read what no page had made."""
    wrong = []
    for page, command in all_commands():
        code, _, said = place.run(command)
        if code:
            wrong.append(f"{page}: {command}\n{said[-1500:]}")
    code, out, said = place.shell(f"python -c {shlex.quote(next(blocks(page_text('../README'), 'python')))}")
    assert not wrong and not code and out, "\n\n".join([*wrong, said])


def test_each_page_with_commands_is_run_or_says_what_it_needs() -> None:
    pages = {f"guide/{page.stem}" for page in (ROOT / "docs" / "guide").glob("*.md")}
    assert pages <= {*ORDER, *ELSEWHERE, *WITHOUT_COMMANDS}
    for name in WITHOUT_COMMANDS & pages:
        assert not [command for command in commands_of(page_text(name)) if not reason_not_to_run(command)], name
    for name, need in ELSEWHERE.items():
        assert page_text(name).splitlines()[2].startswith(f"*The commands of this page {need}"), name
    assert len(list(all_commands())) > 120
