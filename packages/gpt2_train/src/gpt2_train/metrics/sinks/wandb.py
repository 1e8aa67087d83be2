"""`--log-to wandb`: Weights & Biases, by its own environment variables (WANDB_PROJECT, WANDB_ENTITY, WANDB_MODE, ...).

A run keeps its id, so it stays one run there however often it resumes. W&B takes no second value of a step; the feed
sends none. Offline (WANDB_MODE=offline) everything lies in the run's folder `wandb/`, for `wandb sync`.
"""

from __future__ import annotations

import html
import os
from typing import ClassVar

from gpt2_train.config.errors import Gpt2Error
from gpt2_train.metrics.sinks import Sink, WatchedRun

PROJECT = "gpt2"


class WeightsAndBiases(Sink):
    """A run of Weights & Biases."""

    name: ClassVar[str] = "wandb"
    package: ClassVar[str] = "wandb"

    def open(self, run: WatchedRun) -> None:
        """Begin the run, or resume it. Raises Gpt2Error where nobody is logged in: it never asks in the terminal."""
        import wandb

        if os.environ.get("WANDB_MODE", "online") == "online" and not wandb.login(prompt=False):
            raise Gpt2Error("nobody is logged in: run `wandb login`, or set WANDB_MODE=offline")
        self._html, self._teardown = wandb.Html, wandb.teardown
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=os.environ.get("WANDB_RUN_ID", run.id),
            name=os.environ.get("WANDB_NAME", run.name),
            resume="allow",
            config=run.settings,
            dir=str(run.folder),
            # The terminal is the training's: nothing of it is captured, nothing is said there.
            settings=wandb.Settings(console="off", silent=True),
        )

    def log(self, step: int, values: dict[str, float]) -> None:
        """Send values."""
        self._run.log(values, step=step)

    def log_text(self, step: int, name: str, text: str) -> None:
        """Send a text."""
        self._run.log({name: self._html(f"<pre>{html.escape(text)}</pre>")}, step=step)

    def close(self) -> None:
        """Wait until all is sent, or written."""
        self._run.finish()
        # `finish` returns before W&B's own process has written its file, which then lacks rows where this one ends.
        self._teardown()
