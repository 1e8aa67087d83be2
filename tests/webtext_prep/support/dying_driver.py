"""A command with --engine ray whose driver and workers are killed at renames: JOURNAL FOLDER ARGUMENT..."""

import os
import sys
from pathlib import Path

from practice_calls import DyingAtRenames

from webtext_prep import cli
from webtext_prep.running.engines import base
from webtext_prep.running.engines.ray import RayEngine


def main() -> int:
    journal, folder = map(Path, sys.argv[1:3])
    replace, run = os.replace, RayEngine.run
    os.replace = lambda source, target: DyingAtRenames.replace(replace, journal, folder, source, target)
    RayEngine.run = lambda engine, call, tasks, **rest: run(
        engine, DyingAtRenames(call.call, call, journal, folder), tasks, **rest
    )
    base.MAX_ATTEMPTS = 1000
    return cli.main(sys.argv[3:])


if __name__ == "__main__":  # worker processes of this machine import it, too
    sys.exit(main())
