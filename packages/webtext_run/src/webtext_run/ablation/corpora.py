"""`pipelines/run.py PIPELINE --ablate STAGE.SETTING=A,B,C`: a corpus for each value, and which of them is better.

The steps before the stage are made once, in the pipeline's folder; the steps from it on, up to `[tokenize]`, once for
each value, in `ablation/VALUE` there. All values share the tokenizer that the first one's documents train. The same
pages are held out of each by a hash of their URL. `gpt2 ablate` then compares the token files.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from command_kit import UsageError
from command_kit.colours import BOLD, Paint
from command_kit.command import PARENT
from webtext_prep.cli import find_stages
from webtext_prep.documents.folders.stage_record import TOKENS_SUFFIX
from webtext_run.steps import PipelineStep, change_settings

FOLDER = "ablation"
LEFT_OUT = "none"
"""The value that stands for a setting that is not given."""
HOLD_OUT = "0.1"

Plan = Callable[[Mapping[str, Any], Path, Sequence[str], Mapping[str, Sequence[str]]], list[PipelineStep]]
"""The steps of some tables in a folder, of an input, with flags for the commands of these tables."""


@dataclasses.dataclass(frozen=True)
class Varied:
    """The target that `--ablate` names.

    Attributes:
        stage: the command.
        key: its setting.
        values: the ones to compare, the baseline first; a list is written `a+b`.
    """

    stage: str
    key: str
    values: tuple[str, ...]

    def arms(self) -> dict[str, str]:
        """The values by the names of their folders."""
        return {re.sub(r"[^\w.-]+", "-", value): value for value in self.values}


def parse_varied(text: str, tables: Mapping[str, Any], path: Path) -> Varied:
    """The target that `--ablate` names. Raises UsageError where that is no setting of a stage before `[tokenize]`."""
    place, _, values = text.partition("=")
    stage, _, key = place.partition(".")
    found = Varied(stage, key, tuple(values.split(",")))
    if not key or len(found.arms()) < 2 or len(found.arms()) < len(found.values):
        raise UsageError(
            f"--ablate {text} is not STAGE.SETTING=A,B with two values or more, such as "
            "clean.rules=none,gopher-quality."
        )
    stages = find_stages()
    names = [name for name in tables if name in stages]
    if "tokenize" not in names:
        raise UsageError(f"--ablate compares token files, and {path} has no [tokenize].")
    before = names[: names.index("tokenize")]
    if stage not in before or stages[stage].writes.made == "tokenizer":
        raise UsageError(f"--ablate {text}: it should be a setting of a stage before [tokenize]: {', '.join(before)}.")
    if LEFT_OUT in found.values and key in tables[stage]:
        raise UsageError(
            f"--ablate {text}: {path} sets {key} in [{stage}], so that none would be that: remove it there."
        )
    return found


@dataclasses.dataclass
class Arms:
    """The steps of an ablation.

    Attributes:
        shared: the steps before the stage.
        of_each: the steps of each value, by its name.
    """

    shared: list[PipelineStep]
    of_each: dict[str, list[PipelineStep]]

    def data(self) -> list[str]:
        """Each arm's token files, as `gpt2 ablate --data` takes them."""
        return [f"{name}={steps[-1].output}{TOKENS_SUFFIX}" for name, steps in self.of_each.items()]


def plan_arms(
    varied: Varied, path: Path, tables: Mapping[str, Any], folder: Path, first: Sequence[str],
    flags: Mapping[str, Sequence[str]], plan: Plan,
) -> Arms:  # fmt: skip
    """The steps, wired. Raises UsageError as `change_settings` and `plan` do."""
    stages = find_stages()
    names = [name for name in tables if name in stages]
    at, end = names.index(varied.stage), names.index("tokenize")
    head = {name: tables[name] for name in names[:at]}
    shared = plan(head, folder, first, flags) if head else []
    documents = [step.output for step in shared if step.stage is not None and step.stage.writes.made == "documents"]
    tokenizer = next(
        (step.output for step in shared if step.stage is not None and step.stage.writes.made == "tokenizer"), ""
    )
    of_each: dict[str, list[PipelineStep]] = {}
    for name, value in varied.arms().items():
        tail = copy.deepcopy({each: tables[each] for each in names[at : end + 1]})
        changes = [] if value == LEFT_OUT else [f"{varied.stage}.{varied.key}={_written(value)}"]
        if tokenizer and "tokenizer" not in tail["tokenize"]:
            tail = {each: table for each, table in tail.items() if stages[each].writes.made != "tokenizer"}
            changes.append(f"tokenize.tokenizer={tokenizer}")
        if not tail["tokenize"].get("hold_out"):
            changes.append(f"tokenize.hold_out={HOLD_OUT}")
        added = change_settings(tail, changes, path)
        told = {each: [*flags.get(each, ()), *added.get(each, ())] for each in {*flags, *added}}
        steps = plan(tail, folder / FOLDER / name, documents[-1:] or first, told)
        steps[-1].tokenizer = steps[-1].tokenizer or tokenizer
        of_each[name] = steps
        made = (step.output for step in steps if step.stage is not None and step.stage.writes.made == "tokenizer")
        tokenizer = tokenizer or next(made, "")
    return Arms(shared, of_each)


def _written(value: str) -> str:
    """A value of `--ablate` as `--set` takes it: `a+b` is a list."""
    return str(value.split("+")) if "+" in value else value


def compare(arms: Arms, folder: Path, *, minutes: float | None, want: Sequence[str], restart: bool) -> int:
    """Run `gpt2 ablate` on the token files; its exit code, or 130 where it was interrupted."""
    words = ["ablate", "--data", *arms.data(), "--output", str(folder / FOLDER / "comparison")]
    words += ["--minutes", f"{minutes:g}"] if minutes is not None else []
    words += ["--want", *want] if want else []
    words += ["--restart"] if restart else []
    told = Paint.of(sys.stderr)(f"$ gpt2 {shlex.join(words)}", BOLD)
    print(f"\n{told}", file=sys.stderr, flush=True)
    environment = os.environ | {PARENT: str(os.getpid())}
    process = subprocess.Popen([sys.executable, "-m", "gpt2_train", *words], env=environment)
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.wait()
        raise
