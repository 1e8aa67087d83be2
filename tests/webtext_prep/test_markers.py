"""Completion markers: what they hold for, and that files between phases do not outlive a cut of power."""

from dataclasses import replace

import pytest

from webtext_prep import storage
from webtext_prep.errors import StorageBusyError
from webtext_prep.running import tasks as markers
from webtext_prep.running.file_ranges import TaskState
from webtext_prep.running.tasks import Done, Files, Markers, OutputMarker, Task
from webtext_prep.storage.stores import local


@pytest.fixture
def kept(tmp_path):
    return Markers(tmp_path / "markers", tmp_path / "scratch")


def task_that_made(path) -> Task:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"some bytes")
    return Task("one", writes=Files(made=path), key="key")


@pytest.mark.parametrize("result", [None, 0, {"in": 3}])
def test_a_marker_gives_back_the_result(kept, tmp_path, result):
    task = task_that_made(tmp_path / "output" / "a")
    assert kept.read(task) is None
    kept.write(task, Done(result, 7))
    assert kept.read(task) == Done(result, 7)
    assert kept.read(replace(task, key="other key")) is None
    (tmp_path / "output" / "a").write_bytes(b"fewer")
    assert kept.read(task) is None


def test_an_output_that_could_not_be_asked_about_is_not_taken_for_a_lost_one(kept, bucket, s3, unpersistent, tmp_path):
    """One failed request, and finished work was done again."""
    task, whole = Task("one", writes=Files(made=bucket / "a")), OutputMarker(tmp_path / "whole.json")
    with storage.create(bucket / "a") as file:
        file.write(b"some bytes")
    kept.write(task, Done(1, 1))
    whole.write("key", [bucket / "a"], bucket)
    s3.fail("HEAD", status=503)
    for ask in (lambda: kept.read(task), lambda: whole.holds("key", bucket)):
        with pytest.raises(StorageBusyError):
            ask()
        assert ask()
        s3.fail("HEAD", status=503)
    s3.reset()
    storage.remove(bucket / "a")
    assert kept.read(task) is None
    assert not whole.holds("key", bucket)


@pytest.mark.parametrize(("folder", "is_done"), [("output", True), ("scratch", False)])
def test_files_between_phases_count_until_the_machine_starts_again(kept, tmp_path, monkeypatch, folder, is_done):
    """Each of thousands of scratch files was flushed to the disk, milliseconds each, to outlive a cut of power."""
    task = task_that_made(tmp_path / folder / "a")
    monkeypatch.setattr(markers, "boot_id", lambda: "first")
    kept.write(task, Done(1, 1))
    assert kept.read(task) == Done(1, 1)
    monkeypatch.setattr(markers, "boot_id", lambda: "second")
    assert (kept.read(task) is not None) == is_done


def test_flushed_files_between_phases_count_after_any_restart_and_others_only_here(tmp_path, monkeypatch):
    """Tasks on other machines flush what they make; a boot id would say nothing of them."""
    flushed, here = Markers(tmp_path / "markers"), Markers(tmp_path / "markers", tmp_path / "scratch")
    task = task_that_made(tmp_path / "scratch" / "a")
    monkeypatch.setattr(markers, "boot_id", lambda: "first")
    flushed.write(task, Done(1, 1))
    assert flushed.read(task) == here.read(task) == Done(1, 1)
    here.write(task, Done(1, 1))
    assert here.read(task) == Done(1, 1)
    assert flushed.read(task) is None


def test_without_a_boot_id_no_later_process_counts_on_what_was_never_flushed(kept, tmp_path, monkeypatch):
    """Systems that do not say when they were started had one boot id for ever, and files that a cut of power had taken
    counted as done."""
    monkeypatch.setattr(local, "BOOT_ID_FILE", tmp_path / "none")
    monkeypatch.setenv("PATH", str(tmp_path))  # no sysctl
    task, state = task_that_made(tmp_path / "scratch" / "a"), tmp_path / "state.json"

    def found():
        return kept.read(task), TaskState(state, task).read()

    local.boot_id.cache_clear()
    try:
        kept.write(task, Done(1, 1))
        TaskState(state, task).write("half")
        assert found() == (Done(1, 1), "half")
        local.boot_id.cache_clear()  # as in the next process
        assert found() == (None, None)
    finally:
        local.boot_id.cache_clear()


def test_a_boot_id_of_macos_is_asked_of_sysctl(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "BOOT_ID_FILE", tmp_path / "none")
    sysctl = tmp_path / "sysctl"
    sysctl.write_text('#!/bin/sh\n[ "$*" = "-n kern.bootsessionuuid" ] && echo 5F0D-1\n')
    sysctl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    local.boot_id.cache_clear()
    try:
        assert local.boot_id() == "5F0D-1"
    finally:
        local.boot_id.cache_clear()
