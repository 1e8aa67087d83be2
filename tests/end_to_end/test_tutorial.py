"""docs/tutorial.md: every command, in the order of the page, does what the page says."""

import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.gpt2_train import forks

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8").replace("\\\n", " ")
COMMANDS = [line[4:] for line in PAGE.splitlines() if line.startswith("    ")]
STEPS = [line for line in COMMANDS if line.startswith(("webtext ", "gpt2 "))]
PROGRAMS = {"webtext": "webtext_prep", "gpt2": "gpt2_train"}
DUMP = "curl -s http://127.0.0.1:8100/RS_2026-01.xz -o RS_2026-01.xz"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with the dump, while the site that it links to is served."""
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "pipelines" / "documentation_site.py"), "--port", "0", "--until-input-ends"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    base = process.stdout.readline().strip()
    path = urllib.request.Request(f"{base}/{DUMP.split()[2].rpartition('/')[2]}")
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(path) as answer:
        (tmp_path / "RS_2026-01.xz").write_bytes(answer.read())
    yield tmp_path
    process.terminate()
    process.communicate()


def answer_to(command: str) -> list[str]:
    """The lines that the page shows below a command."""
    shown = re.search(re.escape(f"    {command}\n\n```text\n") + r"(.*?)```", PAGE, re.DOTALL)
    return shown[1].splitlines() if shown else []


def labels(lines: list[str]) -> set[str]:
    """What the rows of a closing table are called."""
    return {
        found[1]
        for line in lines
        if (found := re.match(r"  +([a-zA-Z_:][a-zA-Z_: ]*?)(?::? +[\d,.]+\b.*|: .*)$", line))
    }


def test_the_page_goes_the_way_of_the_article():
    order = [
        "urls", "blacklist", "download", "merge", "clean", "dedup", "tokenize", "train", "evaluate", "generate",
        "report",
    ]  # fmt: skip
    assert [step.split()[1] for step in STEPS] == order
    assert DUMP in COMMANDS


@pytest.mark.exhaustive
def test_each_command_of_the_page_runs_and_says_what_the_page_says(folder, monkeypatch):
    monkeypatch.chdir(folder)
    for step in STEPS:
        program, *arguments = shlex.split(re.sub(r"--steps \d+", "--steps 4 --threads 1", step))
        alone = ["--workers", "1"] if program == "webtext" else []
        done = forks.run([sys.executable, "-m", PROGRAMS[program], *arguments, *alone])
        assert done.returncode == 0, f"{step}: {done.stderr}"
        if arguments[0] == "generate":
            assert done.stdout.startswith("The module")
        if arguments[0] == "report":
            assert done.stdout.splitlines() == answer_to(step)
        elif program == "webtext" and (shown := answer_to(step)):
            said = done.stderr.splitlines()
            assert labels(shown) <= labels(said), step
            assert len(labels(shown)) >= 2
            if arguments[0] in ("urls", "blacklist"):  # follows from the dump, which is the same everywhere
                assert shown[1:] == said[-len(shown) + 1 :]
    assert (folder / "runs" / "tutorial" / "report.html").read_text().count("</html>") == 1
