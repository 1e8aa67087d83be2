"""Matters common to processes that run tasks: versions of libraries, the limit on open files, and an end by SIGTERM.

Two versions of an extractor give two texts of a page. A stage names such libraries (`Stage.libraries`); their
versions are part of the key of each task, of the record, and must be the same on all machines of a run.
"""

from __future__ import annotations

import contextlib
import gc
import platform
import resource
import signal
import threading
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from command_kit.parsing import version_of
from webtext_prep.errors import InputError

PACKAGE = "webtext-gpt2-prep"


def versions_of(names: Iterable[str]) -> dict[str, str]:
    """The versions of some distributions, by name; empty for one that is not installed."""
    return {name: version_of(name) or "" for name in sorted(set(names))}


def versions_here(libraries: Iterable[str] = ()) -> dict[str, str]:
    """The versions that have to be the same on every machine, so that a task makes the same bytes."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"Python": python, **versions_of([PACKAGE]), **versions_of(libraries)}


def changed(theirs: Mapping[str, str], ours: Mapping[str, str], where: str = "here") -> str:
    """The libraries whose versions are not the same, for a sentence: `ftfy 6.2 (here it is 6.3)`; empty if none.

    What only one side names is not known of the other, and counts as the same.
    """
    return ", ".join(
        f"{name} {version or 'missing'} ({where} it is {ours[name] or 'missing'})"
        for name, version in theirs.items()
        if ours.get(name, version) != version
    )


def refuse_others(found: Mapping[str, str], wanted: Mapping[str, str], node: str) -> None:
    """Raise InputError for a node of a cluster with other `versions_here` than the machine of the command."""
    if differing := changed(wanted, found, "there"):
        raise InputError(
            f"the node {node} of the cluster has other versions than the machine of this command, {differing}: install "
            "the same on both, as from one container image."
        )


OPEN_FILES = (20_000, 10_240)
"""Numbers of files that a process may want to have open; macOS refuses more than the second on some machines."""


def allow_open_files() -> None:
    """Raise the limit on open files of this process, and of its children, as far as the system lets it.

    A download has one open for each of up to 10,000 connections; many systems allow 1,024, or 256, unless asked.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in OPEN_FILES:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        if soft == resource.RLIM_INFINITY or soft >= most:
            return
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            return


Result = TypeVar("Result")


def run_until_done(main: Coroutine[Any, Any, Result]) -> Result:
    """`asyncio.run`, which SIGTERM ends as Ctrl-C does: by cancelling what runs. Raises KeyboardInterrupt then.

    The handler of the command line raises that wherever the program is just then; in a callback that C code calls, an
    exception is printed and forgotten, and the download went on.
    """
    import asyncio  # which most commands do without

    if not gc.get_freeze_count():
        gc.freeze()  # what was imported stays: to look through it again and again took a fortieth of a download's time
    before = signal.getsignal(signal.SIGTERM)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        return asyncio.run(main)
    is_terminated = False

    async def watched() -> Result:
        task = asyncio.current_task()
        assert task is not None

        def end() -> None:
            nonlocal is_terminated
            is_terminated = True
            task.cancel()

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end)
        return await main

    try:
        result = asyncio.run(watched())
        if is_terminated:  # when nothing was left to cancel
            raise KeyboardInterrupt
        return result
    except asyncio.CancelledError:
        if is_terminated:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
