"""dedup's memory and time for millions of documents, on synthetic keys and sets: what follows from their number.

    uv run python benchmarks/dedup_at_scale.py --documents 10_000_000 --folder FOLDER
    uv run python benchmarks/dedup_at_scale.py --documents 1_000_000 --folder FOLDER --text

With `--text` the whole stage runs, with two workers, over texts of 3 kB; files take 2 kB a document below FOLDER.
Without, half of the documents are near-duplicates of another one: they share most of their band keys. The phases
`bands` and `components` run over all of them as in the stage; `pairs` over as many suspects as one part has. Files take
200 bytes a document. All are removed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from measuring import documents, webtext, write_json_lines
from webtext_prep.dedup import greedy
from webtext_prep.dedup.blocks import BLOCK_DOCUMENTS, Blocks
from webtext_prep.dedup.candidates import Fingerprints
from webtext_prep.dedup.phases import SORTED_DOCUMENTS
from webtext_prep.documents.folders.partitions import load_array, save_array
from webtext_prep.storage import local_path
from webtext_prep.text.fingerprints import bands_for

SHARD_DOCUMENTS = 4 * BLOCK_DOCUMENTS
BANDS, _ = bands_for(0.8)
CHARACTERS = 3_000
"""Of a document's text."""


def write_keys(folder: Path, documents: int) -> Blocks:
    """Files of keys: each odd document shares each key of the one before it with a probability of 0.6."""
    generator, counts = np.random.default_rng(1), []
    for shard, first in enumerate(range(0, documents, SHARD_DOCUMENTS)):
        count = min(SHARD_DOCUMENTS, documents - first)
        counts.append([min(BLOCK_DOCUMENTS, count - at) for at in range(0, count, BLOCK_DOCUMENTS)])
        keys, lengths = Fingerprints.files(folder, shard)
        with local_path(keys).open("wb") as file:
            for size in counts[-1]:
                found = generator.integers(0, 2**64, (BANDS, size), dtype=np.uint64)
                pairs = size // 4  # a quarter of the documents repeats another quarter
                shared = generator.random((BANDS, pairs)) < 0.6
                found[:, : 2 * pairs : 2][shared] = found[:, 1 : 2 * pairs : 2][shared]
                file.write(found.data)
        np.full(count, CHARACTERS, np.int64).tofile(local_path(lengths))
    return Blocks.of(counts)


def _fingerprints(folder: Path, blocks: Blocks) -> Fingerprints:
    keys, lengths = zip(
        *(Fingerprints.files(folder, shard) for shard in range(int(blocks.shards[-1]) + 1)), strict=True
    )
    return Fingerprints(blocks, BANDS, dict(enumerate(keys)), dict(enumerate(lengths)))


def sort_band(folder: Path, blocks: Blocks, band: int, number: int, ranges: int) -> tuple[float, int]:
    """One task of the phase `bands`. Returns its CPU seconds, and the most memory that its process had."""
    start = time.process_time()
    members, ends = _fingerprints(folder, blocks).shared_buckets(band, number, ranges, lambda done: None)
    save_array(folder / f"{band}-{number}.members.npy", members)
    save_array(folder / f"{band}-{number}.ends.npy", ends)
    return time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def decide(suspects: int) -> None:
    """Sets of 490 shingles, each second one of which repeats most of the one before it."""
    generator = np.random.default_rng(2)
    sets = generator.integers(0, 2**64, (suspects, 490), dtype=np.uint64)
    sets[1::2, :450] = sets[::2, :450]
    sets.sort(axis=1)
    keys = generator.integers(0, 2**64, (suspects, BANDS), dtype=np.uint64)
    keys[1::2, :12] = keys[::2, :12]
    ends = np.arange(1, suspects + 1) * 490
    found, _ = greedy.find_duplicates(sets.ravel(), ends - 490, ends, keys, 0.8)
    assert (found >= 0).sum() == suspects // 2


def in_process(call: Callable[..., object], *arguments: object) -> tuple[float, float]:
    """CPU seconds and the most memory, in MB, of a call in a process of its own."""
    with ProcessPoolExecutor(1) as pool:
        return pool.submit(_measured, call, arguments).result()


def _measured(call: Callable[..., object], arguments: tuple[object, ...]) -> tuple[float, float]:
    start = time.process_time()
    call(*arguments)
    return time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def components(folder: Path, blocks: Blocks, ranges: int) -> None:
    """The phase `components`."""
    names = [f"{band}-{number}" for band in range(BANDS) for number in range(ranges)]
    shared = ((load_array(folder / f"{name}.members.npy"), load_array(folder / f"{name}.ends.npy")) for name in names)
    parts, count = _fingerprints(folder, blocks).parts(shared, folder)
    print(f"  {(parts >= 0).sum():,} suspects in {count:,} parts")


def run_on_text(count: int, place: Path | None) -> None:
    """Run the command over so many documents, a tenth of them near-duplicates, and print what it took."""
    with tempfile.TemporaryDirectory(dir=place) as name:
        folder, characters = Path(name), 0
        for shard, first in enumerate(range(0, count, 20_000)):
            found = documents(min(20_000, count - first), CHARACTERS, seed=shard)
            characters += sum(len(row["text"]) for row in found)
            write_json_lines(folder / "in" / f"part-{shard:05}.jsonl.zst", found)
        found.clear()
        scratch, done = [0], threading.Event()

        def watch() -> None:
            while not done.wait(0.5):
                files = [*(folder / "out" / ".state" / "scratch").rglob("*")]
                with contextlib.suppress(OSError):
                    scratch.append(sum(path.stat().st_size for path in files if path.is_file()))

        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        used = webtext("dedup", "--input", folder / "in", "--output", folder / "out", "--workers", "2")
        done.set()
        watching.join()
        record = json.loads((folder / "out" / "stage.json").read_bytes())
    print(
        f"whole stage: {count:,} documents: {used.cpu:.0f} s of CPU, {count / used.cpu:,.0f} documents a second and "
        f"core, {used.peak:,.0f} MB in all processes, scratch {max(scratch) / characters:.3f} bytes a byte of text; "
        f"{record['dropped'].get('duplicate', 0):,} dropped in {record['facts']['groups']:,} groups"
    )


def main() -> None:
    """Run the phases and print what they took."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="where its files go (default: the folder for temporary files)")
    parser.add_argument("--text", action="store_true", help="run the whole stage on texts")
    arguments = parser.parse_args()
    if arguments.text:
        run_on_text(arguments.documents, arguments.folder)
        return
    count = arguments.documents
    ranges = 1 << max(0, (count - 1) // SORTED_DOCUMENTS).bit_length()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        blocks = write_keys(folder, count)
        tasks = [(folder, blocks, band, number, ranges) for band in range(BANDS) for number in range(ranges)]
        with ProcessPoolExecutor(2) as pool:
            results = list(pool.map(sort_band, *zip(*tasks, strict=True)))
        seconds, peak = sum(entry[0] for entry in results), 2 * max(entry[1] for entry in results) / 1000
        print(f"bands: {count:,} documents, {BANDS} bands: {seconds:.1f} s of CPU, {peak:,.0f} MB in two processes")
        seconds, peak = in_process(components, folder, blocks, ranges)
        print(f"components: {seconds:.1f} s of CPU, {peak:,.0f} MB with what is mapped from files")
        size = sum(path.stat().st_size for path in folder.iterdir())
        print(f"scratch: {size / count:,.0f} bytes a document, {size / count / CHARACTERS:.3f} a byte of text")
    seconds, peak = in_process(decide, 11_000)
    print(f"pairs: 11,000 suspects, one part: {seconds:.1f} s of CPU, {peak:,.0f} MB")


if __name__ == "__main__":
    sys.exit(main())
