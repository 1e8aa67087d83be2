"""`--log-to tensorboard`: event files in the run's folder, for `tensorboard --logdir RUN`.

Events can't be taken back, but a file may begin with the step from which on what older files say does not count.
TensorBoard reads files in the order of their names, which begin with a time: each is later than that of the file before
it, also within a second, or on a machine whose clock is behind. torch's SummaryWriter does not take a name for its
file.
"""

from __future__ import annotations

import os
import re
import socket
import time
from pathlib import Path
from typing import Any, ClassVar

from command_kit.settings import to_toml
from gpt2_train.config.files import TENSORBOARD_FOLDER
from gpt2_train.metrics.sinks import Sink, WatchedRun


class TensorBoard(Sink):
    """Event files of TensorBoard."""

    name: ClassVar[str] = "tensorboard"
    package: ClassVar[str] = "tensorboard"
    can_forget: ClassVar[bool] = True

    def open(self, run: WatchedRun) -> None:
        """Begin a new event file after the files of earlier processes of the run."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter
        from torch.utils.tensorboard import summary

        self._event, self._summary = Event, summary
        self._writer = RecordWriter(_next_file(run.folder / TENSORBOARD_FOLDER).open("xb"))
        self._add(file_version="brain.Event:2")
        self._add(step=run.first_step, session_log=SessionLog(status=SessionLog.START))
        self._add(step=run.first_step, summary=summary.text("settings", _fenced(to_toml(run.settings))))

    def _add(self, **values: Any) -> None:
        self._writer.write(self._event(wall_time=time.time(), **values).SerializeToString())

    def log(self, step: int, values: dict[str, float]) -> None:
        """Write scalars, at once: unwritten ones would be missing after a kill."""
        for name, value in values.items():
            self._add(step=step, summary=self._summary.scalar(name, value))
        self._writer.flush()

    def log_text(self, step: int, name: str, text: str) -> None:
        """Write a text, as it is: TensorBoard would show it as Markdown."""
        self._add(step=step, summary=self._summary.text(name, _fenced(text)))
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


def _next_file(folder: Path) -> Path:
    """A name that TensorBoard reads after all files in `folder`, which is created if need be."""
    folder.mkdir(exist_ok=True)
    names = [re.match(r"events\.out\.tfevents\.(\d+)\.", path.name) for path in folder.iterdir()]
    latest = max((int(found[1]) for found in names if found), default=0)
    return folder / f"events.out.tfevents.{max(int(time.time()), latest + 1):010}.{socket.gethostname()}.{os.getpid()}"


def _fenced(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
