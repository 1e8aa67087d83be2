"""Prompts as they come from outside: one per line of a text, JSON strings or objects, or flags."""

from __future__ import annotations

import contextlib
import functools
import importlib
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from command_kit import parse_json
from gpt2_train.config.errors import Gpt2UsageError


def prompts_of_lines(data: bytes, where: str, *, as_json: bool = False) -> list[str]:
    """The prompts in `data`, one per line; lines without text are skipped. Raises Gpt2UsageError naming the line."""
    prompts: list[str] = []
    for number, line in enumerate(data.split(b"\n"), 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\r")
        except UnicodeDecodeError:
            raise Gpt2UsageError(f"{where}, line {number}, is not valid UTF-8: save it as UTF-8.") from None
        if not text.strip():
            continue
        if as_json:
            try:
                value: Any = parse_json(text)
            except ValueError as error:
                raise Gpt2UsageError(f"{where}, line {number}, is not valid JSON ({error}): correct it.") from None
            value = value.get("prompt") if isinstance(value, dict) else value
            if not isinstance(value, str):
                raise Gpt2UsageError(
                    f'{where}, line {number}, should be a JSON string, or an object with a string under "prompt".'
                )
            text = value
        prompts.append(text)
    return prompts


def prompts_of_file(path: str | Path) -> list[str]:
    """The prompts in a file: JSON if its name ends in .jsonl, else one per line. Raises Gpt2UsageError for none."""
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Gpt2UsageError(f"can't read the prompts {path} ({error.strerror}): give another file.") from None
    prompts = prompts_of_lines(data, str(path), as_json=path.suffix == ".jsonl")
    if not prompts:
        raise Gpt2UsageError(f"{path} holds no prompt: write one per line.")
    return prompts


Result = TypeVar("Result")


Ask = Callable[[], str | None]


def shared_prompt_loop(write: Callable[[str], object], of_first: Callable[[Ask], str | None]) -> None:
    """`prompt_loop` in each of several processes: `of_first` gives all of them what the first one read.

    Ctrl-C ends the command.
    """
    use_line_editing()
    print("Write a prompt and press Enter. Ctrl-C or Ctrl-D quits.", file=sys.stderr)
    while (prompt := of_first(ask)) is not None and prompt.strip() != STOP:
        try:
            write(prompt)
        except Gpt2UsageError as error:
            print(f"gpt2: {error}", file=sys.stderr)


STOP = "stop"
"""The word that ends the loop, on a line of its own."""

HOW = f"Ctrl-C ends the text being written; Ctrl-D, or `{STOP}` on a line of its own, quits."


class Interrupts:
    """Turns Ctrl-C into one KeyboardInterrupt while it is wanted, and into nothing else."""

    def __init__(self) -> None:
        self._is_wanted = False

    def _received(self, number: int, frame: FrameType | None) -> None:
        if self._is_wanted:
            self._is_wanted = False
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Take over SIGINT while the block runs."""
        before = signal.signal(signal.SIGINT, self._received)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def during(self, work: Callable[[], Result]) -> Result:
        """The result of `work`; Ctrl-C ends it by a KeyboardInterrupt, and is ignored after that."""
        try:
            self._is_wanted = True
            return work()
        finally:
            self._is_wanted = False


def use_line_editing() -> None:
    """Make `input` edit lines and recall earlier ones, where Python was built with readline."""
    with contextlib.suppress(ImportError):
        importlib.import_module("readline")


def ask() -> str | None:
    """The next prompt that the user types; None at the end of input."""
    while True:
        try:
            return input("> ")
        except EOFError:
            print()
            return None
        except UnicodeDecodeError:
            print("gpt2: that was not valid UTF-8: write it again.", file=sys.stderr)


def prompt_loop(write: Callable[[str], object]) -> None:
    """Ask for prompts and call `write` for each, until `stop` on a line of its own or the end of input.

    `write` prints the continuation of a prompt; a Gpt2UsageError that it raises is printed, and the loop continues.
    """
    use_line_editing()
    print(f"Write a prompt and press Enter. {HOW}", file=sys.stderr)
    interrupts = Interrupts()
    with interrupts.installed():
        while True:
            try:
                prompt = interrupts.during(ask)
            except KeyboardInterrupt:
                print(f"\n({HOW})", file=sys.stderr)
                continue
            if prompt is None or prompt.strip() == STOP:
                return
            try:
                interrupts.during(functools.partial(write, prompt))
            except KeyboardInterrupt:
                print("\n(ended here)", flush=True)
            except Gpt2UsageError as error:
                print(f"gpt2: {error}", file=sys.stderr)
