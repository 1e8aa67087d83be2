"""`gpt2 evaluate`: measure a checkpoint by one of the tasks in `evaluation/`, held-out loss unless another is named.

This module opens the model, in any number of processes and from any training layout, and prints what the task found;
the measurements and their flags are the task's own. The settings of all tasks are flags of the one command, and
keys of the table [evaluate] in a TOML file.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import typing
from typing import Any

from command_kit import add_config_flag, add_flags, setting, settings_from
from gpt2_train.config.errors import Gpt2UsageError, explained_out_of_memory
from gpt2_train.config.loading import load_torch
from gpt2_train.config.settings import given
from gpt2_train.evaluation.tasks import Task, tasks
from gpt2_train.inference.model import ModelSettings, print_notes

EXAMPLE = """\
example:
  gpt2 evaluate --checkpoint runs/first --data corpus_text_document --split valid
  gpt2 evaluate --checkpoint runs/first --data other_text_document --split all --json
  gpt2 evaluate --checkpoint runs/first --text letter.txt
  gpt2 evaluate --checkpoint gpt2-medium --task lambada --input lambada_test.jsonl
  gpt2 evaluate --checkpoint runs/first --text letter.txt --tensor-parallel 2 --device cpu
"""


DEFAULT_TASK = "held-out-loss"


@dataclasses.dataclass(frozen=True)
class EvaluateSettings(ModelSettings):
    """The settings of `gpt2 evaluate` but for its task's. Raises Gpt2UsageError as `make_task` does."""

    task: str = setting(
        "",
        f"a task of the list below; without it the one that the other settings belong to, else {DEFAULT_TASK}",
        choices=tasks,
    )
    batch_size: int | None = setting(
        None, "windows scored at once; as many as make 8,192 tokens, or 1,024 on CPU, without it", ge=1
    )
    data_parallel: int = setting(
        1, "processes, or groups of --tensor-parallel of them, that score at the same time", ge=1
    )

    def __post_init__(self) -> None:
        self.make_task()

    @property
    def task_name(self) -> str:
        """The task asked for by name, else the only one that has all the settings given that belong to tasks."""
        if self.task:
            return self.task
        of_tasks = {name: _field_names(task) for name, task in tasks().items()}
        asked = given(self) & set().union(*of_tasks.values())
        fitting = [name for name, own in of_tasks.items() if asked <= own]
        return fitting[0] if len(fitting) == 1 else DEFAULT_TASK

    def make_task(self) -> Task:
        """The task asked for, with its settings.

        Raises Gpt2UsageError for an unknown one, for a setting that is another task's, and as the task does.
        """
        known = tasks()
        name = self.task_name
        if name not in known:
            raise Gpt2UsageError(f"no task {name}: known are {', '.join(known)}.")
        own = _field_names(known[name])
        for other_name, other in known.items():
            foreign = given(self) & _field_names(other) - own
            if not foreign:
                continue
            flag = f"--{min(foreign).replace('_', '-')}"
            owners = [owner for owner, of_owner in known.items() if foreign <= _field_names(of_owner)]
            if not self.task and len(owners) > 1:
                raise Gpt2UsageError(
                    f"{flag} does not say what to measure: add --task {', '.join(owners[:-1])} or {owners[-1]}."
                )
            raise Gpt2UsageError(f"{flag} is a setting of --task {other_name}: leave it out of --task {name}.")
        return known[name](**{key: getattr(self, key) for key in own if hasattr(self, key)})


def _field_names(task: type[Task]) -> set[str]:
    return {field.name for field in dataclasses.fields(task)}  # type: ignore[arg-type]


def settings_class() -> type[EvaluateSettings]:
    """`EvaluateSettings` with the settings of every task, which stand in `--help` below the tasks that have them.

    Raises Gpt2UsageError if two tasks disagree on a setting of one name.
    """
    found: dict[str, tuple[str, Any, Any]] = {}
    for task in tasks().values():
        hints = typing.get_type_hints(task)
        for field in dataclasses.fields(task):  # type: ignore[arg-type]
            same = found.get(field.name)
            if same is not None and (same[1], same[2].default) != (hints[field.name], field.default):
                raise Gpt2UsageError(f"the setting {field.name} of the task {task.name} is another one elsewhere.")
            metadata = {**field.metadata, "group": _heading(field.name)} if field.metadata else {}
            copy = dataclasses.field(default=field.default, metadata=metadata)
            found.setdefault(field.name, (field.name, hints[field.name], copy))
    return dataclasses.make_dataclass("EvaluateSettings", found.values(), bases=(EvaluateSettings,), frozen=True)


def _heading(setting_name: str) -> str:
    """What stands above a setting in `--help`: the tasks that have it."""
    owners = [task for task in tasks().values() if setting_name in _field_names(task)]
    if len(owners) == 1:
        return f"--task {owners[0].name}: {owners[0].summary}"
    return f"--task {', '.join(task.name for task in owners[:-1])} or {owners[-1].name}"


def __getattr__(name: str) -> Any:
    # Worked out when it is asked for: tasks may be added by then.
    if name == "SETTINGS":
        return settings_class()
    raise AttributeError(name)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `gpt2 evaluate`, and of its tasks, to `parser`."""
    known = tasks()
    width = max(map(len, known))
    overview = [f"  {name:<{width}}  {task.summary}" for name, task in known.items()]
    parser.epilog = "\n".join(["tasks:", *overview, "", EXAMPLE])
    add_config_flag(parser)
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    add_flags(parser, settings_class())


def run(arguments: argparse.Namespace) -> int:
    """Measure as the flags ask, print the result, return the exit code. Raises Gpt2Error."""
    settings = settings_from(settings_class(), arguments, command="evaluate", config=arguments.config)

    def work() -> int:
        with explained_out_of_memory("lower --batch-size"):
            result = evaluate(settings)
        if arguments.json:
            print(json.dumps(result))
        else:
            # A model of another program has no step.
            head = str(result["checkpoint"]) + (f" at step {result['step']:,}" if result["step"] else "")
            print("\n".join([head, *settings.make_task().describe(result)]))
        return 0

    return settings.in_processes(arguments, work, settings.data_parallel)


def evaluate(settings: EvaluateSettings) -> dict[str, Any]:
    """Measure a checkpoint; returns what `--json` prints.

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
        result = settings.make_task().run(scorer)
    return {
        "checkpoint": str(source.folder),
        "step": source.step,
        "task": settings.task_name,
        **result,
        "precision": source.precision,
        "seconds": scorer.seconds,
        "tokens_per_second": scorer.tokens / scorer.seconds if scorer.seconds else None,
    }
