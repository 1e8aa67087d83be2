"""The parser of a command line, which answers a mistake as git or uv would.

Beyond argparse's own: an unknown flag or command is answered with the nearest known one; the usage shown is that of the
subcommand, in one line, as `--help` lists the flags; and a command that lacks its subcommand shows its help (on
standard error, exit code 2).
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from command_kit.command import print_error


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` was probably meant to be."""
    return next(iter(difflib.get_close_matches(word, list(known), 1)), None)


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` without abbreviations, whose description keeps its lines; its subcommands' are the same."""

    def __init__(self, *, description: str | None = None, **options: Any) -> None:
        options = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False, **options}
        super().__init__(description=inspect.cleandoc(description or "") or None, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[argparse.Namespace, list[str]]:  # type: ignore[override]
        """As argparse does, but with nothing left over: what is unknown is this parser's mistake to explain."""
        words: Sequence[str] = sys.argv[1:] if args is None else args
        if not words and any(isinstance(one, argparse._SubParsersAction) and one.required for one in self._actions):
            self.print_help(sys.stderr)
            self.exit(2)
        found, unknown = super().parse_known_args(words, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._suggestion(unknown)}")
        return found, []

    def _suggestion(self, unknown: Sequence[str]) -> str:
        flags = [word.partition("=")[0] for word in unknown if word.startswith("-")]
        known = {flag.lstrip("-"): flag for flag in self._option_string_actions}
        meant = [known[near] for flag in flags if (near := nearest(flag.lstrip("-"), known)) is not None]
        return f" (did you mean {' '.join(meant)}?)" if meant else f"; `{self.prog} --help` lists its flags"

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
        """As argparse does, with the usage in one line."""
        _, _, rest = super().format_help().partition("\n\n")
        return f"{self.format_usage()}\n{rest}"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        near = nearest(str(value), known)
        meant = f"did you mean {near}? " if near is not None else ""
        if isinstance(action, argparse._SubParsersAction):
            listed = meant.strip() or f"choose from {', '.join(known)}"
            raise argparse.ArgumentError(None, f"there is no command {value} ({listed})")
        raise argparse.ArgumentError(action, f"invalid choice: {value!r} ({meant}choose from {', '.join(known)})")
