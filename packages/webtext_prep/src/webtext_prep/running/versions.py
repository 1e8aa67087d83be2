"""Which versions of other packages a run depends on: those that shape what documents say.

Two versions of an extractor give two texts of a page. A stage names such libraries (`Stage.libraries_used`); their
versions are part of the key of each task, of the record, and must be the same on all machines of a run.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping

from command_kit.parsing import version_of
from webtext_prep.errors import InputError

PACKAGE = "webtext-prep"


def versions_of(names: Iterable[str]) -> dict[str, str]:
    """The versions of some distributions, by name; empty for one that is not installed."""
    return {name: version_of(name) or "" for name in sorted(set(names))}


def versions_here(libraries: Iterable[str] = ()) -> dict[str, str]:
    """What has to be the same on every machine, so that a task makes the same bytes."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"Python": python, **versions_of([PACKAGE]), **versions_of(libraries)}


def changed(theirs: Mapping[str, str], ours: Mapping[str, str]) -> str:
    """The libraries whose versions are not the same, for a sentence: `ftfy 6.2 (here it is 6.3)`; empty if none.

    What only one side names is not known of the other, and counts as the same.
    """
    return ", ".join(
        f"{name} {version or 'missing'} (here it is {ours[name] or 'missing'})"
        for name, version in theirs.items()
        if ours.get(name, version) != version
    )


def refuse_others(found: Mapping[str, str], wanted: Mapping[str, str], node: str) -> None:
    """Raise InputError for a node of a cluster with other `versions_here` than the machine of the command."""
    differing = [name for name in wanted if found.get(name) != wanted[name]]
    if differing:
        theirs, ours = (_described({name: side.get(name, "") for name in differing}) for side in (found, wanted))
        raise InputError(
            f"the node {node} of the cluster has {theirs}, and the machine of this command {ours}: install the same on "
            "both, as from one container image."
        )


def _described(versions: Mapping[str, str]) -> str:
    return " and ".join(f"{name} {version}" if version else f"no {name}" for name, version in versions.items())
