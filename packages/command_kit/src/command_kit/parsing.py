"""The parser of a command line, which answers a mistake as git or uv would.

Beyond argparse's own: an unknown flag or command is answered with the nearest known one; the usage shown is that of the
subcommand, in one line, as `--help` lists the flags; and a command that lacks its subcommand shows its help (on
standard error, exit code 2).

Every command also offers `--version`, and completion of its words in the shell.

    webtext --version
    eval "$(webtext --print-completion bash)"

Completion scripts are written by shtab from the parser itself, so that they always know the flags that there are; both
flags import what they need only when they are given.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import inspect
import os
import platform
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from command_kit.command import print_error
from command_kit.errors import meant, nearest

SHELLS = ("bash", "zsh", "fish")
_PATHS = ("PATH", "FILE", "DIR", "PREFIX")
"""The words that the placeholder of a flag that takes a path holds."""


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


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Lists subcommands under headings: the action's `headings`, by the name of the first command below each."""

    def _format_action(self, action: argparse.Action) -> str:
        shown = super()._format_action(action)
        for first, heading in getattr(action, "headings", {}).items():
            shown = re.sub(
                rf"^(?=    {re.escape(first)}\b(?!-))", f"\n  {heading}:\n", shown, count=1, flags=re.MULTILINE
            )
        return shown


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` without abbreviations, whose description keeps its lines; its subcommands' are the same."""

    def __init__(self, *, description: str | None = None, **options: Any) -> None:
        options = {"formatter_class": HelpFormatter, "allow_abbrev": False, **options}
        if sys.version_info >= (3, 14):
            options.setdefault("color", False)  # its escape sequences would stand in the words that are looked for here
        super().__init__(description=inspect.cleandoc(description or "") or None, **options)
        self.removed: dict[str, str] = {}
        """Flags, their values and subcommands that there are no more: what to use instead, the end of a sentence."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[argparse.Namespace, list[str]]:  # type: ignore[override]
        """Parse as argparse does, with nothing left over: an unknown argument is this parser's mistake to explain."""
        words: Sequence[str] = sys.argv[1:] if args is None else args
        if not words and any(isinstance(one, argparse._SubParsersAction) and one.required for one in self._actions):
            self.print_help(sys.stderr)
            self.exit(2)
        # First of all, since the value of an unknown flag before a subcommand would be taken for that.
        flags = [word.partition("=")[0] for word in words if word.startswith("-")]
        if gone := next((flag for flag in flags if flag in self.removed), None):
            self.error(f"{gone} is gone: {self.removed[gone]}")
        found, unknown = super().parse_known_args(words, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._suggestion(unknown)}")
        return found, []

    def _suggestion(self, unknown: Sequence[str]) -> str:
        flags = [word.partition("=")[0] for word in unknown if word.startswith("-")]
        known = {flag.lstrip("-"): flag for flag in self._option_string_actions}
        found = [known[near] for flag in flags if (near := nearest(flag.lstrip("-"), known)) is not None]
        return f" (did you mean {' '.join(found)}?)" if found else f"; `{self.prog} --help` lists its flags"

    def error(self, message: str) -> NoReturn:
        """Print the usage and the message on standard error, and exit with code 2."""
        self.print_usage(sys.stderr)
        print_error(self.prog, f"{message}.")
        self.exit(2)

    def format_usage(self) -> str:
        """One line: `usage: webtext clean [flags] [PATH ...]`."""
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, [one for one in self._actions if not one.option_strings], [])
        return formatter.format_help().replace(self.prog, f"{self.prog} [flags]", 1)

    def format_help(self) -> str:
        """Write the help as argparse does, with the usage in one line."""
        _, _, rest = super().format_help().partition("\n\n")
        return f"{self.format_usage()}\n{rest}"

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        used = f"{next(iter(action.option_strings), '')} {arg_string}"
        if used in self.removed:
            self.error(f"{used} is gone: {self.removed[used]}")
        return super()._get_value(action, arg_string)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        if value in self.removed:
            raise argparse.ArgumentError(None, f"{value} is gone: {self.removed[value]}")
        known = [str(choice) for choice in action.choices]
        asked = meant(str(value), known)
        if isinstance(action, argparse._SubParsersAction):
            listed = asked.strip() or f"choose from {', '.join(known)}"
            kind = str(action.metavar or "command").lower()
            raise argparse.ArgumentError(None, f"there is no {kind} {value} ({listed})")
        raise argparse.ArgumentError(action, f"invalid choice: {value!r} ({asked}choose from {', '.join(known)})")
