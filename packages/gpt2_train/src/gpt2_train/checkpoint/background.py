"""Saving in the background: training waits for a copy of its tensors, a thread writes and seals the checkpoint.

The thread does what a save in the foreground does, in the same order, so that a crash at any moment leaves the same
checkpoints; its communication has a group of its own. One save runs at a time: the next one waits for it. All processes
start and finish saves together, and one that fails does so on all of them.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from gpt2_train.checkpoint.saving import Checkpointer
from gpt2_train.checkpoint.staging import StagingArea
from gpt2_train.collectives import SHARED, keep_on_all_ranks, on_all_ranks
from gpt2_train.errors import Gpt2Error


@dataclasses.dataclass(frozen=True)
class Saved:
    """A checkpoint that is complete under its name.

    Attributes:
        step: optimizer steps taken.
        folder: where it is.
        seconds: from the beginning of the save to its end.
        waited: how many of them training waited.
    """

    step: int
    folder: Path
    seconds: float
    waited: float


class BackgroundSaver:
    """Saves the same tensors again and again, each time from a copy; all processes make one and call it together.

    Args:
        checkpointer: writes the checkpoints; its `group` must be one for a thread.
        tensors: `model.<name>` and `optimizer.<name>`, plain or sharded.
        on_saved: called for each checkpoint once it is complete, from `poll`, `start` or `finish`.

    Raises Gpt2Error, on all processes, if there is no memory for the copy.
    """

    def __init__(
        self, checkpointer: Checkpointer, tensors: Mapping[str, Tensor], on_saved: Callable[[Saved], object]
    ) -> None:
        self._checkpointer, self._tensors, self._on_saved = checkpointer, tensors, on_saved
        self._staging = keep_on_all_ranks(lambda: _room_for(tensors))
        self._thread: threading.Thread | None = None
        self._outcome: Saved | BaseException | None = None

    @property
    def has_failed(self) -> bool:
        """Whether the save that was started last has failed; processes may notice this at different moments."""
        return isinstance(self._outcome, BaseException)

    def start(self, *, step: int, samples: int, state: Mapping[str, Any]) -> None:
        """Copy the tensors as they are now and begin to save them; arguments as those of `Checkpointer.save`.

        Waits for the save before it. Raises what that one failed with.
        """
        begin = time.monotonic()
        self.finish()
        wait_for_copies = self._staging.copy()
        waited = time.monotonic() - begin

        def work() -> None:
            try:
                on_all_ranks(wait_for_copies, self._checkpointer.group)
                folder = self._checkpointer.save(
                    self._tensors, step=step, samples=samples, state=state, copies=self._staging.copies
                )
                self._outcome = Saved(step, folder, time.monotonic() - begin, waited)
            except BaseException as error:
                self._outcome = error

        # A daemon: a run that is interrupted ends at once, and what is half written has no name yet.
        self._thread = threading.Thread(target=work, name="checkpoint", daemon=True)
        self._thread.start()

    def poll(self) -> None:
        """Tell `on_saved` if a save has ended well. A failure is left for `finish`, which all processes call."""
        if self._thread is not None and not self._thread.is_alive() and not self.has_failed:
            self.finish()

    def finish(self) -> None:
        """Wait for the save that was started last, if it has not ended. Raises Gpt2Error if it failed."""
        if self._thread is None:
            return
        self._thread.join()
        outcome, self._thread, self._outcome = self._outcome, None, None
        if isinstance(outcome, BaseException):
            outcome.add_note(SHARED)
            raise outcome
        assert outcome is not None
        self._on_saved(outcome)

    def close(self) -> None:
        """Give the memory of the copy back; no save may be running."""
        self._staging.close()


def _room_for(tensors: Mapping[str, Tensor]) -> StagingArea:
    try:
        return StagingArea(tensors)
    except (OSError, MemoryError) as error:
        raise Gpt2Error(
            "no memory on this machine for the copy that checkpoints are written from, 12 bytes for each parameter: "
            "give --no-async-checkpoint."
        ) from error
