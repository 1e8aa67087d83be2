"""`gpt2 doctor`: what this machine has (cores, memory, GPUs, torch, a compiler), and how fast it trains.

That is judged from matrix products of a fraction of a second, which reach what training reaches within a factor of two
or so. Whether a run fits into the memory, `gpt2 estimate` says. The checks, which need torch, are in `machine_checks`.
"""

from __future__ import annotations

import argparse
import json

from command_kit.machine import GIB, Check, Machine, bytecode_check, packages_check, shown, values
from command_kit.parsing import version_line

EXAMPLE = """\
example:
  gpt2 doctor
"""

NEEDED = 3 * GIB
"""Memory and disk that the quickstart's training takes, generously."""

EXTRAS = {
    "gguf": "convert to GGUF",
    "huggingface-hub": "models by their names on Hugging Face's hub",
    "tensorboard": "its event files",
    "wandb": "Weights & Biases",
    "lm-eval": "lm-evaluation-harness",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `gpt2 doctor` to its parser."""
    parser.add_argument("--json", action="store_true", help="print what was found as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Print what was found; return the exit code."""
    from gpt2_train.training.machine_checks import machine_checks

    checks = [
        Check("version", version_line("gpt2", "webtext-gpt2-train", others=["torch"])),
        bytecode_check("torch"),
        *machine_checks(Machine(), NEEDED),
        packages_check("extras", EXTRAS, how="install what you need with pip or uv"),
    ]
    print(json.dumps(values(checks)) if arguments.json else shown(checks))
    return 0
