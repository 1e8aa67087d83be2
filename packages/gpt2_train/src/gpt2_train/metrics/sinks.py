"""Sinks, to which `gpt2 train --log-to NAME` also sends what a run measures: `tensorboard` and `wandb`, at the end.

A sink is a context: it begins, or goes on with, the record of a run, gives a function that takes the measurements made
after a step and the texts that the model wrote, by their names, and finishes. It can be slow, hang or fail: it works in
a thread of its own, and the training only puts rows into a queue (`Feed`). `metrics.jsonl` is written whatever happens.
The packages are imported where they are used.

What a sink has taken is remembered in `sinks/NAME.json` in the run's folder. So a run that resumes sends what was
recorded but not sent, be it because its process was killed or because the sink is new, and nothing twice: TensorBoard
takes the values of steps that are done again, W&B keeps the first values.
"""

from __future__ import annotations

import contextlib
import dataclasses
import html
import importlib.util
import os
import queue
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from command_kit import hide_credentials, parse_json, write_json
from command_kit.errors import meant
from command_kit.settings import to_toml
from gpt2_train.config.errors import Gpt2Error, Gpt2UsageError
from gpt2_train.config.files import METRICS_FILE, SINKS_FOLDER, TENSORBOARD_FOLDER, is_number, read_records
from gpt2_train.metrics.records import measurements


@dataclasses.dataclass(frozen=True)
class WatchedRun:
    """The run whose measurements a sink is to take.

    Attributes:
        folder: where it lies, and where a sink keeps its files.
        id: eight letters and digits, the same whenever the run resumes.
        settings: the run's, as plain values.
        first_step: the step from which on measurements will come; TensorBoard forgets what it has from there on.
    """

    folder: Path
    id: str
    settings: dict[str, Any]
    first_step: int


Send = Callable[[int, dict[str, float], dict[str, str]], object]
"""Takes a step, its measurements and its texts; any error in it ends the sending, with a warning."""

Sink = Callable[[WatchedRun], contextlib.AbstractContextManager[Send]]


def split_names(texts: Iterable[str]) -> list[str]:
    """The names in `texts`, each of which may hold several, separated by commas.

    >>> split_names(["tensorboard,wandb", "wandb"])
    ['tensorboard', 'wandb']
    """
    return list(dict.fromkeys(name for text in texts for name in text.replace(" ", "").split(",") if name))


def chosen_sinks(texts: Iterable[str]) -> list[str]:
    """The sinks that `--log-to` names. Raises Gpt2UsageError for an unknown one, or one whose package is missing."""
    names = split_names(texts)
    for name in names:
        if name not in SINKS:
            raise Gpt2UsageError(f"--log-to {name}: no such sink; {meant(name, SINKS)}known are {', '.join(SINKS)}.")
        if importlib.util.find_spec(name) is None:
            raise Gpt2UsageError(f"--log-to {name} needs the package {name}: pip install 'webtext-gpt2[{name}]'.")
    return names


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


def text_of(row: dict[str, Any]) -> dict[str, str]:
    """The text of a sample by its name; nothing for any other row."""
    if row.get("kind") != "sample":
        return {}
    prompt, number = str(row.get("prompt", "")), row.get("sample") or 0
    name = re.sub(r"[^\w.-]+", "_", prompt).strip("_")[:40] or "no_prompt"
    return {f"samples/{name}{f'_{number}' if number else ''}": f"{prompt}{row.get('text', '')}"}


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


class Feed:
    """Sends the rows of one run to one sink.

    Args:
        name: of the sink.
        folder: of the run, whose `metrics.jsonl` holds the rows so far.
        settings: of the run.
        first_step: the step from which on rows will come.
        say: shows a line to the user.
    """

    def __init__(
        self, name: str, folder: Path, settings: dict[str, Any], first_step: int, say: Callable[[str], object]
    ) -> None:
        self._name, self._say, self._can_forget = name, say, SINKS[name] is tensorboard
        self._path = folder / SINKS_FOLDER / f"{name}.json"
        self._sent = Sent.read(self._path)
        if self._can_forget:
            # From the last step on, of which rows may have been taken that were not noted any more.
            first_step = min(first_step, max(self._sent.step, 0))
            self._sent = Sent(self._sent.id, first_step)
        self._run = WatchedRun(folder, self._sent.id, settings, first_step)
        log = folder / METRICS_FILE
        self._recorded = log.stat().st_size if log.exists() else 0
        self._queue: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._failed = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"sink-{name}", daemon=True)
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
            with SINKS[self._name](self._run) as send:
                for row in self._unsent(self._rows()):
                    # Noted first, so that a kill in between makes a gap and no doubled point; what can forget is sent
                    # it again, so that there an older note does no harm.
                    if self._queue.empty() or not self._can_forget:
                        self._note()
                    values, texts = tagged(row), text_of(row)
                    if values or texts:
                        send(row["step"], values, texts)
                self._note()
        # Some packages end their caller by SystemExit where nobody is logged in.
        except (Exception, SystemExit) as error:
            if not self._failed.is_set():
                self._failed.set()
                words = " ".join(str(error).split()) or type(error).__name__
                self._warn(words if len(words) <= 300 else f"{words[:300]}...")

    def _warn(self, what: str) -> None:
        self._say(
            f"warning: --log-to {self._name}: {hide_credentials(what).rstrip('.')}. Nothing more is sent there; "
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

    def _note(self) -> None:
        write_json(self._path, dataclasses.asdict(self._sent), durable=False)


@contextlib.contextmanager
def tensorboard(run: WatchedRun) -> Iterator[Send]:
    """A new event file in the run's folder, for `tensorboard --logdir RUN`.

    Events can't be taken back, but a file may begin with the step from which on what older files say does not count.
    torch's SummaryWriter does not take a name for its file.
    """
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.summary.writer.record_writer import RecordWriter
    from torch.utils.tensorboard import summary

    writer = RecordWriter(_next_file(run.folder / TENSORBOARD_FOLDER).open("xb"))

    def add(**values: Any) -> None:
        writer.write(Event(wall_time=time.time(), **values).SerializeToString())

    def send(step: int, values: dict[str, float], texts: dict[str, str]) -> None:
        for name, value in values.items():
            add(step=step, summary=summary.scalar(name, value))
        for name, text in texts.items():
            add(step=step, summary=summary.text(name, _as_it_is(text)))
        writer.flush()  # Unwritten ones would be missing after a kill.

    try:
        add(file_version="brain.Event:2")
        add(step=run.first_step, session_log=SessionLog(status=SessionLog.START))
        add(step=run.first_step, summary=summary.text("settings", _as_it_is(to_toml(run.settings))))
        yield send
    finally:
        writer.close()


def _next_file(folder: Path) -> Path:
    """A name that TensorBoard reads after all files in `folder`, which is created if need be.

    It reads them in the order of their names, which begin with a time: each is later than that of the file before it,
    also within a second, or on a machine whose clock is behind.
    """
    folder.mkdir(exist_ok=True)
    names = [re.match(r"events\.out\.tfevents\.(\d+)\.", path.name) for path in folder.iterdir()]
    latest = max((int(found[1]) for found in names if found), default=0)
    return folder / f"events.out.tfevents.{max(int(time.time()), latest + 1):010}.{socket.gethostname()}.{os.getpid()}"


def _as_it_is(text: str) -> str:
    """Markdown that shows `text`."""
    return "\n".join(f"    {line}" for line in text.splitlines())


@contextlib.contextmanager
def wandb(run: WatchedRun) -> Iterator[Send]:
    """A run of Weights & Biases, by its own environment variables (WANDB_PROJECT, WANDB_ENTITY, WANDB_MODE, ...).

    It keeps its id, so it stays one run there however often it resumes. W&B takes no second value of a step; the feed
    sends none. Offline (WANDB_MODE=offline) everything lies in the run's folder `wandb/`, for `wandb sync`.
    Raises Gpt2Error where nobody is logged in: it never asks in the terminal.
    """
    import wandb

    if os.environ.get("WANDB_MODE", "online") == "online" and not wandb.login(prompt=False):
        raise Gpt2Error("nobody is logged in: run `wandb login`, or set WANDB_MODE=offline")
    record = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "gpt2"),
        id=os.environ.get("WANDB_RUN_ID", run.id),
        name=os.environ.get("WANDB_NAME", run.folder.absolute().name),
        resume="allow",
        config=run.settings,
        dir=str(run.folder),
        # The terminal is the training's: nothing of it is captured, nothing is said there.
        settings=wandb.Settings(console="off", silent=True),
    )

    def send(step: int, values: dict[str, float], texts: dict[str, str]) -> None:
        shown = {name: wandb.Html(f"<pre>{html.escape(text)}</pre>") for name, text in texts.items()}
        record.log(values | shown, step=step)

    try:
        yield send
    finally:
        record.finish()
        # `finish` returns before W&B's own process has written its file, which then lacks rows where this one ends.
        wandb.teardown()


SINKS: dict[str, Sink] = {"tensorboard": tensorboard, "wandb": wandb}
"""By the names that `--log-to` knows, which are also those of the packages and extras that they need."""
