"""Every stage by its name, for commands that ask a stage once more."""

from __future__ import annotations

from command_kit.plugins import find_plugins
from webtext_prep import stages
from webtext_prep.running.stage import Stage


def known_stages() -> dict[str, type[Stage]]:
    """The stages in `stages/`, and those of the entry-point group `webtext.stages`."""
    return {stage.name: stage for stage in find_plugins(stages, Stage, group="webtext.stages")}
