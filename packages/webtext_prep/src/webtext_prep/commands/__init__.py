"""What a command is that makes no documents: a frozen dataclass of settings, and what it finds.

A stage turns files into files; a command looks at finished folders (`inspect`, `report`, `why`). Each is one file in
`commands/`, found there by the command line: adding or removing one touches nothing else. Its fields are its flags and
its keys in a TOML table; one made with `positional=True` is given by its place.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import ClassVar

from webtext_prep.running.summary import Findings


@dataclass(frozen=True)
class Command(abc.ABC):
    """Settings of one command, and what it does. Subclasses are frozen dataclasses whose fields `setting` makes."""

    name: ClassVar[str]
    """The command."""
    order: ClassVar[int]
    """Its place in `--help`, after all stages."""
    summary: ClassVar[str]
    """One line for `--help`."""
    has_settings_file: ClassVar[bool] = True
    """Whether `--config` names a file with its settings, in its own table; if not, that is a setting of its own."""

    @abc.abstractmethod
    def find(self) -> Findings:
        """Look, and say what was found. Raises InputError for missing input."""
