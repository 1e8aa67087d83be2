"""A conversation with a model on a terminal: a prompt, its continuation as it comes, the next prompt.

Lines are edited and recalled with the arrow keys where Python has readline. Ctrl-C ends the text being written, or
clears the line being typed, and never the program; Ctrl-D, or `stop` on a line of its own, quits. One Ctrl-C may
arrive as several signals (a wrapper such as `uv run` passes it on, too): those behind the first one are ignored until
the loop listens again.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TypeVar

from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.inference.prompts import valid_text

Result = TypeVar("Result")

STOP = "stop"
"""What ends the loop, on a line of its own."""

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
        """What `work` returns; Ctrl-C ends it by a KeyboardInterrupt, and is ignored after that."""
        try:
            self._is_wanted = True
            return work()
        finally:
            self._is_wanted = False


def use_line_editing() -> None:
    """Let `input` edit lines and recall earlier ones, where Python was built with readline."""
    with contextlib.suppress(ImportError):
        importlib.import_module("readline")


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
                prompt = valid_text(interrupts.during(lambda: input("> ")))
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                print(f"\n({HOW})", file=sys.stderr)
                continue
            except UnicodeDecodeError:
                print("gpt2: that was not valid UTF-8: write it again.", file=sys.stderr)
                continue
            if prompt.strip() == STOP:
                return
            try:
                interrupts.during(functools.partial(write, prompt))
            except KeyboardInterrupt:
                print("\n(ended here)", flush=True)
            except Gpt2UsageError as error:
                print(f"gpt2: {error}", file=sys.stderr)
