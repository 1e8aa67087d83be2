"""Sinks, to which `gpt2 train --log-to NAME` also sends what a run measures: one file of this folder each.

A sink is a class below `Sink` with `open`, `log` and `close`; a new file is found by itself, and so is one in any other
folder of this package's `__path__`. `metrics.jsonl` is written whatever happens to them. Keep the package that a sink
needs out of its module's imports: every `gpt2 train` reads all of them.

A sink can be slow, hang or fail: it works in a thread of its own, and the training only puts rows into a queue
(`Feed`). What a sink has taken is remembered in `sinks/NAME.json` in the run's folder. So a run that resumes sends what
was recorded but not sent, be it because its process was killed or because the sink is new, and nothing twice: a sink
that can forget takes the values of steps that are done again, the others keep the first values.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import importlib.util
import queue
import re
import secrets
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from command_kit import hide_credentials, parse_json, write_json
from command_kit.errors import meant
from command_kit.plugins import find_plugins
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.files import METRICS_FILE, SINKS_FOLDER, is_number, read_records
from gpt2_train.metrics.records import measurements


@dataclasses.dataclass(frozen=True)
class WatchedRun:
    """The run whose measurements a sink is to take.

    Attributes:
        folder: where it lies, and where a sink keeps its files.
        id: eight letters and digits, the same whenever the run resumes.
        settings: the run's, as plain values.
        first_step: the step from which on measurements will come; a sink that can forgets what it has from there on.
    """

    folder: Path
    id: str
    settings: dict[str, Any]
    first_step: int

    @property
    def name(self) -> str:
        """The name of the run: that of its folder."""
        return self.folder.absolute().name


class Sink(abc.ABC):
    """One place to send measurements to. All of its methods are called in one thread, which is not the training's.

    Any error in them ends the sending, with a warning; the training goes on.

    Attributes:
        name: what `--log-to` calls it.
        package: the package that it needs, also the name of the extra of gpt2-train that installs it.
        can_forget: whether it can forget measurements, so that measurements of steps done again take their place.
    """

    name: ClassVar[str]
    package: ClassVar[str]
    can_forget: ClassVar[bool] = False

    @abc.abstractmethod
    def open(self, run: WatchedRun) -> None:
        """Begin, or go on with, the record of `run`."""

    @abc.abstractmethod
    def log(self, step: int, values: dict[str, float]) -> None:
        """Take the measurements made after `step` steps."""

    def log_text(self, step: int, name: str, text: str) -> None:  # noqa: B027
        """Take a text that the model wrote after `step` steps; one that can't show texts does nothing."""

    @abc.abstractmethod
    def close(self) -> None:
        """Finish what was begun."""


def sinks() -> dict[str, type[Sink]]:
    """All sinks by name. Raises CommandError for one that can't be imported."""
    return {found.name: found for found in find_plugins(sys.modules[__name__], Sink)}


def split_names(texts: Iterable[str]) -> list[str]:
    """The names in `texts`, each of which may hold several, separated by commas.

    >>> split_names(["tensorboard,wandb", "wandb"])
    ['tensorboard', 'wandb']
    """
    return list(dict.fromkeys(name for text in texts for name in text.replace(" ", "").split(",") if name))


def chosen_sinks(texts: Iterable[str]) -> list[type[Sink]]:
    """The sinks that `--log-to` names. Raises Gpt2UsageError for an unknown one, or one whose package is missing."""
    known = sinks()
    found = []
    for name in split_names(texts):
        if name not in known:
            raise Gpt2UsageError(f"--log-to {name}: no such sink; {meant(name, known)}known are {', '.join(known)}.")
        sink = known[name]
        if importlib.util.find_spec(sink.package) is None:
            raise Gpt2UsageError(
                f"--log-to {name} needs the package {sink.package}: pip install 'webtext-gpt2[{sink.package}]'."
            )
        found.append(sink)
    return found


CLOSE_SECONDS = 60.0
"""Seconds that the end of a run waits for a sink to send the rest."""

TAGS = {
    "loss": "train/loss",
    "valid_loss": "valid/loss",
    "lr": "train/lr",
    "grad_norm": "train/grad_norm",
    "epoch": "progress/epoch",
    "tokens": "progress/tokens",
    "seconds": "progress/seconds",
    "tokens_per_second": "speed/tokens_per_second",
    "tokens_per_second_per_process": "speed/tokens_per_second_per_process",
    "mfu": "speed/mfu",
    "data_wait_share": "speed/data_wait_share",
    "peak_memory_bytes": "speed/peak_memory_bytes",
}
"""The names that sinks give to what a row measured, in groups as their pages show them."""


def tagged(row: dict[str, Any]) -> dict[str, float]:
    """The measurements of a row by the names that sinks give them.

    >>> tagged({"step": 5, "tokens": 50, "valid_loss": 3.5, "valid_tokens": 10})
    {'valid/loss': 3.5, 'progress/tokens': 50.0}
    """
    found = measurements(row)
    found |= {name: float(row[name]) for name in ("tokens", "seconds") if found and is_number(row.get(name))}
    return {TAGS.get(name) or _tag(name): value for name, value in found.items()}


def _tag(name: str) -> str:
    group = "tasks" if "/" in name else "train"
    return f"{group}/{re.sub(r'[^A-Za-z0-9_./-]', '_', name)}"


def text_of(row: dict[str, Any]) -> tuple[str, str] | None:
    """The name and the text of a sample; None for any other row."""
    if row.get("kind") != "sample":
        return None
    prompt, number = str(row.get("prompt", "")), row.get("sample") or 0
    name = re.sub(r"[^\w.-]+", "_", prompt).strip("_")[:40] or "no_prompt"
    return f"samples/{name}{f'_{number}' if number else ''}", f"{prompt}{row.get('text', '')}"


@dataclasses.dataclass
class Sent:
    """Rows that a sink has taken: all rows of steps before `step`, and the first `rows` of that step."""

    id: str
    step: int = -1
    rows: int = 0

    @classmethod
    def read(cls, path: Path) -> Sent:
        """The record that was written; an empty one with a new id where there is none that can be read."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            return cls(**parse_json(path.read_text(encoding="utf-8")))
        return cls(secrets.token_hex(4))


def open_feeds(
    names: Iterable[str], folder: Path, settings: dict[str, Any], first_step: int, say: Callable[[str], object]
) -> list[Feed]:
    """A feed for each sink that `--log-to` names. Raises Gpt2UsageError as `chosen_sinks` does."""
    return [Feed(sink(), folder, settings, first_step, say) for sink in chosen_sinks(names)]


class Feed:
    """Sends the rows of one run to one sink.

    Args:
        sink: where to.
        folder: of the run, whose `metrics.jsonl` holds the rows so far.
        settings: of the run.
        first_step: the step from which on rows will come.
        say: shows a line to the user.
    """

    def __init__(
        self,
        sink: Sink,
        folder: Path,
        settings: dict[str, Any],
        first_step: int,
        say: Callable[[str], object],
    ) -> None:
        self._sink, self._say = sink, say
        self._path = folder / SINKS_FOLDER / f"{sink.name}.json"
        self._sent = Sent.read(self._path)
        if sink.can_forget:
            # From the last step on, of which rows may have been taken that were not noted any more.
            first_step = min(first_step, max(self._sent.step, 0))
            self._sent = Sent(self._sent.id, first_step)
        self._run = WatchedRun(folder, self._sent.id, settings, first_step)
        log = folder / METRICS_FILE
        self._recorded = log.stat().st_size if log.exists() else 0
        self._queue: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._failed = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"sink-{sink.name}", daemon=True)
        self._thread.start()

    def put(self, row: dict[str, Any]) -> None:
        """Send a row, some time soon."""
        if not self._failed.is_set():
            self._queue.put(row)

    def close(self, patience: float = CLOSE_SECONDS) -> None:
        """Wait until all is sent, but not longer than `patience` seconds."""
        self._queue.put(None)
        self._thread.join(patience)
        if self._thread.is_alive():
            self._failed.set()
            self._warn(f"it has not taken everything after {patience:.0f} seconds")

    def _work(self) -> None:
        try:
            # The id before the sink begins: killed in between, the run has the same one there afterwards.
            self._note()
            self._sink.open(self._run)
            try:
                for row in self._unsent(self._rows()):
                    self._send(row)
                self._note()
            finally:
                self._sink.close()
        # Some packages end their caller by SystemExit where nobody is logged in.
        except (Exception, SystemExit) as error:
            if not self._failed.is_set():
                self._failed.set()
                words = " ".join(str(error).split()) or type(error).__name__
                self._warn(words if len(words) <= 300 else f"{words[:300]}...")

    def _warn(self, what: str) -> None:
        self._say(
            f"warning: --log-to {self._sink.name}: {hide_credentials(what).rstrip('.')}. Nothing more is sent there; "
            "metrics.jsonl has everything."
        )

    def _rows(self) -> Iterator[dict[str, Any]]:
        """The measurements that were recorded before, and then new ones."""
        if self._recorded:
            yield from read_records(self._run.folder / METRICS_FILE, self._recorded)
        while (row := self._queue.get()) is not None and not self._failed.is_set():
            yield row

    def _unsent(self, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        step, number = -1, 0
        for row in rows:
            step, number = int(row["step"]), number + 1 if row["step"] == step else 0
            if (step, number) >= (self._sent.step, self._sent.rows):
                self._sent.step, self._sent.rows = step, number + 1
                yield row

    def _send(self, row: dict[str, Any]) -> None:
        # Noted first, so that a kill in between makes a gap and no doubled point; what can forget is sent it again, so
        # that there an older note does no harm.
        if self._queue.empty() or not self._sink.can_forget:
            self._note()
        if values := tagged(row):
            self._sink.log(row["step"], values)
        if (text := text_of(row)) is not None:
            self._sink.log_text(row["step"], *text)

    def _note(self) -> None:
        write_json(self._path, dataclasses.asdict(self._sent), durable=False)
