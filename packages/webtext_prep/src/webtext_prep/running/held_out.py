"""Stages that hold pages out of training: what they keep out is written by a run of its own over the same input.

So it has a record, a state and a lineage like any output, and every command that looks at one finds its way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from command_kit import setting
from webtext_prep.errors import InputError
from webtext_prep.running.stage import Stage
from webtext_prep.urls.urls import HELD_OUT

_GROUP = "held-out pages"


@dataclass(frozen=True)
class HoldsOut(Stage):
    """A stage that keeps a share of the pages out of its output, and writes them to `OUTPUT_held_out`."""

    hold_out: float = setting(
        0.0,
        "keep this share of the pages out of training, chosen by a hash of the URL alone: they go to OUTPUT_held_out",
        ge=0,
        lt=1,
        group=_GROUP,
    )
    only_held_out: bool = setting(
        False, "write only the pages that --hold-out SHARE chooses, to the output that is named", group=_GROUP
    )

    def __post_init__(self) -> None:
        if self.only_held_out and not self.hold_out:
            raise InputError("--only-held-out needs --hold-out SHARE: say which share of the pages that is.")

    def companions(self, given: Sequence[str], output: str) -> list[tuple[Stage, Sequence[str], str]]:
        """The run that writes held-out pages."""
        if not self.hold_out or self.only_held_out:
            return []
        return [(replace(self, only_held_out=True), given, f"{output.rstrip('/')}_{HELD_OUT}")]
