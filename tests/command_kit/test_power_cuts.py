"""What the power goes off at, in any line: files and folders are the old ones or the new ones, and what was done stays.

Each piece of work is recorded, and cut off behind each change, on four file systems (`benchmarks/disk_states.py`).
"""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.power_cuts import Watched

from command_kit import atomic_file, atomic_folder, write_json
from command_kit.atomic import make_folder, remove_file, remove_folder
from gpt2_train.metrics.log import MetricsLog
from indexed_tokens import IndexedTokens, IndexedTokensWriter
from webtext_prep.storage.stores.local import LocalStore


def texts(folder: Path) -> dict[str, str]:
    """The files that readers see."""
    paths = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_text() for name, path in paths.items() if not f"/{name}".count("/.")}


Steps = Iterator[dict[str, str]]
"""The files at the beginning, and at each promise."""


def a_file_is_written_and_replaced(folder: Path) -> Steps:
    for text in ("old", "new"):
        with atomic_file(folder / "below" / "deeper" / "file") as file:
            file.write(text.encode())
        yield {"below/deeper/file": text}


def a_file_is_left_as_it_is(folder: Path) -> Steps:
    """Who gave it its name was killed before that was flushed."""
    (folder / "draft").write_text("same")
    with (folder / "draft").open() as file:
        os.fsync(file.fileno())
    os.replace(folder / "draft", folder / "file")  # noqa: PTH105
    with atomic_file(folder / "file", keep_same=True) as file:
        file.write(b"same")
    yield {"file": "same"}


def a_draft_is_published_where_it_is_already(folder: Path) -> Steps:
    with atomic_file(folder / ".draft") as file:
        file.write(b"same")
    (folder / "file").write_text("same")
    with (folder / "file").open() as file:
        os.fsync(file.fileno())
    LocalStore().publish(folder / ".draft", folder / "file")
    yield {"file": "same"}


def a_folder_is_written_and_replaced(folder: Path) -> Steps:
    for text in ("old", "new"):
        with atomic_folder(folder / "made") as made:
            (made / "below").mkdir()
            (made / "a").write_text(text)
            (made / "below" / "b").write_text(text)
        yield {"made/a": text, "made/below/b": text}


def a_folder_is_removed(folder: Path) -> Steps:
    make_folder(folder / "made")
    for name in ("a", "b", "seal"):
        write_json(folder / "made" / name, 1)
    yield {"made/a": "1\n", "made/b": "1\n", "made/seal": "1\n"}
    remove_folder(folder / "made", "seal")


def a_file_goes_before_another_comes(folder: Path) -> Steps:
    write_json(folder / "record", 1)
    yield {"record": "1\n"}
    remove_file(folder / "record")
    yield {}
    write_json(folder / "shard", 2)
    yield {"shard": "2\n"}


WORK: list[Callable[[Path], Steps]] = [
    a_file_is_written_and_replaced,
    a_file_is_left_as_it_is,
    a_draft_is_published_where_it_is_already,
    a_folder_is_written_and_replaced,
    a_folder_is_removed,
    a_file_goes_before_another_comes,
]
BESIDE = {"draft"}
"""Files that are not looked at."""


@pytest.mark.parametrize("work", WORK, ids=lambda work: work.__name__)
def test_a_power_cut_leaves_the_old_or_the_new_and_takes_nothing_that_was_done(work, tmp_path):
    states: list[dict[str, str]] = [{}]
    with Watched(tmp_path) as watched:
        for state in work(tmp_path):
            states.append(state)
            watched.say("done")
    for promises, disk in watched.disks(chances=3):
        found = {name: text for name, text in texts(tmp_path).items() if name not in BESIDE}
        # Of a sealed folder that goes, what is left without its seal counts for nothing.
        if work is a_folder_is_removed and "made/seal" not in found:
            continue
        between = [{}] if work is a_folder_is_written_and_replaced and promises == 1 else []
        wanted = [*states[promises : promises + 2], *between]
        if work in (a_file_is_left_as_it_is, a_draft_is_published_where_it_is_already) and not promises:
            continue
        assert found in wanted, disk


def test_token_files_never_stand_beside_the_index_of_others(tmp_path):
    """The index of earlier tokens, which had been removed first, came back beside the new tokens."""
    with Watched(tmp_path) as watched:
        for first in (1, 2):
            with IndexedTokensWriter(tmp_path / "corpus") as writer:
                for length in (first, 3 - first):
                    writer.add([first] * length)
            watched.say("written")
    known = [[[1], [1, 1]], [[2, 2], [2]]]
    for promises, disk in watched.disks(chances=3):
        if (tmp_path / "corpus.idx").exists():
            tokens = IndexedTokens(tmp_path / "corpus")
            found = [tokens[number].tolist() for number in range(len(tokens))]
            assert found in known[max(0, promises - 1) : promises + 1], disk
        else:
            assert promises == 1 or not promises, disk


def test_machine_code_is_there_or_compiled_again(tmp_path):
    """numba flushes nothing: its empty index was there for ever, and each `dedup` ended with an EOFError."""
    from numba.core import caching

    from webtext_prep import compiled  # noqa: F401 - changes how numba writes

    with Watched(tmp_path) as watched:
        for key in ("one", "other"):
            caching.IndexDataCacheFile(str(tmp_path), "function", "stamp").save(key, b"code" * 3000)
            watched.say("kept")
    for promises, disk in watched.disks(chances=3):
        for key in ("one", "other")[:promises]:
            assert caching.IndexDataCacheFile(str(tmp_path), "function", "stamp").load(key) == b"code" * 3000, disk
        assert caching.IndexDataCacheFile(str(tmp_path), "function", "stamp").load("other") in (None, b"code" * 3000)


def test_the_rows_of_a_run_are_there_up_to_its_checkpoint(tmp_path):
    """They were never flushed: a run that went on from its newest checkpoint had a gap before it."""
    with Watched(tmp_path) as watched:
        log = MetricsLog(tmp_path, is_first=True, resumed_step=-1)
        for step in range(1, 6):
            log.write({"step": step})
            if step % 2 == 0:
                log.flush()
                watched.say("saved")
    for promises, disk in watched.disks(chances=3):
        MetricsLog(tmp_path, is_first=True, resumed_step=2 * promises)
        rows = (tmp_path / "metrics.jsonl").read_text().splitlines() if promises else []
        assert [json.loads(row)["step"] for row in rows] == list(range(1, 2 * promises + 1)), disk
