"""`gpt2 evaluate TASK FILE`: measure a model by one of the tasks in `evaluation/tasks/`.

This module opens the model, in any number of processes and from any training layout, and prints what the task found;
the measurements and their flags are the task's own. The flags of the command and of the task are keys of the table
[evaluate] in a TOML file, where `task` names the one that a pipeline measures.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

from command_kit import add_config_flag, add_flags, setting
from command_kit.errors import meant
from command_kit.settings import given_values, make_several, source_name
from gpt2_train.config.errors import Gpt2UsageError, explained_out_of_memory
from gpt2_train.config.loading import load_torch
from gpt2_train.evaluation.tasks import REMOVED as REMOVED_TASKS
from gpt2_train.evaluation.tasks import Task, tasks
from gpt2_train.inference.model import InferenceSettings, print_notes

EXAMPLE = """\
example:
  gpt2 evaluate held-out-loss runs/quickstart/corpus_text_document --checkpoint runs/quickstart/model --split valid
  gpt2 evaluate held-out-loss other_text_document --checkpoint runs/quickstart/model --split all --json
  gpt2 evaluate text-loss letter.txt --checkpoint runs/quickstart/model
  gpt2 evaluate lambada lambada_test.jsonl --checkpoint gpt2-medium
  gpt2 evaluate text-loss letter.txt --checkpoint runs/quickstart/model --tensor-parallel 2 --device cpu
"""

DEFAULT_TASK = "held-out-loss"
"""The task of a table [evaluate] that names none."""

REMOVED = {
    **REMOVED_TASKS,
    "--task": "the task comes first, `gpt2 evaluate TASK FILE`",
    "--data": "give the token files after the task, `gpt2 evaluate held-out-loss PREFIX`",
    "--text": "give the text after the task, `gpt2 evaluate text-loss FILE`",
    "--input": "give the file after the task, `gpt2 evaluate TASK FILE`",
}
"""Tasks and flags that there are no more, and what to use instead."""


@dataclasses.dataclass(frozen=True)
class EvaluateSettings(InferenceSettings):
    """The settings of `gpt2 evaluate` that all tasks share."""

    batch_size: int | None = setting(
        None, "windows scored at once; as many as make 8,192 tokens, or 1,024 on CPU, without it", ge=1
    )
    data_parallel: int = setting(
        1, "processes, or groups of --tensor-parallel of them, that score at the same time", ge=1
    )


def evaluation_of(
    values: Mapping[str, Any], where: str, make: Callable[..., list[Any]] = make_several
) -> tuple[EvaluateSettings, Task]:
    """The settings, and the task with its own, that plain `values` give, as a table [evaluate] holds them.

    `make` is `make_several`, or does the same.
    Raises Gpt2UsageError for an unknown task, else as `make` does.
    """
    known, name = tasks(), values.get("task", DEFAULT_TASK)
    if name not in known:
        raise Gpt2UsageError(f"{where}: no task {name}; {meant(name, known)}known are {', '.join(known)}.")
    settings, task = make([EvaluateSettings, known[name]], {k: v for k, v in values.items() if k != "task"}, where)
    return settings, task


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the tasks of `gpt2 evaluate` and their flags."""
    vars(parser).setdefault("removed", {}).update(REMOVED)
    commands = parser.add_subparsers(dest="task", metavar="TASK", required=True)
    for name, task in tasks().items():
        child = commands.add_parser(
            name, help=task.summary, description=task.summary[0].upper() + task.summary[1:] + "."
        )
        add_flags(child, task)
        add_flags(child, EvaluateSettings)
        add_config_flag(child)
        child.add_argument("--json", action="store_true", help="print the result as one JSON object")
        child.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback of an error"
        )


def run(arguments: argparse.Namespace) -> int:
    """Measure as the flags ask, print the result, return the exit code. Raises Gpt2Error."""
    table, given = given_values(arguments, command="evaluate", config=arguments.config)
    kinds: tuple[Any, ...] = (EvaluateSettings, tasks()[arguments.task])
    names = {field.name for kind in kinds for field in dataclasses.fields(kind)}
    flags = {name: value for name, value in given.items() if name in names}
    make = functools.partial(make_several, flags=flags.keys())
    settings, task = evaluation_of({**table, **flags, "task": arguments.task}, source_name(arguments.config), make)
    return carry_out(settings, task, as_json=arguments.json, debug=arguments.debug)


def carry_out(settings: EvaluateSettings, task: Task, *, as_json: bool, debug: bool = False) -> int:
    """Measure as `settings` and `task` ask, print the result, return the exit code. Raises Gpt2Error."""

    def work() -> int:
        with explained_out_of_memory("lower --batch-size"):
            result = evaluate(settings, task)
        if as_json:
            print(json.dumps(result))
        else:
            # A model of another program has no step.
            head = str(result["checkpoint"]) + (f" at step {result['step']:,}" if result["step"] else "")
            print("\n".join([head, *task.describe(result)]))
        return 0

    command, parallel = ["evaluate", task.name], settings.data_parallel
    return settings.in_processes(command, work, task, data_parallel=parallel, as_json=as_json, debug=debug)


def evaluate(settings: EvaluateSettings, task: Task) -> dict[str, Any]:
    """Measure a checkpoint by `task`; returns what `--json` prints.

    Raises Gpt2UsageError if checkpoint or data are missing, damaged or don't belong together.
    """
    load_torch("reading the model and the texts")
    with settings.opened(settings.data_parallel) as source:
        import torch

        from gpt2_train.inference.scorer import Scorer

        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        scorer = Scorer(source, batch_size=settings.batch_size)
        print_notes(source)
        result = task.run(scorer)
    return {
        "checkpoint": str(source.stored.origin),
        "step": source.stored.step,
        "task": task.name,
        **result,
        "precision": source.precision,
        "seconds": scorer.seconds,
        "tokens_per_second": scorer.tokens / scorer.seconds if scorer.seconds else None,
    }
