"""A step of a pipeline at work, in a process of its own: `runner` starts it, and sends it what it is to do.

Settings come through a pipe as they were checked: nothing is parsed a second time. The end of the pipe is the end of
the pipeline, and of this process with it.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

from command_kit.command import FLAGS
from command_kit.processes import end_after

if TYPE_CHECKING:
    from webtext_prep.commands import Command
    from webtext_prep.running.settings import RunSettings
    from webtext_prep.running.stage import Stage


def run_stage(
    stage: Stage, settings: RunSettings, engine_settings: Mapping[str, Any], *, restart: bool, debug: bool
) -> int:
    """Run a stage to its end; returns the exit code."""
    from webtext_prep.cli import run_subcommand, work_on
    from webtext_prep.running.job import Job
    from webtext_prep.running.settings import make_engine

    def body() -> int:
        engine = make_engine(settings.engine, settings.workers, engine_settings)
        return work_on(Job(stage, settings, engine, restart=restart), as_json=True)

    return run_subcommand(body, restart=restart, debug=debug)


def run_look(command: Command, *, debug: bool) -> int:
    """Have a command look at what there is; returns the exit code."""
    from webtext_prep.cli import look, run_subcommand

    return run_subcommand(lambda: look(command, as_json=True), debug=debug)


def run_model_command(name: str, *settings: Any, debug: bool) -> int:
    """Train, evaluate or generate; returns the exit code."""
    from gpt2_train.cli import carry_out

    return carry_out(name, *settings, debug=debug)


def main() -> int:
    """Do what comes through the pipe whose number is this process's argument; returns the exit code."""
    pipe = Connection(int(sys.argv[1]), writable=False)
    work, flags = pipe.recv()
    FLAGS.update(flags)
    end_after(lambda: wait([pipe]), signal.SIGTERM)
    code: int = work()
    return code


if __name__ == "__main__":
    sys.exit(main())
