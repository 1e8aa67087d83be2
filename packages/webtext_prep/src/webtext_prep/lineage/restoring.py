"""From the record of a step back to its stage with its settings, as it was run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from command_kit import CommandError
from command_kit.settings import make_settings
from webtext_prep.errors import InputError
from webtext_prep.lineage.steps import Step
from webtext_prep.running import versions
from webtext_prep.running.stage import Stage


def stage_of(step: Step, known: Mapping[str, type[Stage]]) -> Stage:
    """The stage with the settings of a step; those that its output does not depend on have their defaults.

    Raises InputError where it can no longer be made: an unknown stage, another version of it, a file of rules that is
    gone or that has changed since, another version of a library.
    """
    found = known.get(step.stage)
    if found is None:
        raise InputError(f"{step.name} was made by `webtext {step.stage}`, which is not installed here.")
    if step.record.get("version", 1) != found.version:
        raise InputError(
            f"{step.name} was made by version {step.record.get('version', 1)} of `webtext {step.stage}`, and here is "
            f"version {found.version}: make it again."
        )
    names = {entry.name for entry in dataclasses.fields(found)}
    settings = {name: value for name, value in step.record["settings"].items() if name in names}
    try:
        stage = make_settings(found, settings, f"the record of {step.name}")
        identity = stage.identity()
    except (CommandError, OSError) as error:
        raise InputError(f"`webtext {step.stage}` can't judge as it did for {step.name}: {error}") from error
    changed = [name for name, value in identity.items() if step.record["settings"].get(name) != value]
    if changed:
        raise InputError(f"{step.name} was made with another {', '.join(changed)} than what is here now.")
    if others := versions.changed(step.record.get("libraries", {}), versions.versions_of(stage.libraries_used())):
        raise InputError(f"{step.name} was made with {others}: install that version, or make it again.")
    return stage
