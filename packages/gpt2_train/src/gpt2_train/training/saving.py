"""Saving the checkpoints of a run: in the background while training goes on, waited for at its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from gpt2_train.checkpoint.async_save import BackgroundSaver, Saved
from gpt2_train.checkpoint.save import Checkpointer
from gpt2_train.config.errors import Gpt2Error
from gpt2_train.config.files import CHECKPOINTS_FOLDER
from gpt2_train.distributed.collectives import group_for_a_thread
from gpt2_train.training.setup import Run


class Saver:
    """Saves the checkpoints of a run; all processes call it together.

    Args:
        run: the run.
        tensors: `model.<name>` and `optimizer.<name>`, plain or sharded.
        on_saved: called for each checkpoint once it is complete.

    Raises Gpt2Error if there is no memory for the copy that is saved in the background.
    """

    def __init__(self, run: Run, tensors: Mapping[str, Tensor], on_saved: Callable[[Saved], object]) -> None:
        self.run, self.tensors, self.on_saved = run, tensors, on_saved
        self.checkpointer = Checkpointer(
            run.folder / CHECKPOINTS_FOLDER,
            config=run.config,
            tokenizer=run.tokenizer,
            settings=run.identity,
            data=run.data,
            keep=run.settings.keep_checkpoints,
        )
        self.background = self._background_saver() if run.saves_in_background else None

    def _background_saver(self) -> BackgroundSaver:
        self.checkpointer.group = group_for_a_thread(self.run.settings.distributed_timeout)
        return BackgroundSaver(self.checkpointer, self.tensors, self.on_saved)

    @property
    def has_failed(self) -> bool:
        """Whether a save in the background has failed; processes may notice this at different moments."""
        return self.background is not None and self.background.has_failed

    def save(self, *, goes_on: bool, **content: Any) -> None:
        """Save a checkpoint of `content`, the arguments of `Checkpointer.save`; wait for it unless training `goes_on`.

        Raises Gpt2Error if it, or the one before it, can't be written.
        """
        if goes_on and self.background is None and self.run.settings.async_checkpoint:
            try:
                self.background = self._background_saver()
            except Gpt2Error as error:  # No memory for it: what was learned so far is saved while training waits.
                self.run.world.say(f"warning: {error}")
        if goes_on and self.background is not None:
            self.background.start(**content)
            return
        self.finish()
        begin = time.monotonic()
        folder = self.checkpointer.save(self.tensors, **content)
        seconds = time.monotonic() - begin
        self.on_saved(Saved(content["step"], folder, seconds, seconds))

    def poll(self) -> None:
        """Call `on_saved` if a save in the background has ended well."""
        if self.background is not None:
            self.background.poll()

    def finish(self) -> None:
        """Wait for a save in the background. Raises Gpt2Error if it failed."""
        if self.background is not None:
            self.background.finish()

    def close(self) -> None:
        """Free the memory of the copy; no save may be running."""
        if self.background is not None:
            self.background.close()
