"""`webtext plan`: hours, memory, disk and what will be left, from a sample of the real input that runs through it."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from command_kit import available_cores, setting, write_json
from command_kit.colours import Paint
from command_kit.settings import read_toml
from webtext_prep.cli import find_stages
from webtext_prep.commands.base import Command
from webtext_prep.errors import InputError
from webtext_prep.running.summary import Findings


@dataclass(frozen=True)
class PlanCommand(Command):
    """Run a sample of the input through all stages, and say what the whole of it will take and leave: hours, memory,
    disk, documents after each stage. Pages of the sample are really fetched, at the pace that the settings say.

    The stages are the tables of a pipeline's file (--config), or without one all from a list of URLs to token files.
    Of lists and document shards rows are chosen by the hash of their URLs, of anything else whole files. Writes
    plan.json; `webtext report` compares it with what happened. The same command goes on with the stage that was
    interrupted."""

    name: ClassVar[str] = "plan"
    order: ClassVar[int] = 15
    summary: ClassVar[str] = "a sample of the input -> what a pipeline will take and leave"
    has_settings_file: ClassVar[bool] = False

    input: tuple[str, ...] = setting((), "what the first stage is to read: files, folders, globs", metavar="PATH")
    output: str = setting("", "a folder for plan.json, the sample, and what the stages make of it", metavar="DIR")
    config: str = setting("", "the file of a pipeline, whose tables are the stages to plan", metavar="FILE.toml")
    sample: float = setting(1.0, "size of the sample, in per cent of the input", metavar="PERCENT", gt=0, le=100)
    at_least: int = setting(1_000, "URLs or documents in the sample, or all where the input has fewer", ge=1)
    at_most: int = setting(20_000, "URLs or documents of the sample, however large the input is", ge=1)
    workers: int = setting(0, "tasks at once to plan for, on cores like these; 0 means this machine's cores", ge=0)

    def __post_init__(self) -> None:
        if not self.output:
            raise InputError("webtext plan needs --output DIR: say where plan.json and the sample go.")
        if self.at_least > self.at_most:
            raise InputError(f"--at-least {self.at_least:,} is more than --at-most {self.at_most:,}: give less.")

    def find(self) -> Findings:
        """Sample, run, multiply. Raises InputError for input that is not there; WebtextError where a stage fails."""
        # All of this is for this command alone.
        from webtext_audit.plan.plan_file import NAME, VERSION, shown
        from webtext_audit.plan.planner import OF_A_LIST, make_plan, stages_of

        tables = read_toml(self.config) if self.config else {name: {} for name in OF_A_LIST}
        where = self.config or "the default pipeline"
        stages = stages_of(tables, find_stages(), where)
        given = self.input or stages[0][1].input
        if not given:
            raise InputError("webtext plan needs --input PATH: say what the first stage is to read.")
        plan = make_plan(
            stages,
            Path(self.output),
            given,
            self.config,
            self.workers or available_cores(),
            share=self.sample / 100,
            at_least=self.at_least,
            at_most=self.at_most,
        )
        path = Path(self.output) / NAME
        values = {"version": VERSION, **asdict(plan)}
        write_json(path, values)
        return Findings(f"{shown(plan, Paint.of(sys.stdout))}\n\nplan: {path}", values | {"output": str(path)})
