"""The command `gpt2`: its subcommands, in the order in which they are used.

Only the module of the command that was asked for is imported, and torch not before that command runs: `gpt2 --help`
answers at once. A command is a module with `add_arguments(parser)` and `run(arguments) -> int`. Its `EXAMPLE` stands at
the end of its help; with `RESUMES` set, an interrupted one resumes when it is given again. Other distributions announce
such modules, each with a `SUMMARY`, under the entry-point group `gpt2.commands`.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from command_kit import Parser, add_shell_flags, run_command
from command_kit.plugins import announced

COMMANDS = {
    "estimate": ("gpt2_train.training.estimate", "estimate parameters, FLOPs and memory of a run before it starts"),
    "train": ("gpt2_train.training.command", "train a model, or resume a run, from token files"),
    "evaluate": (
        "gpt2_train.evaluation.command",
        "measure a model: its loss on held-out or any other text, or a task such as lambada",
    ),
    "generate": ("gpt2_train.inference.command", "write text with a checkpoint"),
    "serve": (
        "gpt2_train.serving.command",
        "write text for programs and people over HTTP, with OpenAI's API and a page",
    ),
    "convert": ("gpt2_train.conversion.command", "turn a checkpoint into other programs' formats, or theirs into ours"),
    "checkpoint": (
        "gpt2_train.conversion.checkpoint_command",
        "check files of checkpoints",
    ),
    "plot": ("gpt2_train.metrics.command", "draw the losses of one or more runs in the terminal"),
    "seen": (
        "gpt2_train.data.seen",
        "say in which steps a run has read documents, and which checkpoints have seen them",
    ),
    "doctor": ("gpt2_train.training.doctor", "show what this machine has, and what it can train"),
}
"""Name of a command of this package: its module, and what it does."""

HEADINGS = {"estimate": "train", "evaluate": "measure", "generate": "use a model", "plot": "look at a run"}
"""The first command below each heading of `--help`."""
GROUP = "gpt2.commands"
REMOVED = {"trace": "use `webtext trace`, with the same flags"}
"""Commands that there are no more, and what to use instead."""

EXAMPLE = """\
example:
  gpt2 train --data work/corpus_text_document --output work/124M --model 124M --epochs 1
  gpt2 generate --checkpoint work/124M --prompt "In the beginning"
"""


def _module(command: str) -> ModuleType:
    return importlib.import_module(COMMANDS[command][0]) if command in COMMANDS else _others()[command]


def _others() -> dict[str, ModuleType]:
    """The commands of other packages."""
    return dict(announced(GROUP))


def make_parser(command: str | None, *, whole: bool = False) -> argparse.ArgumentParser:
    """The parser of `gpt2`, with the arguments of `command` only (of none if it is None).

    With `whole` it has the arguments of all commands.
    """
    parser = Parser(
        prog="gpt2",
        description="Train, evaluate and sample GPT-2 from token files (.bin/.idx), on one process or many.",
        epilog=EXAMPLE,
    )
    add_shell_flags(parser, "webtext-gpt2-train", others=["torch"], whole=lambda: make_parser(None, whole=True))
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    others = {} if command in COMMANDS else {name: module.SUMMARY for name, module in _others().items()}
    parser.removed |= REMOVED
    commands.headings = HEADINGS | {next(iter(others), ""): "from other packages"}  # type: ignore[attr-defined]
    for name, summary in ({name: summary for name, (_, summary) in COMMANDS.items()} | others).items():
        child = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if name == command or whole:
            child.epilog = getattr(_module(name), "EXAMPLE", None)
            _module(name).add_arguments(child)
            child.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `gpt2` with `arguments` (the command line's by default); return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    is_debug = "--debug" in words
    prepare_for_torch(debug=is_debug)
    return run_command("gpt2", lambda: _run(words), debug=is_debug, resumes=False)


def carry_out(command: str, *settings: Any, debug: bool = False) -> int:
    """Do what a command does with settings that are checked, print its result as JSON, return the exit code."""
    prepare_for_torch(debug=debug)
    module = _module(command)
    work = functools.partial(module.carry_out, *settings, as_json=True, debug=debug)
    return run_command("gpt2", work, debug=debug, resumes=getattr(module, "RESUMES", False))


def prepare_for_torch(*, debug: bool = False) -> None:
    """Set in the environment what torch reads there when it is loaded, unless it is set."""
    # Read when torch is loaded. Threads that spin while they wait for each other keep these very threads off the cores:
    # a step takes five times as long on a machine that is busy besides, for the 8% that spinning gains on an idle one.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Lets PyTorch's allocator of GPU memory grow a block instead of leaving gaps between blocks of many sizes.
    if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    # PyTorch's C++ logs errors that are handled here and reported in a sentence, such as memory that ran out while a
    # micro-batch is tried. Of several processes its words are wanted: what a watchdog says of those that wait in vain.
    if not debug:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR" if "RANK" in os.environ else "FATAL")


def _run(words: list[str]) -> int:
    # The first word that is no flag: later ones, such as the value of --output, may be spelled like a command.
    first = next((word for word in words if not word.startswith("-")), None)
    parsed = make_parser(first if first in COMMANDS or first in _others() else None).parse_args(words)
    module = _module(parsed.command)
    resumes = getattr(module, "RESUMES", False)
    return run_command("gpt2", lambda: module.run(parsed), debug=parsed.debug, resumes=resumes)
