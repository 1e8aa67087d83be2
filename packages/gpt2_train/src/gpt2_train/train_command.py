"""The flags of `gpt2 train`; the work is in `launch` and `train`, imported when it begins."""

from __future__ import annotations

import argparse

from command_kit import add_flags, settings_from
from gpt2_train.config import TrainSettings
from gpt2_train.layout import check_before_torch, overridden_keys
from gpt2_train.loading import load_torch

EXAMPLE = """\
example:
  gpt2 train --data corpus_text_document --output runs/first --model 345M --tokens 1_000_000_000
  gpt2 train --data corpus_text_document --output runs/second --sample-every 500 --sample-prompt "In the beginning"
  gpt2 train --data corpus_text_document --output runs/third --eval-task lambada:lambada_test.jsonl
  The same command again resumes the run; SIGTERM, SIGINT (Ctrl-C) and SIGUSR1 save it and stop.
"""

SETTINGS = TrainSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `gpt2 train` to `parser`."""
    parser.epilog = EXAMPLE
    parser.add_argument("--config", metavar="FILE.toml", help="read settings from a TOML file; flags win over it")
    parser.add_argument("--json", action="store_true", help="print the run's summary as one JSON object at its end")
    add_flags(parser, TrainSettings)


def run(arguments: argparse.Namespace) -> int:
    """Train as the flags ask; return the exit code. Raises Gpt2Error."""
    given = {name for name, value in vars(arguments).items() if isinstance(value, int | float | str)}
    replaced = overridden_keys(given)
    settings = settings_from(TrainSettings, arguments, command="train", config=arguments.config, ignore=replaced)
    check_before_torch(settings)
    load_torch("preparing the run")
    from gpt2_train.launch import launch

    return launch(settings, as_json=arguments.json, debug=arguments.debug)
