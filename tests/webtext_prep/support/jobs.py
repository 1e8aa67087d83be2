"""Runs of stages without a command line."""

from collections.abc import Iterable
from typing import Any

from webtext_prep.running.job import Job
from webtext_prep.running.settings import RunSettings
from webtext_prep.running.stage import Stage


def job_of(
    stage: Stage, inputs: Iterable[object], output: object, *, workers: int = 1, state: object = "", **more: Any
) -> Job:
    """A job; `more` are settings that every stage has, or arguments of `Job`."""
    others = {name: more.pop(name) for name in ("engine", "restart", "machine") if name in more}
    settings = RunSettings(tuple(map(str, inputs)), str(output), workers, state=str(state or ""), **more)
    return Job(stage, settings, **others)
