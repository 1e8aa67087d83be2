"""What a stage costs whose input and output lie in object storage, beside the same on this machine's disk.

    python benchmarks/object_storage.py             two to five minutes
    python benchmarks/object_storage.py --quick     small inputs: does everything run? No result file

A server of S3's protocol (moto's) runs on loopback in a process of its own, whose time is not counted: loopback has no
latency worth the name, so this is what requests cost us, not what a network does. Each stage runs here and there in
turn, with one worker; the best of some repeats counts. Starting is a part of it, small beside a shard of 30 seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import measuring
from machine import describe, save
from webtext_prep import storage
from webtext_prep.storage import location
from webtext_prep.storage.stores.base import Location

STAGES: dict[str, list[str]] = {
    "merge": ["--shards", "1"],
    "clean": ["--language", "any"],
    "tokenize": [],
}
SERVER = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends
s3_backends[DEFAULT_ACCOUNT_ID]["aws"].create_bucket("benchmark", "us-east-1")
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def object_storage() -> Iterator[Location]:
    """A bucket of a server that runs while the block does."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        os.environ |= {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{process.stdout.readline().strip()}",
            "AWS_ACCESS_KEY_ID": "benchmark",
            "AWS_SECRET_ACCESS_KEY": "benchmark",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        yield location("s3://benchmark")
    finally:
        process.terminate()
        process.communicate()


def run(stage: str, source: Location, target: Location, state: Path) -> measuring.Usage:
    """One stage from `source` to `target`, which is a new place each time."""
    options = STAGES[stage]
    places = ["--input", str(source), "--output", str(target), "--state", str(state)]
    return measuring.webtext(stage, *places, *options, "--workers", "1", "--no-space-check")


def transfers(bucket: Location, folder: Path, size: int) -> list[dict[str, Any]]:
    """Reading and writing alone, of noise: CPU seconds of this process for a gigabyte, and MB per second."""
    rows = []
    noise = os.urandom(1 << 20)

    def write(place: Location) -> None:
        with storage.create(place, durable=False) as file:
            for _ in range(size >> 20):
                file.write(noise)

    def read(place: Location) -> None:
        with storage.open_for_reading(place) as file:
            while file.read(1 << 17):
                pass

    for name, work in (("write", write), ("read", read)):
        for where, place in (("here", folder / "noise"), ("S3", bucket / "noise")):
            cpu, wall = _best(work, place)
            rate, speed = round(cpu / size * 1e9, 2), round(size / 1e6 / wall)
            rows.append({"what": f"{name}, {where}", "cpu_seconds_per_GB": rate, "MB_per_second": speed})
            print(f"  {name}, {where:<8} {rate:>8} CPU s/GB {speed:>8,} MB/s")
    return rows + small_objects(bucket)


def small_objects(bucket: Location, count: int = 1000) -> list[dict[str, Any]]:
    """Writing, listing and stamping of many small objects: seconds of this process and by the clock."""
    places = [bucket / "small" / f"{number:05}.txt" for number in range(count)]
    steps: dict[str, Callable[[Location], object]] = {
        "write": lambda folder: storage.each(lambda place: _write_small(place), places, places),
        "list": storage.list_folder,
        "stamp": lambda folder: storage.stamps(places),
    }
    rows = []
    for name, work in steps.items():
        cpu, wall = _best(work, bucket / "small")
        rows.append({"what": f"{name} {count}, S3", "cpu_seconds": round(cpu, 2), "seconds": round(wall, 2)})
        print(f"  {name} {count} small objects, S3 {cpu:.2f} CPU s {wall:.2f} s")
    return rows


def _write_small(place: Location) -> None:
    with storage.create(place, durable=False) as file:
        file.write(b"x" * 100)


def _best(work: Callable[[Location], object], place: Location) -> tuple[float, float]:
    found = []
    for _ in range(3):
        cpu, wall = time.process_time(), time.monotonic()
        work(place)
        found.append((time.process_time() - cpu, time.monotonic() - wall))
    return min(cpu for cpu, _ in found), min(wall for _, wall in found)


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description="The cost of object storage.")
    parser.add_argument("--quick", action="store_true", help="small inputs, no result file")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--documents", type=int, default=0, help="how many documents of 3 kB (default: 60,000)")
    arguments = parser.parse_args()
    count = arguments.documents or (300 if arguments.quick else 60_000)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name, object_storage() as bucket:
        folder = Path(name)
        moved = transfers(bucket, folder, (8 if arguments.quick else 256) << 20)
        shard = measuring.write_json_lines(folder / "in" / "part-00000.jsonl.zst", measuring.documents(count))
        with storage.create(bucket / "in" / shard.name) as file:
            file.write(shard.read_bytes())
        for stage in STAGES:
            used: dict[str, list[measuring.Usage]] = {"here": [], "S3": []}
            for repeat in range(1 if arguments.quick else arguments.repeats):
                for where, root in (("here", folder), ("S3", bucket)):
                    target, state = root / f"{stage}-{repeat}" / "corpus", folder / f"state-{where}-{stage}-{repeat}"
                    used[where].append(run(stage, root / "in", target, state))
            here, there = (
                {"cpu": min(entry.cpu for entry in entries), "wall": min(entry.wall for entry in entries)}
                for entries in used.values()
            )
            row = {"stage": stage, "here": here, "S3": there,
                   "speed": {kind: round(here[kind] / there[kind], 3) for kind in here}}  # fmt: skip
            rows.append(row)
            print(
                f"  {stage:<10} here {here['cpu']:6.1f} CPU s {here['wall']:6.1f} s   "
                f"S3 {there['cpu']:6.1f} CPU s {there['wall']:6.1f} s   "
                f"speed of S3 by CPU {row['speed']['cpu']:.0%}, by the clock {row['speed']['wall']:.0%}"
            )
    if not arguments.quick:
        machine = describe("obstore", "moto")
        save("object_storage", {"machine": machine, "documents": count, "transfers": moved, "stages": rows})


if __name__ == "__main__":
    main()
