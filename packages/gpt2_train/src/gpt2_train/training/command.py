"""`gpt2 train`: its flags, and the checks that need no torch; `launch`, which does the work, comes after."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from command_kit import add_config_flag, add_flags, settings_from
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.layout import check_tensor_parallel, plan_batches
from gpt2_train.config.loading import load_torch
from gpt2_train.config.settings import TrainSettings
from gpt2_train.evaluation.tasks import check_readable, parse_task
from gpt2_train.metrics.sinks import SINKS, chosen_sinks

EXAMPLE = """\
example:
  gpt2 train --data runs/quickstart/corpus_text_document --output work/345M --model 345M --tokens 1_000_000_000
  gpt2 train --data runs/quickstart/corpus_text_document --output work/model --sample-every 50 --sample-prompt "A graph"
  gpt2 train --data runs/quickstart/corpus_text_document --output work/model --eval-task lambada:lambada_test.jsonl
  The same command again resumes the run; SIGTERM, SIGINT (Ctrl-C) and SIGUSR1 save it and stop.
"""
RESUMES = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `gpt2 train` to `parser`."""
    add_config_flag(parser)
    parser.add_argument("--json", action="store_true", help="print the run's summary as one JSON object at its end")
    add_flags(parser, TrainSettings, choices={"log_to": SINKS})


def run(arguments: argparse.Namespace) -> int:
    """Train as the flags ask; return the exit code. Raises Gpt2Error."""
    given = {name for name, value in vars(arguments).items() if isinstance(value, int | float | str)}
    replaced = overridden_keys(given)
    settings = settings_from(TrainSettings, arguments, command="train", config=arguments.config, ignore=replaced)
    return carry_out(settings, as_json=arguments.json, debug=arguments.debug)


def carry_out(settings: TrainSettings, *, as_json: bool, debug: bool = False) -> int:
    """Train as `settings` ask; return the exit code. Raises Gpt2Error."""
    check_before_torch(settings)
    load_torch("preparing the run")
    from gpt2_train.training.launch import launch

    return launch(settings, as_json=as_json, debug=debug)


LENGTH_KEYS = frozenset({"steps", "epochs", "tokens", "minutes"})
BATCH_KEYS = frozenset({"global_batch_size", "batch_tokens"})
SHAPE_KEYS = frozenset({"layers", "hidden", "heads"})


def overridden_keys(given: Iterable[str]) -> frozenset[str]:
    """The keys of a settings file that the flags `given` replace, beyond keys of the same names.

    One length of the run stands for the others, one size of the batch for the other, `model` for the numbers of the
    shape, and any of these for `model`; a number alone leaves the file's other two as they are.
    """
    flags = frozenset(given)
    keys = frozenset[str]().union(*(group for group in (LENGTH_KEYS, BATCH_KEYS) if flags & group))
    if "model" in flags:
        return keys | SHAPE_KEYS
    return keys | {"model"} if flags & SHAPE_KEYS else keys


def check_before_torch(settings: TrainSettings) -> None:
    """Find mistakes in the settings of a run before the second that importing torch takes.

    Raises Gpt2UsageError if data, output or the package of a sink are missing, or model and batch don't fit together.
    """
    settings.corpora()
    if not settings.output:
        raise Gpt2UsageError("no --output: give a folder for the run.")
    if settings.init_from is None:  # else the model's own shape decides, once it is read
        check_tensor_parallel(settings.model_config(), settings.tensor_parallel)
    plan_batches(settings.global_batch_size, settings.micro_batch_size, settings.data_parallel or 1, on_cpu=True)
    chosen_sinks(settings.log_to)
    check_observed(settings)


def check_observed(settings: TrainSettings) -> None:
    """Find files of evaluation tasks that are not there. Raises Gpt2UsageError."""
    for task in map(parse_task, settings.eval_task):
        # Token files may be made by a stage before the training.
        if task.source != "data":
            check_readable(getattr(task, task.source))
