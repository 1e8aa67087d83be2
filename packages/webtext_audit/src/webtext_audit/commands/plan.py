"""`webtext plan`: hours, memory, disk and what will be left, before a pipeline runs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from command_kit import available_cores, setting, write_json
from command_kit.colours import Paint
from command_kit.settings import Removed, read_toml
from webtext_prep.cli import find_stages
from webtext_prep.commands import Command
from webtext_prep.errors import InputError
from webtext_prep.running.summary import Findings


@dataclass(frozen=True)
class PlanCommand(Command):
    """Say what the stages of a pipeline will take and leave: hours, memory, disk, documents after each stage.

    The stages are the tables of a pipeline's file (--config), or without one all from a list of URLs to token files.
    A few MiB of the input are read, and nothing runs: the figures are those that each stage states before it starts.
    Writes plan.json; `webtext report` compares it with what happened."""

    name: ClassVar[str] = "plan"
    order: ClassVar[int] = 15
    summary: ClassVar[str] = "an input -> what a pipeline will take and leave"
    has_settings_file: ClassVar[bool] = False

    REMOVED: ClassVar[Mapping[str, Removed]] = dict.fromkeys(
        ("sample", "at_least", "at_most"),
        Removed("a plan runs no stage any more; run the pipeline on a short list to see what it drops"),
    )

    input: tuple[str, ...] = setting((), "what the first stage is to read: files, folders, globs", metavar="PATH")
    output: str = setting("", "a folder for plan.json", metavar="DIR")
    config: str = setting("", "the file of a pipeline, whose tables are the stages to plan", metavar="FILE.toml")
    workers: int = setting(0, "tasks at once to plan for, on cores like these; 0 means this machine's cores", ge=0)

    def __post_init__(self) -> None:
        if not self.output:
            raise InputError("webtext plan needs --output DIR: say where plan.json goes.")

    def find(self) -> Findings:
        """Make and write the plan. Raises InputError for input that is not there."""
        # All of this is for this command alone.
        from webtext_audit.plan import NAME, OF_A_LIST, VERSION, make_plan, shown, stages_of

        tables = read_toml(self.config) if self.config else {name: {} for name in OF_A_LIST}
        stages = stages_of(tables, find_stages(), self.config or "the default pipeline")
        given = self.input or stages[0][1].input
        if not given:
            raise InputError("webtext plan needs --input PATH: say what the first stage is to read.")
        workers = self.workers or available_cores()
        plan = make_plan([stage for stage, _ in stages], given, self.config, workers)
        path = Path(self.output) / NAME
        values = {"version": VERSION, **asdict(plan)}
        write_json(path, values)
        return Findings(f"{shown(plan, Paint.of(sys.stdout))}\n\nplan: {path}", values | {"output": str(path)})
