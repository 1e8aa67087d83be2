"""`--log-to trackio`: Trackio, by its own environment variables (TRACKIO_DIR, TRACKIO_SPACE_ID, ...).

Trackio knows a run by its name in a project, so the name has the run's id in it. It keeps every value that it is sent,
two of one step as well; the feed sends none twice.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import ClassVar

from gpt2_train.metrics.sinks import Sink, WatchedRun

PROJECT = "gpt2"


class Trackio(Sink):
    """A run of Trackio."""

    name: ClassVar[str] = "trackio"
    package: ClassVar[str] = "trackio"

    def open(self, run: WatchedRun) -> None:
        """Begin the run, or resume it."""
        # What it prints is for people; standard output is the summary's alone.
        with contextlib.redirect_stdout(sys.stderr):
            import trackio

            self._markdown = trackio.Markdown
            self._run = trackio.init(
                project=os.environ.get("TRACKIO_PROJECT", PROJECT),
                name=f"{run.name}-{run.id}",
                config=run.settings,
                resume="allow",
                embed=False,
            )

    def log(self, step: int, values: dict[str, float]) -> None:
        """Send values."""
        self._run.log(dict(values), step=step)

    def log_text(self, step: int, name: str, text: str) -> None:
        """Send a text."""
        fence = "`" * 3
        self._run.log({name: self._markdown(f"{fence}\n{text.replace(fence, '')}\n{fence}")}, step=step)

    def close(self) -> None:
        """Wait until all is sent."""
        with contextlib.redirect_stdout(sys.stderr):
            self._run.finish()
