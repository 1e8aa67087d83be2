"""Running the stages on the sample, each as a process of its own, and what each of them took.

The system says what a process and its children have used: seconds of processor time, and the memory of the
largest of them. `measured.json` is written after each stage. A stage that Ctrl-C or SIGTERM stopped goes on, and what
it had used counts; one that was killed begins again, since nobody knows what it had used.

Starting a stage takes seconds of processor time however little it reads, which must not be multiplied. So one that
reads documents also runs on a twentieth of what it reads of the sample: the difference is the work.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from command_kit import read_json, write_json, write_text
from command_kit.command import PARENT
from command_kit.settings import as_table, to_toml
from webtext_audit.plan.sample import some_rows
from webtext_prep import storage
from webtext_prep.errors import WebtextError
from webtext_prep.running.markers import digest
from webtext_prep.running.settings import Link
from webtext_prep.running.stage import Stage
from webtext_prep.storage import location
from webtext_prep.storage.stores.base import Location

NAME = "measured.json"
ONE_IN = 20
"""Of the rows of a stage's input, for the second, small run."""
FEWEST_ROWS = 10
"""That such a run needs."""
TOKENIZER = ".tokenizer.json"
"""Lies next to token files, and is as large for any corpus."""
BEGUN, STOPPED, DONE = "begun", "stopped", "done"


@dataclass(frozen=True)
class Usage:
    """What one process and its children took.

    Attributes:
        cpu: seconds of processor time.
        wall: seconds.
        memory: bytes of the largest of them, at its most.
    """

    cpu: float = 0.0
    wall: float = 0.0
    memory: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.cpu + other.cpu, self.wall + other.wall, max(self.memory, other.memory))


@dataclass(frozen=True)
class Finished:
    """How one run of a command ended: what it took, its exit code, and the JSON object that it printed."""

    usage: Usage
    code: int
    summary: dict[str, Any] = field(default_factory=dict)
    is_stopped: bool = False


@dataclass(frozen=True)
class Measured:
    """What one stage did with the sample.

    Attributes:
        read, kept: what it counts.
        dropped: by reason.
        facts: what else it told (tokens, bytes).
        usage: what it took.
        bytes_out: of the files that it made.
        small: what the small run took, and of how many rows; None without one.
    """

    read: int
    kept: int
    dropped: dict[str, int]
    facts: dict[str, Any]
    usage: Usage
    bytes_out: int
    small: tuple[Usage, int] | None = None

    @property
    def start(self) -> float:
        """Seconds of processor time before the first row, about; 0 where there was no small run."""
        if self.small is None or self.small[1] >= self.read:
            return 0.0
        usage, rows = self.small
        of_a_row = max(0.0, self.usage.cpu - usage.cpu) / (self.read - rows)
        return max(0.0, usage.cpu - rows * of_a_row)

    @property
    def is_mostly_start(self) -> bool:
        """Whether so little of the time was work that its share is guesswork."""
        return self.small is not None and self.usage.cpu - self.start < 0.25 * self.usage.cpu


Run = Callable[[Sequence[str], bool], Finished]


def run_webtext(arguments: Sequence[str], is_quiet: bool) -> Finished:
    """Run `webtext` with such arguments to its end, or until this process gets a signal to stop, which it passes on.

    What it says of its progress, and at its end, is shown unless `is_quiet`.
    """
    with tempfile.TemporaryFile() as output:
        start = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "webtext_prep", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.DEVNULL if is_quiet else None,
            env=os.environ | {PARENT: str(os.getpid())},
            start_new_session=True,  # Ctrl-C reaches it once: from here
        )
        is_stopped = False
        while True:
            try:
                _, status, used = os.wait4(process.pid, 0)
                break
            except KeyboardInterrupt:
                is_stopped = True
                process.terminate()
        process.returncode = os.waitstatus_to_exitcode(status)
        unit = 1 if sys.platform == "darwin" else 1024
        usage = Usage(used.ru_utime + used.ru_stime, time.monotonic() - start, used.ru_maxrss * unit)
        output.seek(0)
        lines = output.read().splitlines()
    summary = json.loads(lines[-1]) if lines and not process.returncode else {}
    return Finished(usage, process.returncode, summary, is_stopped)


class Measurements:
    """What was measured so far, kept in a folder.

    Args:
        folder: where `measured.json`, the settings, and what small runs read and write lie.
        key: of the sample: with another one nothing that was measured counts.
        run: runs a command.
    """

    def __init__(self, folder: Path, key: str, run: Run) -> None:
        self._folder, self._key, self._run = folder, key, run
        self._entries: dict[str, dict[str, Any]] = read_json(folder / NAME) or {}

    def measure(self, link: Link, before: str) -> tuple[Measured, str]:
        """Run a stage on its part of the sample, unless that is done.

        Args:
            link: the stage.
            before: the key of what it reads, "" for the sample.

        Returns what was measured, and the key of its output. Raises WebtextError where the stage fails, with its exit
        code, and KeyboardInterrupt where this process gets a signal to stop.
        """
        key = digest([self._key, before, settings_of(link), link.run.keep_dropped, link.run.format, link.run.input])
        entry = self._entries.get(link.run.output, {})
        if entry.get("key") != key:
            entry = {"key": key}
        if entry.get("state") == DONE:
            return msgspec.convert(entry["measured"], Measured), key
        settings = self._folder / f"{Path(link.run.output).name}.toml"
        write_text(settings, settings_of(link))
        earlier = Usage(**entry["usage"]) if entry.get("state") == STOPPED else Usage()
        again = ["--resume"] if entry.get("state") == STOPPED else ["--restart"]
        self._write(link, {"key": key, "state": BEGUN})
        done = self._run([*arguments_of(link, settings), *again], False)
        usage = earlier + done.usage
        self._write(link, {"key": key, "state": STOPPED, "usage": asdict(usage)})
        if done.is_stopped or done.code:
            self._raise(link, done)
        measured = self._measured(link, done.summary, usage)
        measured = replace(measured, small=self._small(link, settings, measured.read))
        self._write(link, {"key": key, "state": DONE, "measured": asdict(measured)})
        return measured, key

    def _raise(self, link: Link, done: Finished) -> None:
        if done.is_stopped:
            raise KeyboardInterrupt
        failure = WebtextError(
            f"`webtext {link.name}` ended with exit code {done.code} on the sample: fix what it says above, or give a "
            "larger --at-least if the sample is too small for it, then run the same command again; it resumes from "
            "there."
        )
        failure.exit_code = done.code if done.code > 0 else 1
        raise failure

    def _write(self, link: Link, entry: dict[str, Any]) -> None:
        self._entries[link.run.output] = entry
        write_json(self._folder / NAME, self._entries)

    @staticmethod
    def _measured(link: Link, summary: dict[str, Any], usage: Usage) -> Measured:
        known = {"stage", "in", "added", "out", "dropped", "notes", "problems", "seconds", "resumed", "output"}
        outputs = link.stage.outputs_in(location(link.run.output))
        return Measured(
            summary["in"],
            summary["out"],
            dict(summary.get("dropped", {})),
            {name: value for name, value in summary.items() if name not in known and isinstance(value, int | float)},
            usage,
            sum(storage.sizes([file for file in outputs if not file.name.endswith(TOKENIZER)])),
        )

    def _small(self, link: Link, settings: Path, rows: int) -> tuple[Usage, int] | None:
        """The small run of a stage that reads documents; None where it fails, as nothing of so little was kept."""
        if type(link.stage).accepts is not Stage.accepts or rows < FEWEST_ROWS * ONE_IN:
            return None
        place = self._folder / "small" / "part-00000.jsonl"
        count = some_rows(inputs_of(link), link.stage, ONE_IN, place)
        output = str(self._folder / "small" / Path(link.run.output).name)
        smaller = replace(link, run=replace(link.run, input=(str(place),), output=output))
        if not count or link.is_beside:
            return None
        done = self._run([*arguments_of(smaller, settings), "--restart"], True)
        if done.is_stopped:
            raise KeyboardInterrupt
        return None if done.code else (done.usage, count)


def settings_of(link: Link) -> str:
    """A stage's settings as TOML."""
    return to_toml({link.name: as_table(link.stage)})


def arguments_of(link: Link, settings_file: Path) -> list[str]:
    """The words after `webtext` that run a stage here; `settings_file` is written for it."""
    words = [link.name, "--config", str(settings_file), "--input", *link.run.input, "--workers", "1", "--json"]
    words += [] if link.is_beside else ["--output", link.run.output]
    words += ["--keep-dropped"] if link.run.keep_dropped else []
    return words + (["--format", link.run.format] if link.run.format != link.stage.default_format else [])


def inputs_of(link: Link) -> list[Location]:
    """The files that a stage reads on the sample."""
    return link.stage.find(link.run.input)[0]
