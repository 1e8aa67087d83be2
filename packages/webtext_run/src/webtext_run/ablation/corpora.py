"""`pipelines/run.py PIPELINE --ablate STAGE.SETTING=A,B,C`: a corpus for each value, and which of them is better.

The steps before the stage are made once, in the pipeline's folder; the steps from it on, up to `[tokenize]`, once for
each value, in `ablation/VALUE` there. All values share the tokenizer that the first one's documents train. The same
pages are held out of each by a hash of their URL. `gpt2 ablate` then compares the token files.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from command_kit import UsageError
from command_kit.colours import BOLD, Paint
from command_kit.settings import checked
from webtext_prep.cli import find_stages
from webtext_run.steps import ArmSteps, Step, as_flags, changed

FOLDER = "ablation"
LEFT_OUT = "none"
"""The value that stands for a setting that is not given."""
HOLD_OUT = "0.1"

Plan = Callable[[Mapping[str, Any], Path, Sequence[str]], list[Step]]
"""The steps of some tables in a folder, of an input."""


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


def plan_arms(
    asked: str, path: Path, tables: Mapping[str, Any], folder: Path, first: Sequence[str], plan: Plan
) -> ArmSteps:
    """The steps for what `--ablate` asks for, wired. Raises UsageError as `parse_varied`, `changed` and `plan` do."""
    varied, stages = parse_varied(asked, tables, path), find_stages()
    names = [name for name in tables if name in stages]
    at, end = names.index(varied.stage), names.index("tokenize")
    head = {name: tables[name] for name in names[:at]}
    shared = plan(head, folder, first) if head else []
    documents = [step.output for step in shared if step.stage is not None and step.stage.writes.made == "documents"]
    tokenizer = next(
        (step.output for step in shared if step.stage is not None and step.stage.writes.made == "tokenizer"), ""
    )
    of_each: dict[str, list[Step]] = {}
    for name, value in varied.arms().items():
        tail = {each: tables[each] for each in names[at : end + 1]}
        changes = [] if value == LEFT_OUT else [f"{varied.stage}.{varied.key}={_written(value)}"]
        if tokenizer and "tokenizer" not in tail["tokenize"]:
            tail = {each: table for each, table in tail.items() if stages[each].writes.made != "tokenizer"}
            changes.append(f"tokenize.tokenizer={tokenizer}")
        if not tail["tokenize"].get("hold_out"):
            changes.append(f"tokenize.hold_out={HOLD_OUT}")
        steps = plan(changed(tail, changes, path), folder / FOLDER / name, documents[-1:] or first)
        steps[-1].tokenizer = steps[-1].tokenizer or tokenizer
        of_each[name] = steps
        made = (step.output for step in steps if step.stage is not None and step.stage.writes.made == "tokenizer")
        tokenizer = tokenizer or next(made, "")
    return ArmSteps(shared, of_each)


def _written(value: str) -> str:
    """A value of `--ablate` as `--set` takes it: `a+b` is a list."""
    return str(value.split("+")) if "+" in value else value


def compare(arms: ArmSteps, folder: Path, *, minutes: float | None, want: Sequence[str], restart: bool) -> int:
    """Compare the token files as `gpt2 ablate` does, and print what was found; returns the exit code.

    Raises UsageError for too little to compare, Gpt2Error where a run fails.
    """
    from gpt2_train.cli import prepare_for_torch
    from webtext_run.ablation.command import AblateSettings, carry_out

    values: dict[str, Any] = {"data": arms.data(), "output": str(folder / FOLDER / "comparison")}
    values |= {"minutes": minutes} if minutes is not None else {}
    values |= {"want": list(want)} if want else {}
    (settings,) = checked([AblateSettings], values, "--ablate")
    words = [word for key, value in values.items() for word in as_flags(key, value)]
    told = Paint.of(sys.stderr)(f"$ gpt2 {shlex.join(['ablate', *words, *(['--restart'] if restart else [])])}", BOLD)
    print(f"\n{told}", file=sys.stderr, flush=True)
    prepare_for_torch()
    return carry_out(settings, restart=restart)
