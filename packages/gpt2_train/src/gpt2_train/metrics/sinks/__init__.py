"""Where `gpt2 train --log-to NAME` also sends what a run measures, one file of this folder each.

A sink is a class below `Sink` with `open`, `log` and `close`; a new file is found by itself, and so is one in any other
folder of this package's `__path__`. `metrics.jsonl` is written whatever happens to them. Keep the package that a sink
needs out of its module's imports: every `gpt2 train` reads all of them.
"""

from __future__ import annotations

import abc
import dataclasses
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from command_kit.plugins import find_plugins
from gpt2_train.config.errors import Gpt2UsageError


@dataclasses.dataclass(frozen=True)
class WatchedRun:
    """The run whose measurements a sink is to take.

    Attributes:
        folder: where it lies, and where a sink keeps its files.
        id: eight letters and digits, the same whenever the run resumes.
        settings: those of the run, as plain values.
        first_step: the step from which on measurements will come; a sink that can forgets what it has from there on.
    """

    folder: Path
    id: str
    settings: dict[str, Any]
    first_step: int

    @property
    def name(self) -> str:
        """How the run is called: the name of its folder."""
        return self.folder.absolute().name


class Sink(abc.ABC):
    """One place to send measurements to. All of its methods are called in one thread, which is not the training's.

    Whatever they raise ends the sending, with a warning; the training goes on.

    Attributes:
        name: what `--log-to` calls it.
        package: the package that it needs, also the name of the extra of gpt2-train that installs it.
        can_forget: whether it can forget measurements, so that those of steps done again take their place.
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

    >>> split_names(["tensorboard,wandb", "trackio"])
    ['tensorboard', 'wandb', 'trackio']
    """
    return list(dict.fromkeys(name for text in texts for name in text.replace(" ", "").split(",") if name))


def chosen_sinks(texts: Iterable[str]) -> list[type[Sink]]:
    """The sinks that `--log-to` names. Raises Gpt2UsageError for an unknown one, or one whose package is missing."""
    known = sinks()
    found = []
    for name in split_names(texts):
        if name not in known:
            raise Gpt2UsageError(f"--log-to {name}: no such sink; known are {', '.join(known)}.")
        sink = known[name]
        if importlib.util.find_spec(sink.package) is None:
            raise Gpt2UsageError(
                f"--log-to {name} needs the package {sink.package}: pip install 'gpt2-train[{sink.package}]'."
            )
        found.append(sink)
    return found
