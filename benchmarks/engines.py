"""What an engine costs over local processes: its start, an empty task, and shards of some seconds each.

    ./uvw run benchmarks/engines.py                      # local and ray, shards of 30 seconds
    ./uvw run benchmarks/engines.py --seconds 5          # a short run, which writes no results
    ./uvw run benchmarks/engines.py --ray-address auto   # a cluster that this machine belongs to
    ./uvw run benchmarks/engines.py --engines local ray slurm   # where there is Slurm: its queue counts as well

A shard is the same work for each engine: checksums of a block of memory, so often that it takes --seconds alone on
this machine. Times are those of the clock, so the machine must have nothing else to do; engines take turns.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from command_kit import available_cores
from machine import describe, save
from webtext_prep.running.engines.base import Engine
from webtext_prep.running.settings import make_engine
from webtext_prep.running.tasks import Context, Task

BLOCK = bytes(1 << 20)
EMPTY_TASKS = {"local": 200, "ray": 200, "slurm": 20}
"""How many empty tasks each engine is given; of Slurm each is a job, which takes a second."""


def work(task: Task, context: Context) -> int:
    """Checksums of a block, as many as the task says."""
    checksum = 0
    for _ in range(task.options["blocks"]):
        checksum = zlib.crc32(BLOCK, checksum)
    return checksum


def blocks_in(seconds: float) -> int:
    """How many blocks take that long."""
    count, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < 1:
        work(Task("try", (), options={"blocks": 100}), Context(Path(), 1, lambda units: None))
        count += 100
    return int(count * seconds / passed)


def timed(engine: Engine, call: Any, tasks: Sequence[Task], scratch: Path) -> float:
    """Seconds for the tasks."""
    start = time.perf_counter()
    for _ in engine.run(call, tasks, scratch=scratch, on_progress=lambda position, units: None):
        pass
    return time.perf_counter() - start


def measure(name: str, arguments: argparse.Namespace, blocks: int, scratch: Path) -> dict[str, float]:
    """The figures of one engine."""
    import engines as importable  # processes of other engines find the function in this module, not in __main__

    given = {"ray_address": arguments.ray_address} if name == "ray" and arguments.ray_address else {}
    engine = make_engine(name, arguments.workers, given)

    def tasks(count: int, blocks: int) -> list[Task]:
        return [Task(f"{number:04}", (), options={"blocks": blocks}) for number in range(count)]

    count = EMPTY_TASKS.get(name, 20)
    with contextlib.closing(engine):
        first = timed(engine, importable.work, tasks(2 * arguments.workers, 0), scratch)
        empty = timed(engine, importable.work, tasks(count, 0), scratch)
        shards = timed(engine, importable.work, tasks(arguments.shards * arguments.workers, blocks), scratch)
    return {"start": first, "empty_task": empty / count, "shards": shards}


def main() -> int:
    """Print the table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", default=["local", "ray"], help="which (default: local ray)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of work in a shard (default: 30)")
    parser.add_argument("--shards", type=int, default=2, help="for each worker (default: 2)")
    parser.add_argument("--workers", type=int, default=max(2, available_cores()), help="tasks at once (default: cores)")
    parser.add_argument("--ray-address", default="", help="a cluster; without it a Ray of this machine")
    parser.add_argument("--repeats", type=int, default=2, help="the best of so many counts (default: 2)")
    arguments = parser.parse_args()
    blocks = blocks_in(arguments.seconds)
    found: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for _ in range(arguments.repeats):
            for name in arguments.engines:
                found.setdefault(name, []).append(measure(name, arguments, blocks, Path(scratch)))
    best = {name: {key: min(run[key] for run in runs) for key in runs[0]} for name, runs in found.items()}
    ideal = arguments.shards * arguments.seconds
    base = best.get("local", {"shards": ideal})["shards"]
    print(f"{arguments.shards} shards of {arguments.seconds:g} s for each of {arguments.workers} workers\n")
    print("| engine | first phase, s | an empty task, ms | shards, s | over local |\n|---|---|---|---|---|")
    for name, row in best.items():
        over = row["shards"] / base - 1
        print(f"| {name} | {row['start']:.2f} | {1000 * row['empty_task']:.1f} | {row['shards']:.1f} | {over:+.1%} |")
    if arguments.seconds == parser.get_default("seconds"):
        save("engines", {"machine": describe("ray", "webtext-gpt2-prep"), "settings": vars(arguments), "engines": best})
    return 0


if __name__ == "__main__":
    sys.exit(main())
