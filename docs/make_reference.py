"""Writes docs/reference/webtext.md and gpt2.md: every command with all its flags, as its own parser knows them.

    uv run docs/make_reference.py

A test compares the pages with what this makes, so that they are always current.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import gpt2_train.cli
import webtext_prep.cli
from command_kit import write_text

FOLDER = Path(__file__).resolve().parent / "reference"

INTRODUCTION = """\
# `{program}`: every command and setting

Made by `docs/make_reference.py` from the settings themselves: change those, not this page. A flag `--some-name` is the
key `some_name` in a TOML file given by `--config`, and in the command's table of a pipeline. A flag that may be
`--no-...` is `true` or `false` there; one that takes several values is a list.
"""


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Program -> its parser, with the flags of all its commands."""
    stages, commands = webtext_prep.cli.find_stages(), webtext_prep.cli.find_commands()
    return {
        "webtext": webtext_prep.cli.build_parser(stages, commands),
        "gpt2": gpt2_train.cli.make_parser(None, whole=True),
    }


def page(program: str, parser: argparse.ArgumentParser) -> str:
    """The page of one program, Markdown."""
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    parts = [INTRODUCTION.format(program=program)]
    summaries = {choice.dest: choice.help or "" for choice in commands._choices_actions}
    parts += [f"- [`{program} {name}`](#{program}-{name}): {_cell(summaries[name])}" for name in commands.choices]
    for name, command in _with_their_own(commands):
        parts.append(f"\n## {program} {name}\n")
        parts.append("\n".join(line.rstrip() for line in inspect.cleandoc(command.description or "").splitlines()))
        named = {group.title or "": list(_rows(group)) for group in command._action_groups}
        own = [row for title in ("positional arguments", "options") for row in named.pop(title, [])]
        for title, rows in {"": own, **named}.items():
            if rows:
                parts += [*([f"\n{_cell(title)}:"] if title else []), "\n| flag | meaning |\n| --- | --- |", *rows]
    return "\n".join(parts).rstrip() + "\n"


def _with_their_own(commands: argparse._SubParsersAction) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Each command with its name, and after it those that it has itself (`checkpoint verify`)."""
    for name, command in commands.choices.items():
        yield name, command
        for action in command._actions:
            if isinstance(action, argparse._SubParsersAction):
                for own, parser in _with_their_own(action):
                    yield f"{name} {own}", parser


def _rows(group: argparse._ArgumentGroup) -> Iterator[str]:
    for action in group._group_actions:
        if action.help is argparse.SUPPRESS or isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
            continue
        yield f"| {_cell(_flag(action), code=True)} | {_cell((action.help or '').replace('%%', '%'))} |"


def _flag(action: argparse.Action) -> str:
    """`--min-tokens N`, `--fix-text / --no-fix-text`, or the placeholder of what is given by its place."""
    shown = str(action.metavar or action.dest)
    if action.choices is not None:
        shown = "{" + ",".join(map(str, action.choices)) + "}"
    if action.nargs in ("*", "+"):
        shown = f"{shown} ..."
    if not action.option_strings:
        return shown
    names = " / ".join(action.option_strings)
    return names if action.nargs == 0 else f"{names} {shown}"


def _cell(text: str, *, code: bool = False) -> str:
    text = " ".join(text.split())
    if code:
        return "`" + text.replace("|", "\\|") + "`"
    pieces = text.split("`")
    # What stands between backquotes is shown as it is, but for the border of a cell.
    pieces[::2] = [re.sub(r"([*<_|])", r"\\\1", piece) for piece in pieces[::2]]
    pieces[1::2] = [piece.replace("|", "\\|") for piece in pieces[1::2]]
    return "`".join(pieces)


def main() -> int:
    """Write all pages."""
    FOLDER.mkdir(exist_ok=True)
    for program, parser in parsers().items():
        write_text(FOLDER / f"{program}.md", page(program, parser))
    return 0


if __name__ == "__main__":
    sys.exit(main())
