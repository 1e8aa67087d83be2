"""Every command that the documentation shows is accepted by its own parser, flags and values; none is run here."""

import functools
import importlib
import importlib.metadata
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.documented import PAGES, ROOT, blocks, example, shown_lines

import gpt2_train.cli
import webtext_prep.cli
from command_kit.plugins import announced
from webtext_prep.commands import Command
from webtext_prep.text.classifiers import FASTTEXT_MAGIC, MAGIC
from webtext_run import command as pipelines_run

PROGRAMS = {
    "webtext": webtext_prep.cli.main,
    "gpt2": gpt2_train.cli.main,
    "gpt2_train": gpt2_train.cli.main,
    "pipelines/run.py": pipelines_run.main,
}
SCRIPTS = ("pipelines/documentation_site.py", "docs/make_reference.py", "benchmarks/", "tools/")
"""Other programs of this repository, whose flags are looked for in their source."""
PLACEHOLDERS = {"COMMAND": "clean", "STAGE": "clean", "GIB": "24", "NAME": "local", "N": "1", "LIST": "urls.txt"}
"""What stands for a value, in capitals, and a value for which it may stand."""
FILES = {"lambada.jsonl": '{"text": "t"}', "hellaswag.jsonl": "{}"}
FILES |= {f"MY_{name.upper()}.jsonl": content for name, content in (("lambada", '{"text": "t"}'), ("hellaswag", "{}"))}
FILES |= {"MY_SITES.txt": "", "MY_EXTENSIONS.txt": ""}
"""Files that commands name, and that are looked for when their settings are checked."""

FOREIGN_FLAGS = {
    "--model_args", "--batch_size", "--include_path", "--shutdown-timeout", "--states", "--remote-debugging-pipe",
    "--without-each", "--ckpt-format", "--ignore-eos",
}  # fmt: skip
FOREIGN_FLAGS |= {
    "--eod-mask-loss",
    "--reset-attention-mask",
    "--vocab-file",
    "--merge-file",
    "--only",
    "--flag",
    "--no-flag",
    "--version",
    "--print-completion",
}
"""Flags of other programs, or of no command, that pages mention."""


class Accepted(BaseException):
    """The settings of a command are valid: it would begin its work."""


def mentioned_lines(text: str) -> Iterator[str]:
    """What a page's sentences and tables show as code; behind a link that is a command its flags may go on."""
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"\[`([^`]+)`\]\([^)]*\)\s`(--[^`]+)`", r"`\1 \2`", text)
    yield from (span.replace("...", "") for span in re.findall(r"(?<!`)`([^`\n]+)`", text))


def commands_in(line: str) -> Iterator[tuple[str, ...]]:
    """The words of each command of this project in a line of a shell, from the program's name on."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    command: list[str] = []
    before = ""
    for word in [*lexer, ";"]:
        if word and set(word) <= set("|&;<>()"):
            if command:
                yield tuple(command)
            command = []
        elif command:
            command.append(PLACEHOLDERS.get(word, word))
        elif (word in PROGRAMS and (before == "-m") == (word == "gpt2_train")) or word.startswith(SCRIPTS):
            command = [word]
        elif word.lstrip("$(").startswith(("webtext ", "gpt2 ")):  # sbatch --wrap "webtext ..."
            yield from commands_in(word.lstrip("$("))
        before = word


def documented() -> dict[tuple[str, ...], tuple[str, bool]]:
    """Each command, by its words, of the documentation, and of comments and help: a place, and whether it is whole."""
    texts = [(page, page.read_text(encoding="utf-8")) for page in PAGES]
    found = [(page, line, False) for page, text in texts for line in mentioned_lines(text) if " --" in line]
    found += [(page, line, True) for page, text in texts for line in shown_lines(text)]
    for file in (*sorted((ROOT / "pipelines").glob("*.toml")), Path(pipelines_run.__file__)):
        lines = file.read_text(encoding="utf-8").splitlines()
        found += [(file, line.lstrip("# "), True) for line in lines if re.match(r"[# ]+\./uvw run ", line)]
    found += [(Path("--help"), line, True) for line in webtext_prep.cli.EPILOG.splitlines() if line.startswith("  ")]
    is_ours = re.compile(r"\b(webtext|gpt2|gpt2_train|\w+\.py) ")
    ours = [entry for entry in found if is_ours.search(entry[1])]
    return {words: (page.name, is_whole) for page, line, is_whole in ours for words in commands_in(line)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what commands name, in which they stop as soon as their settings are found to be valid."""
    for name in ("pipelines", "data"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "my_filters.py").write_text(example("keep"))
    pipelines = (ROOT / "docs" / "guide" / "pipelines.md").read_text(encoding="utf-8")
    (tmp_path / "my_pipeline.toml").write_text(next(blocks(pipelines, "toml")) + "[train]\n")
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    for name, begin in {"work/quality/model.filter": MAGIC, "MY_MODEL.bin": FASTTEXT_MAGIC}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(begin)
    monkeypatch.chdir(tmp_path)

    def stop(*_: Any, **__: Any) -> None:
        raise Accepted

    real = webtext_prep.cli.settings_from
    monkeypatch.setattr(webtext_prep.cli, "Job", stop)
    monkeypatch.setattr(
        webtext_prep.cli,
        "settings_from",
        lambda kind, *a, **b: stop(real(kind, *a, **b)) if issubclass(kind, Command) else real(kind, *a, **b),
    )
    monkeypatch.setattr(pipelines_run, "check", stop)
    # What is the same for every command is found once.
    monkeypatch.setattr(importlib.metadata, "entry_points", functools.cache(importlib.metadata.entry_points))
    parser = webtext_prep.cli.build_parser(webtext_prep.cli.find_stages(), webtext_prep.cli.find_commands())
    monkeypatch.setattr(webtext_prep.cli, "build_parser", lambda *_: parser)
    own = [importlib.import_module(name) for name, _ in gpt2_train.cli.COMMANDS.values()]
    for module in [*own, *dict(announced(gpt2_train.cli.GROUP)).values()]:
        # `doctor` has no settings.
        replaced = next((name for name in ("settings_from", "evaluation_of") if hasattr(module, name)), "run")
        theirs = getattr(module, replaced) if replaced != "run" else None
        monkeypatch.setattr(module, replaced, lambda *a, real=theirs, **b: stop(real and real(*a, **b)))
    return tmp_path


def complaint(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> str:
    """What the program says against a command, or nothing."""
    program, *arguments = words
    if program not in PROGRAMS:
        source = ROOT / program.replace("pipelines/", "packages/webtext_run/src/webtext_run/")
        unknown = [word for word in arguments if word.startswith("--") and f'"{word}"' not in source.read_text()]
        return f"unknown: {unknown}" if unknown else ""
    try:
        code = PROGRAMS[program](arguments)
    except Accepted:
        return ""
    except SystemExit as stopped:
        code = stopped.code
    said = capsys.readouterr().err
    return said.strip().rpartition("\n")[2] if code else ""


def test_every_command_of_the_documentation_is_accepted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = documented()
    wrong = []
    for words, (place, is_whole) in commands.items():
        said = complaint(words, capsys)
        # A sentence may name a command with a flag alone: `gpt2 train --log-to`.
        if said and (is_whole or not re.search(r" needs | expected | are required:", said)):
            wrong.append(f"{place}: {shlex.join(words)}: {said}")
    assert not wrong, "\n".join(wrong)
    assert sum(is_whole for _, is_whole in commands.values()) > 100


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("webtext clean --input a --output b --min-token 5", "unrecognized arguments: --min-token"),
        ("webtext clean --input a --output b --language xx", "--language xx is not known"),
        ("gpt2 train --data a --output b --lr fast", "invalid float value"),
        ("gpt2 train --data a --output b --documents separate", "dropout is 0.1"),
        ("pipelines/run.py own_text --input a --set train.step=5", "step"),
        ("pipelines/documentation_site.py --prot 8000", "--prot"),
    ],
)
def test_a_command_with_a_mistake_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], words: str, reason: str
) -> None:
    """What the test above is worth."""
    assert reason in complaint(tuple(words.split()), capsys)


@pytest.mark.parametrize("page", [page for page in PAGES if "```toml" in page.read_text(encoding="utf-8")])
def test_settings_files_of_the_documentation_are_accepted(page: Path, folder: Path) -> None:
    for number, block in enumerate(blocks(page.read_text(encoding="utf-8"), "toml")):
        step = "" if re.search(r"^\[(?!pipeline\])", block, re.MULTILINE) else "[clean]\n"
        (folder / f"{number}.toml").write_text(block + step)
        with pytest.raises(Accepted):
            pipelines_run.main([f"{number}.toml", "--input", "urls.txt"])


def test_every_flag_that_a_sentence_names_is_one_of_ours() -> None:
    reference = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "reference").glob("*.md"))
    known = set(re.findall(r"--[a-z][a-z0-9-]*", reference + Path(pipelines_run.__file__).read_text(encoding="utf-8")))
    for page in PAGES:
        named = [re.match(r"--[a-z][\w-]*", span) for span in mentioned_lines(page.read_text(encoding="utf-8"))]
        unknown = {found[0] for found in named if found} - known - FOREIGN_FLAGS
        assert not unknown, page
