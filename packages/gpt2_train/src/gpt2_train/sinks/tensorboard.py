"""`--log-to tensorboard`: event files in the run's folder, for `tensorboard --logdir RUN`.

Events can't be taken back, but a file may begin with the step from which on what older files say does not count.
"""

from __future__ import annotations

from typing import ClassVar

from command_kit.settings import to_toml
from gpt2_train.sinks import Sink, WatchedRun

FOLDER = "tensorboard"


class TensorBoard(Sink):
    """Event files of TensorBoard."""

    name: ClassVar[str] = "tensorboard"
    package: ClassVar[str] = "tensorboard"
    can_forget: ClassVar[bool] = True

    def open(self, run: WatchedRun) -> None:
        """Begin a new event file behind those of earlier processes of the run."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run.folder / FOLDER), purge_step=run.first_step)
        self._writer.add_text("settings", _fenced(to_toml(run.settings)), run.first_step)

    def log(self, step: int, values: dict[str, float]) -> None:
        """Write scalars, at once: what is not on disk when a process is killed would be missing."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def log_text(self, step: int, name: str, text: str) -> None:
        """Write a text, as it is: TensorBoard would show it as Markdown."""
        self._writer.add_text(name, _fenced(text), step)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


def _fenced(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
