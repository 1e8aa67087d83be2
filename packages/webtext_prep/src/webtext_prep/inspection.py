"""`webtext inspect`: what a shard folder, a shard, or a pair of token files holds, with a decoded sample."""

from __future__ import annotations

import argparse

COMMAND = "inspect"


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `inspect` to the subcommands."""
    command = commands.add_parser(COMMAND, help="what any of the above holds: counts, sizes, a sample")
    command.add_argument("path", metavar="PATH")
    command.add_argument("--debug", action="store_true")


def run(arguments: argparse.Namespace) -> int:
    """Print what is in the path."""
    return 0
