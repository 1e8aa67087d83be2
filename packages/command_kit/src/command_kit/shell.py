"""What every command offers besides its work: `--version`, and completion of its words in the shell.

    webtext --version
    eval "$(webtext --print-completion bash)"

Completion scripts are written by shtab from the parser itself, so that they always know the flags that there are; both
flags import what they need only when they are given.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable, Iterable
from typing import Any

SHELLS = ("bash", "zsh", "fish")
_PATHS = ("PATH", "FILE", "DIR", "PREFIX")
"""What the placeholder of a flag that takes a path holds."""


def version_of(distribution: str) -> str | None:
    """The installed version of a distribution; None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def version_line(program: str, distribution: str, others: Iterable[str] = ()) -> str:
    """`webtext 0.1.0 (Python 3.12.1, torch 2.13.0)`: versions as installed, of `others` where they are installed.

    A program that runs from its sources has none. Nothing is imported for it.
    """
    found = {other: version_of(other) for other in others}
    parts = [
        f"Python {platform.python_version()}",
        *(f"{name} {version}" for name, version in found.items() if version),
    ]
    return f"{program} {version_of(distribution) or 'not installed'} ({', '.join(parts)})"


def add_shell_flags(
    parser: argparse.ArgumentParser,
    distribution: str,
    *,
    others: Iterable[str] = (),
    whole: Callable[[], argparse.ArgumentParser] | None = None,
) -> None:
    """Add `--version` and `--print-completion SHELL` to the parser of a command.

    Args:
        parser: the command's.
        distribution: the installed distribution whose version is the command's.
        others: further distributions whose versions are worth knowing.
        whole: makes the parser to complete by, where `parser` does not know all flags of all subcommands.
    """

    class Version(argparse.Action):
        def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
            _print(version_line(parser.prog, distribution, others))
            parser.exit()

    class PrintCompletion(argparse.Action):
        def __call__(self, parser: argparse.ArgumentParser, _: Any, shell: Any, *__: Any) -> None:
            _print(completion(whole() if whole is not None else parser, shell))
            parser.exit()

    parser.add_argument(
        "--version", action=Version, nargs=0, default=argparse.SUPPRESS, help="show the installed versions"
    )
    parser.add_argument(
        "--print-completion",
        action=PrintCompletion,
        choices=SHELLS,
        default=argparse.SUPPRESS,
        help=f'print a script that completes flags: eval "$({parser.prog} --print-completion bash)"',
    )


def _print(text: str) -> None:
    """Print `text`; a reader that goes away before its end (head, a pager) is not an error."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script that makes `shell`, one of `SHELLS`, complete the command of `parser`."""
    import shtab

    for action in _all_actions(parser):
        if isinstance(action.metavar, str) and any(word in action.metavar for word in _PATHS):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    script: str = shtab.complete(parser, shell)
    return script


def _all_actions(parser: argparse.ArgumentParser) -> Iterable[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from _all_actions(child)
