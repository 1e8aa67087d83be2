"""A file or folder under its final name is always complete: whatever raises, and whenever the process is killed."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from command_kit import atomic, atomic_file, atomic_folder, write_json, write_text
from command_kit.atomic import remove_leftovers, remove_leftovers_of, temporary_name

HALF_A_FILE = """
import sys
from command_kit import atomic_file
with atomic_file(sys.argv[1]) as file:
    file.write(b"half")
    file.flush()
    print("written", flush=True)
    sys.stdin.read()
"""

HALF_A_FOLDER = """
import sys
from command_kit import atomic_folder
with atomic_folder(sys.argv[1]) as folder:
    (folder / "a").write_text("new")
    print("written", flush=True)
    sys.stdin.read()
"""


def killed_in_the_middle(script: str, path) -> None:
    """Run `script` until it says that it has written something, and kill it there."""
    with subprocess.Popen(
        [sys.executable, "-c", script, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "written\n"
        process.kill()
        assert process.wait() == -signal.SIGKILL


def test_a_file_appears_when_the_block_ends(tmp_path):
    path = tmp_path / "new" / "folders" / "file"
    with atomic_file(path) as file:
        file.write(b"bytes")
        file.flush()
        assert not path.exists()
    assert path.read_bytes() == b"bytes"
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, MemoryError])
def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(error), atomic_file(path) as file:
        file.write(b"new")
        raise error
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_kill_leaves_the_old_file_and_something_to_be_removed(tmp_path):
    """Pitfall 27: files were written in place, and a crash lost them."""
    path = tmp_path / "file"
    path.write_bytes(b"old")
    killed_in_the_middle(HALF_A_FILE, path)
    assert path.read_bytes() == b"old"
    write_text(path, "new")
    assert len(list(tmp_path.iterdir())) == 2
    remove_leftovers_of(path)
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_old_file_and_no_half_of_a_new_one(tmp_path, disk_full_for):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    disk_full_for("file")
    with pytest.raises(OSError, match="No space left") as caught:
        write_text(path, "new")
    assert caught.value.errno == errno.ENOSPC
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_two_attempts_at_one_file_do_not_share_its_bytes(tmp_path):
    """Two attempts at one file wrote under one temporary name, and either could publish the other's half."""
    path = tmp_path / "file"
    with atomic_file(path) as first:
        first.write(b"first, ")
        with atomic_file(path) as second:
            second.write(b"second")
        assert path.read_bytes() == b"second"
        first.write(b"whole")
    assert path.read_bytes() == b"first, whole"
    assert list(tmp_path.iterdir()) == [path]


def test_two_attempts_at_one_folder_do_not_share_their_files(tmp_path):
    """Two attempts at one folder wrote into one temporary folder, and the second removed what the first had written."""
    path = tmp_path / "folder"
    with atomic_folder(path) as first:
        (first / "a").write_text("first")
        with atomic_folder(path) as second:
            (second / "b").write_text("second")
        assert [entry.name for entry in path.iterdir()] == ["b"]
    assert [entry.name for entry in path.iterdir()] == ["a"]
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_another_writer_finished_meanwhile_is_replaced(tmp_path, monkeypatch):
    path, replace = tmp_path / "folder", Path.replace

    def late(self, target):
        monkeypatch.setattr(Path, "replace", replace)
        with atomic_folder(path) as other:
            (other / "b").write_text("other")
        return replace(self, target)

    with atomic_folder(path) as folder:
        (folder / "a").write_text("ours")
        monkeypatch.setattr(
            Path, "replace", lambda self, target: late(self, target) if target == path else replace(self, target)
        )
    assert [entry.name for entry in path.iterdir()] == ["a"]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("script", [HALF_A_FILE, HALF_A_FOLDER])
def test_what_a_living_process_writes_is_no_leftover(tmp_path, script):
    """A second command removed the half-written files of the first as if it had been killed."""
    path = tmp_path / "new"
    with subprocess.Popen(
        [sys.executable, "-c", script, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "written\n"
        remove_leftovers(tmp_path)
        remove_leftovers_of(path)
        assert len(list(tmp_path.iterdir())) == 1
        process.stdin.close()
        assert process.wait() == 0
    assert path.exists()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("moments", [1, 3])
def test_a_file_that_was_removed_before_it_was_locked_is_made_again(tmp_path, monkeypatch, moments):
    create, left = atomic._create, [None] * moments

    def removed_at_once(unfinished):
        file = create(unfinished)
        if left:
            left.pop()
            remove_leftovers(tmp_path)
            assert not unfinished.exists()
        return file

    monkeypatch.setattr(atomic, "_create", removed_at_once)
    write_text(tmp_path / "file", "whole")
    assert (tmp_path / "file").read_text() == "whole"


def test_scratch_files_are_not_flushed_to_the_disk(tmp_path, monkeypatch):
    """Each scratch file cost two flushes of the disk, some milliseconds for a few kilobytes."""
    flushed = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    write_json(tmp_path / "a", 1, durable=False)
    assert (flushed, (tmp_path / "a").read_text()) == ([], "1\n")
    write_json(tmp_path / "a", 2)
    assert len(flushed) == 2


def test_each_file_and_folder_of_a_new_folder_is_flushed_once(tmp_path, monkeypatch):
    """The folder was flushed once more for each file in it."""
    flushed = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(os.fstat(descriptor).st_ino))
    with atomic_folder(tmp_path / "made") as made:
        (made / "below").mkdir()
        for name in ("a", "b", "below/c"):
            (made / name).write_text("x")
    places = [tmp_path, *(tmp_path / "made").rglob("*"), tmp_path / "made"]
    assert sorted(flushed) == sorted(place.stat().st_ino for place in places)


def test_json_ends_with_a_newline_and_keeps_its_letters(tmp_path):
    write_json(tmp_path / "a.json", {"é": 1})
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == '{\n  "é": 1\n}\n'


def test_json_holds_file_names_that_are_not_utf8(tmp_path):
    """A name with a byte that is not UTF-8 could not be written: the whole run ended in an internal error."""
    value = {os.fsdecode(b"caf\xe9"): "é\n"}
    write_json(tmp_path / "a.json", value)
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == '{\n  "caf\\udce9": "é\\n"\n}\n'
    assert json.loads((tmp_path / "a.json").read_bytes()) == value


def test_a_folder_appears_whole_and_replaces_the_old_one(tmp_path):
    path = tmp_path / "folder"
    for text in ("old", "new"):
        with atomic_folder(path) as folder:
            (folder / text).write_text(text)
    assert [entry.name for entry in path.iterdir()] == ["new"]
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_leaves_the_old_folder_and_nothing_else(tmp_path):
    path = tmp_path / "folder"
    with atomic_folder(path) as folder:
        (folder / "a").write_text("old")
    with pytest.raises(ValueError, match="stop"), atomic_folder(path) as folder:
        (folder / "a").write_text("new")
        raise ValueError("stop")
    assert (path / "a").read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_kill_leaves_the_old_folder_and_the_next_writer_goes_on(tmp_path):
    path = tmp_path / "folder"
    with atomic_folder(path) as folder:
        (folder / "a").write_text("old")
    killed_in_the_middle(HALF_A_FOLDER, path)
    assert (path / "a").read_text() == "old"
    with atomic_folder(path) as folder:
        (folder / "b").write_text("new")
    assert [entry.name for entry in path.iterdir()] == ["b"]
    assert list(tmp_path.iterdir()) == [path]


def test_the_old_folder_is_never_seen_half_removed(tmp_path, monkeypatch):
    path = tmp_path / "folder"
    with atomic_folder(path) as folder:
        (folder / "a").write_text("old")
    seen = []
    remove = os.unlink

    def watch(name, *args, **kwargs):
        seen.append((path / "a").read_text())
        remove(name, *args, **kwargs)

    monkeypatch.setattr(os, "unlink", watch)
    with atomic_folder(path) as folder:
        (folder / "a").write_text("new")
    assert seen == ["new"]


def test_only_leftovers_are_removed(tmp_path):
    (tmp_path / "kept").write_text("")
    (tmp_path / ".hidden").write_text("")
    (tmp_path / "a.unfinished").write_text("")
    temporary_name(tmp_path / "file").write_text("half")
    temporary_name(tmp_path / "folder").mkdir()
    (temporary_name(tmp_path / "folder") / "half").write_text("")
    remove_leftovers(tmp_path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".hidden", "a.unfinished", "kept"]


def refuse_to_rename_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """As overlayfs does for the folders of an image's layer."""
    rename = Path.replace

    def replace(self: Path, target: Path) -> Path:
        if self.is_dir() and (self / "of-the-image").exists():
            raise OSError(errno.EXDEV, "Invalid cross-device link", str(self))
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", replace)


def test_a_folder_of_an_image_is_replaced_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that lay in an image's layer ended at each save: its old checkpoints could not be renamed."""
    refuse_to_rename_folders(monkeypatch)
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "of-the-image").touch()
    with atomic_folder(folder) as unfinished:
        (unfinished / "new").touch()
    assert [path.name for path in folder.iterdir()] == ["new"]
    (folder / "of-the-image").touch()
    atomic.remove_folder(folder, "new")
    assert [*tmp_path.iterdir()] == []


def test_what_can_not_be_renamed_loses_its_seal_before_anything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_to_rename_folders(monkeypatch)
    monkeypatch.setattr(atomic.shutil, "rmtree", lambda *_, **__: None)  # killed here
    folder = tmp_path / "step-1"
    folder.mkdir()
    for name in ("of-the-image", "seal.json"):
        (folder / name).touch()
    atomic.remove_folder(folder, "seal.json")
    assert [path.name for path in folder.iterdir()] == ["of-the-image"]
