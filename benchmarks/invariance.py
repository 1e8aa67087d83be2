"""Does every engine make the same bytes, whatever is killed on the way? Runs a corpus through each, and compares.

    ./uvw run benchmarks/invariance.py                         # local, and a Ray of two nodes
    ./uvw run benchmarks/invariance.py --engine ray --ray-address auto --input s3://bucket/texts \\
        --output s3://bucket/invariance --shared-scratch s3://bucket/scratch

The corpus goes through the stages once by the engine local, undisturbed. Then each engine does the same, while workers,
a node, and the command itself are killed with SIGKILL (--kill) at moments that a seed chooses: when so many tasks are
done. A command that was killed is given again. Last, every byte of every file is compared. Exit code 0: all the same;
1: a difference, which is named, or a command that failed; 2: wrong usage.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import clusters
import measuring
from command_kit import run_command
from comparing import files_below, first_difference
from machine import describe
from webtext_prep import storage
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.shards import shard_name, write_documents
from webtext_prep.errors import InputError, WebtextError
from webtext_prep.storage import location
from webtext_prep.storage.locations import Location

PROGRAM = "invariance.py"
REFERENCE = "reference"
STAGES: dict[str, tuple[str, ...]] = {
    "merge": ("--shards", "8"),
    "clean": (),
    "dedup": (),
    "tokenize": (),
    "export": (),
}
"""In their order, with their options."""
NOT_READ_ON = frozenset({"tokenize", "export"})
"""Stages after which the next one reads what this one has read."""
SHARDS = 6
"""Of the documents that are made."""
POLL_SECONDS = 0.01
MOST_FAILURES = 3
"""Kills of workers and nodes in one command: the fourth failure of one task would end it."""


@dataclass
class Kill:
    """One thing to be killed.

    Attributes:
        kind: of `clusters.KINDS`.
        stage: from which stage on,
        after: and how many tasks of it must be done.
    """

    kind: str
    stage: int
    after: int


@dataclass
class Found:
    """What one engine's run was.

    Attributes:
        seconds: how long it took.
        killed: how often each kind was killed.
        missed: kills for which there was no moment.
    """

    seconds: float = 0.0
    killed: Counter[str] = field(default_factory=Counter)
    missed: int = 0


class Walk:
    """One way of a corpus through the stages.

    Args:
        name: of the folder of its outputs, and of that of its state.
        arguments: of the command line.
        machines: where its tasks run.
    """

    def __init__(self, name: str, arguments: argparse.Namespace, machines: clusters.Machines) -> None:
        self.name, self._machines, self._arguments = name, machines, arguments
        self.place = location(arguments.output) / name
        self._state = Path(arguments.state) / name
        self._log = Path(arguments.state) / f"{name}.log"

    def done(self, stage: str) -> int:
        """How many tasks of a stage are done."""
        return sum(1 for _ in (self._state / stage / "markers").rglob("*.json"))

    def run(self, kills: list[Kill], source: random.Random) -> Found:
        """Run all stages, and kill what is to be killed. Raises WebtextError for a stage that fails."""
        begun, found, left = time.monotonic(), Found(), list(kills)
        inputs: list[Any] = list(self._arguments.input)
        for number, stage in enumerate(self._arguments.stages):
            print(f"{PROGRAM}: {self.name}: {stage}", file=sys.stderr)
            due = [kill for kill in left if kill.stage == number]
            left = [kill for kill in left if kill.stage > number]
            # For what is left there was no moment: it is due in the next stage, at once.
            left += [Kill(kill.kind, number + 1, 0) for kill in self._run_stage(stage, inputs, due, source, found)]
            if stage not in NOT_READ_ON:
                inputs = [self.place / stage]
        found.seconds, found.missed = round(time.monotonic() - begun, 2), len(left)
        return found

    def _run_stage(
        self, stage: str, inputs: list[Any], due: list[Kill], source: random.Random, found: Found
    ) -> list[Kill]:
        """Run a stage to its end; the kills that are left."""
        places = [*map(str, inputs), "--output", str(self.place / stage), "--state", str(self._state / stage)]
        command = [
            sys.executable,
            "-m",
            "webtext_prep",
            stage,
            "--input",
            *places,
            *STAGES[stage],
            *self._machines.arguments(),
        ]
        kills_of_tasks = 0
        while True:
            process = self._start(command)
            try:
                while process.poll() is None:
                    for kill in [kill for kill in due if self.done(stage) >= kill.after and process.poll() is None]:
                        is_of_tasks = kill.kind != "command"
                        if is_of_tasks and kills_of_tasks >= MOST_FAILURES:
                            continue
                        if self._machines.kill(kill.kind, process.pid, source):
                            due.remove(kill)
                            found.killed[kill.kind] += 1
                            kills_of_tasks += is_of_tasks
                    time.sleep(POLL_SECONDS)
            except BaseException:
                clusters.stop_all(process)
                raise
            if process.returncode == 0:
                return due
            if process.returncode != -signal.SIGKILL:
                said = self._log.read_text(errors="replace").strip().splitlines()[-1:]
                raise WebtextError(f"{self.name}: {stage} ended with exit code {process.returncode}: {' '.join(said)}")

    def _start(self, command: list[str]) -> subprocess.Popen[str]:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("w") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True, start_new_session=True
            )


def choose_kills(kinds: list[str], tasks: list[int], source: random.Random) -> list[Kill]:
    """When to kill what, given the number of tasks of each stage: a worker in each stage, one node, one command."""
    found = []
    for kind in kinds:
        stages = range(len(tasks)) if kind == "workers" else [source.randrange(len(tasks))]
        found += [Kill(kind, stage, source.randrange(max(1, tasks[stage]))) for stage in stages]
    return found


def compare(arguments: argparse.Namespace) -> int:
    """Run everything; returns the exit code."""
    with contextlib.ExitStack() as stack:
        given, kinds = arguments.output, prepare(arguments, stack)
        result: dict[str, Any] = {
            "machine": describe("ray", "webtext-gpt2-prep"), "seed": arguments.seed, "stages": arguments.stages,
            "engines": {},
        }  # fmt: skip
        here = Walk(REFERENCE, arguments, clusters.machines_for("local", [], arguments.workers, ours=True))
        reference = here.run([], random.Random())
        files = files_below(here.place)
        result |= {"files": len(files), "bytes": sum(map(storage.size, files.values())), "seconds": reference.seconds}
        tasks = [here.done(stage) for stage in arguments.stages]
        for engine in arguments.engine:
            source = random.Random(f"{arguments.seed} {engine}")
            ours = is_ours(engine, arguments)
            machines = clusters.machines_for(engine, engine_flags(engine, arguments), arguments.workers, ours=ours)
            with contextlib.closing(machines):
                walk = Walk(engine, arguments, machines)
                found = walk.run(choose_kills(kinds, tasks, source), source)
            difference = first_difference(here.place, walk.place)
            killed = {kind: found.killed[kind] for kind in kinds}
            result["engines"][engine] = {
                "seconds": found.seconds, "killed": killed, "missed_kills": found.missed, "difference": difference,
            }  # fmt: skip
            if difference is not None:
                break
        show(result, as_json=arguments.json)
        if difference is not None:
            if not given:
                stack.pop_all()  # whoever looks into it needs the files
            print(f"{PROGRAM}: error: engine {engine}: {difference}.", file=sys.stderr)
            return 1
    return 0


def show(result: dict[str, Any], *, as_json: bool) -> None:
    """Print the result."""
    if as_json:
        print(json.dumps(result))
        return
    print(f"{' '.join(result['stages'])}: {result['files']:,} files, {result['bytes']:,} bytes\n")
    print("| engine | seconds | killed | bytes |\n|---|---|---|---|")
    print(f"| local, undisturbed | {result['seconds']:.1f} | | |")
    for engine, row in result["engines"].items():
        killed = ", ".join(f"{kind} {count}" for kind, count in row["killed"].items())
        print(f"| {engine} | {row['seconds']:.1f} | {killed} | {'differ' if row['difference'] else 'the same'} |")


def is_ours(engine: str, arguments: argparse.Namespace) -> bool:
    """Whether the machines of an engine are processes that this command starts, and not a cluster."""
    return engine != "ray" or not arguments.ray_address


def engine_flags(engine: str, arguments: argparse.Namespace) -> list[str]:
    """What the commands of an engine are given."""
    found = []
    if engine == "ray" and arguments.ray_address:
        found += ["--ray-address", arguments.ray_address]
    if engine != "local" and arguments.shared_scratch:
        found += ["--shared-scratch", arguments.shared_scratch]
    return found


def prepare(arguments: argparse.Namespace, stack: contextlib.ExitStack) -> list[str]:
    """Fill in what was not given, and return what is to be killed. Raises InputError."""
    others = [engine for engine in arguments.engine if not is_ours(engine, arguments)]
    if others and not arguments.output:
        raise InputError(f"--engine {others[0]} is a cluster: give an --output that all its machines see.")
    if others and {"workers", "node"} & set(arguments.kill or []):
        raise InputError(
            f"--kill {' '.join(arguments.kill)} needs machines that this command has started, and those of --engine "
            f"{others[0]} are not: give --kill command, or leave out the engine."
        )
    kinds = ([] if others else list(clusters.KINDS)) if arguments.kill is None else arguments.kill
    if kinds and not Path("/proc/self").exists():
        raise InputError("processes are found in /proc, which this system does not have: give --kill without a kind.")
    temporary = tempfile.mkdtemp(prefix="invariance-")
    stack.callback(shutil.rmtree, temporary, ignore_errors=True)
    arguments.output = arguments.output or temporary
    output = location(arguments.output)
    if not arguments.state:
        arguments.state = str((storage.local_path(output) if storage.is_local(output) else Path(temporary)) / "states")
    for name in (REFERENCE, *arguments.engine):
        if storage.list_folder(output / name) or (Path(arguments.state) / name).exists():
            raise InputError(f"{arguments.output} has files of an earlier run, in {name}: give another --output.")
    if not arguments.input:
        arguments.input = [str(make_input(output / "input", arguments.documents))]
    return kinds


def make_input(folder: Location, count: int) -> Location:
    """Write documents, of which some are nearly the same, as several shards."""
    rows = measuring.documents(count)
    for number in range(SHARDS):
        with write_documents(folder / shard_name(number)) as writer:
            for row in rows[number::SHARDS]:
                writer.write(Document(row["url"], row["text"]))
    return folder


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--engine", nargs="+", choices=["local", "ray"], default=["local", "ray"],
        help="which to compare with local, undisturbed (default: both)")  # fmt: skip
    add("--input", nargs="+", metavar="PLACE", help="documents or texts, here or s3://... (default: some are made)")
    add("--documents", type=int, default=400, help="how many are made (default: 400, of 3 kB)")
    add("--output", metavar="PLACE", help="a new folder, here or s3://... (default: a temporary one)")
    add("--state", metavar="DIR", help="where the states lie (default: in the output, or for a URL a temporary folder)")
    add("--stages", nargs="+", choices=list(STAGES), default=list(STAGES), help="which, in this order (default: all)")
    add("--kill", nargs="*", choices=clusters.KINDS, metavar="KIND",
        help="workers (one in each stage), node, command (one each); none for nothing (default: all three where the "
        "machines are this one, nothing on a cluster, where only command can be)")  # fmt: skip
    add("--seed", type=int, default=1, help="chooses when what is killed (default: 1)")
    add("--workers", type=int, default=0, help="tasks at once (default: cores, at least 2; of a cluster, all)")
    add("--ray-address", default="", metavar="ADDRESS", help="a cluster (default: two nodes on this machine)")
    add("--shared-scratch", default="", metavar="URL", help="for files between phases, as of `webtext`")
    add("--json", action="store_true", help="print the result as a JSON object")
    add("--debug", action="store_true", help="show the traceback of an error")
    arguments = parser.parse_args(argv)
    return run_command(PROGRAM, lambda: compare(arguments), debug=arguments.debug, resumes=False)


if __name__ == "__main__":
    sys.exit(main())
