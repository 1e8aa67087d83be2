"""The README and docs/: examples in Python run, commands have the flags that they use, and links lead somewhere."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

import gpt2_train.cli
import webtext_prep.cli
from webtext_prep import stages
from webtext_prep.documents.document import Document
from webtext_prep.documents.shards import write_documents

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "packages").glob("*/README.md"))]
GUIDE = "\n".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs" / "guide").glob("*.md")))
PROGRAMS = {"webtext": webtext_prep.cli.main, "gpt2": gpt2_train.cli.main, "gpt2_train": gpt2_train.cli.main}
COMMAND = re.compile(r"(?:\S* ?torchrun .*-m |\S*uvw run )?(webtext|gpt2|gpt2_train) ([a-z-]+) .*--")


def example(name: str) -> str:
    """The Python example of docs/guide/ that defines `name`."""
    (found,) = (text for text in re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL) if f" {name}(" in text)
    return found


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    texts = {
        "good": "A page about something. " * 20,
        "advertisement": "Subscribe now to read on. " * 5,
        "numbers": "1 2 3 4 5 6 7 8 9 " * 20,
        "long": "A very long page. " * 6000,
    }
    with write_documents(tmp_path / "input" / "part-00000.jsonl.zst") as writer:
        for name, text in texts.items():
            writer.write(Document(f"http://example.org/{name}", text))
    return tmp_path / "input"


def dropped(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, int]:
    assert webtext_prep.cli.main([*map(str, arguments), "--workers", "1", "--json"]) == 0
    return json.loads(capsys.readouterr().out)["dropped"]


def test_the_filter_of_the_guide_filters(documents: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my_filters.py").write_text(example("keep"))
    function = f"{tmp_path / 'my_filters.py'}:keep"
    found = dropped(capsys, "filter", "--function", function, "--input", documents, "--output", tmp_path / "out")
    assert found == {"advertisement": 1, "few_letters": 1, "very_long": 1}


def test_the_stage_of_the_guide_is_added_in_one_file(
    documents: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in the folder of stages is a command with flags and help; nothing else changes."""
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "shorten.py").write_text(example("Shorten"))
    monkeypatch.setattr(stages, "__path__", [*stages.__path__, str(tmp_path / "plugins")])
    try:
        found = dropped(capsys, "shorten", "--input", documents, "--output", tmp_path / "out", "--max-characters", 400)
        with pytest.raises(SystemExit):
            webtext_prep.cli.main(["shorten", "--help"])
    finally:
        sys.modules.pop("webtext_prep.stages.shorten", None)
    assert found == {"too_long": 2}
    assert "--max-characters N" in capsys.readouterr().out


def commands() -> list[tuple[str, str, str]]:
    """(page, program, command line) of each `webtext` and `gpt2` command in a code block, a table or a sentence."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        lines = [line.partition(" #")[0] for line in text.splitlines() if line.startswith("    ") or "```" not in line]
        for line in lines:
            for part in [*re.findall(r"`([^`]+)`", line), line.split("|")[-1].strip()]:
                if hit := re.match(
                    r"(?:\S* ?torchrun .*-m |\S*uvw run )?(webtext|gpt2|gpt2_train) ([a-z-]+) .*--", part
                ):
                    found.append((page.name, hit[1], part[hit.start(1) :]))
    return found


def test_every_command_of_the_documentation_has_the_flags_that_it_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    flags: dict[tuple[str, str], set[str]] = {}
    wrong = []
    for page, program, line in commands():
        words = shlex.split(line.replace("...", ""))
        if (program, words[1]) not in flags:
            with pytest.raises(SystemExit):
                PROGRAMS[program]([words[1], "--help"])
            flags[program, words[1]] = set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out))
        used = {word.partition("=")[0] for word in words if word.startswith("--") and " " not in word}
        wrong += [f"{page}: {line}: {flag}" for flag in sorted(used - flags[program, words[1]])]
    assert wrong == []
    assert len(flags) >= 10


def test_every_link_and_path_of_the_documentation_leads_somewhere() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", text):
            file = (page.parent / target).resolve() if target else page
            assert file.exists(), f"{page.name}: {target}"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
                anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
                assert anchor in anchors, f"{page.name}: {target}#{anchor}"
        for path in re.findall(r"`((?:packages|pipelines|tests|docs|data|benchmarks)/[\w./-]+)`", text):
            assert (ROOT / path).exists() or path.startswith("benchmarks/results/"), f"{page.name}: {path}"
