"""`gpt2 checkpoint verify`: check the files of checkpoints.

Exit codes are as in `cmp`: 0 for whole, 1 for damaged, 2 for what can't be read as a checkpoint at all.
"""

from __future__ import annotations

import argparse
import dataclasses
import json

from command_kit import Progress, add_flags, setting, settings_from
from gpt2_train.config.errors import Gpt2UsageError

EXAMPLE = """\
example:
  gpt2 checkpoint verify runs/quickstart/model                     all checkpoints of a run
"""


@dataclasses.dataclass(frozen=True)
class VerifySettings:
    """The settings of `gpt2 checkpoint verify`. Raises Gpt2UsageError without a folder."""

    folder: str = setting("", "a run, its checkpoints folder, or one checkpoint", metavar="DIR", positional=True)

    def __post_init__(self) -> None:
        if not self.folder:
            raise Gpt2UsageError("gpt2 checkpoint verify needs DIR: give a run or a checkpoint.")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `verify`, the command of `gpt2 checkpoint`, and its flags."""
    vars(parser).setdefault("removed", {}).update(REMOVED)
    commands = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    summary = "read every file of checkpoints and compare it with what was written"
    description = summary[0].upper() + summary[1:] + "."
    child = commands.add_parser("verify", help=summary, description=description, allow_abbrev=False)
    add_flags(child, VerifySettings)
    child.add_argument("--json", action="store_true", help="print the result as one JSON object on stdout")
    child.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback of an error")


REMOVED = {"diff": "convert both models to hf, and compare their tensors by safetensors or cmp"}
"""Commands that there are no more, and what to use instead."""


def run(arguments: argparse.Namespace) -> int:
    """Check every file of one checkpoint, or of all of a run; returns the exit code.

    Raises Gpt2UsageError if there is none.
    """
    from gpt2_train.checkpoint.verify import bytes_to_read, checkpoints_at, verify_checkpoint

    folders = checkpoints_at(settings_from(VerifySettings, arguments, command="checkpoint").folder)
    with Progress("verify", "bytes", sum(map(bytes_to_read, folders))) as progress:
        checked = [verify_checkpoint(folder, progress.advance) for folder in folders]
    # A run at work removes old checkpoints: a missing one is not damaged.
    found = [entry for entry in checked if entry.folder.exists()]
    bad = [entry for entry in found if entry.problems]
    lines = []
    for entry in found:
        if entry.problems:
            lines += [f"{entry.folder}: damaged: {problem}" for problem in entry.problems]
            continue
        parts = "model and optimizer" if entry.has_optimizer else "model without optimizer"
        lines.append(f"{entry.folder}: whole ({parts}, {entry.files} files, {entry.bytes / 1e6:,.1f} MB)")
    if bad:
        lines.append(
            f"{len(bad)} of {len(found)} checkpoints {'are' if len(bad) > 1 else 'is'} damaged: delete "
            f"{'their folders' if len(bad) > 1 else 'its folder'} to resume from the newest whole one."
        )
    result = {
        "damaged": len(bad),
        "checkpoints": [dataclasses.asdict(entry) | {"folder": str(entry.folder)} for entry in found],
    }
    print(json.dumps(result, ensure_ascii=False) if arguments.json else "\n".join(lines))
    return 1 if bad else 0
