"""Tasks on machines that see nothing but storage: each stage gives the same bytes, and nothing stays behind."""

import tempfile
from pathlib import Path

import pytest
import road
from jobs import job_of
from pages_on_loopback import serve_pages
from practice_stages import Shout

from webtext_prep import storage
from webtext_prep.documents.folders.shards import shards_in
from webtext_prep.errors import InputError, RetryableError, WebtextError
from webtext_prep.running import staging
from webtext_prep.running.engines.local import LocalEngine
from webtext_prep.running.staging import BEACON, SEEN, OnSharedFiles, SharedScratch
from webtext_prep.running.tasks import Context, Files, Task


def test_a_download_fetches_here_and_its_pages_are_extracted_on_nodes(webtext, strict, read_shards, tmp_path):
    def page(path: str) -> str:
        return f"<html><body><article><p>{road.text_of(len(path))}</p></article></body></html>"

    extracting = ("--extractor", "resiliparse", "--json")
    with serve_pages(page) as address:
        urls = [f"{address}/{'a' * number}" for number in range(1, 7)]
        (tmp_path / "urls.txt").write_text("\n".join(urls))
        flags = ("--input", tmp_path / "urls.txt", "--output", tmp_path / "pages", *extracting)
        flags = (*flags, "--allow-private-addresses", "loopback", "--no-robots", "--save-pages", "--delay", 0)
        refused = webtext("download", *flags, *strict)
        assert refused.code == 2 and "webtext download works in one process of this machine" in refused.sentence
        assert webtext("download", *flags).json["out"] == 6
    again = ("--input", tmp_path / "pages", "--output", tmp_path / "again", *extracting)
    assert webtext("extract", *again, *strict).json["out"] == 6
    assert [found.url for found in read_shards(tmp_path / "again")] == urls


# A call by itself


def join_files(task, context):
    """What the inputs hold, to the output; and how often that was done on this node, to a file of a folder."""
    text = "+".join(Path(file).read_text() for file in (*task.reads.all(), *task.unkeyed.all()))
    for place in task.writes.all():
        Path(place).write_text(text)
    if task.folder is not None:
        Path(task.folder).mkdir(exist_ok=True)
        (Path(task.folder) / "one").write_text(text)
    return text


@pytest.fixture
def node(tmp_path, monkeypatch):
    """This process is a node with a temporary folder of its own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "node"))
    (tmp_path / "node").mkdir()
    return tmp_path / "node"


@pytest.fixture(params=["local", "s3"])
def shared(request, tmp_path, node):
    place = tmp_path if request.param == "local" else request.getfixturevalue("bucket")
    found = SharedScratch(place / "shared" / "job")
    found.begin()
    yield found
    found.remove()
    assert not storage.files_in(found.place)


def run(shared, task, tmp_path):
    stamps = {place: storage.stamp(place) for place in (*task.reads.all(), *task.unkeyed.all())}
    return shared.wrapped(join_files, stamps)(task, Context(tmp_path / "scratch", 1, lambda units: None))


def write(place, text: str) -> None:
    with storage.create(place) as file:
        file.write(text.encode())


def test_files_come_to_a_node_once_and_what_it_made_goes_back(shared, node, tmp_path, monkeypatch):
    a, b, c = (shared.place / "deep" / name for name in "abc")
    write(a, "A")
    write(b, "B")
    task = Task("one", Files(a=a), Files(c=c), unkeyed=Files(b=b), folder=shared.place / "many")
    assert run(shared, task, tmp_path) == "A+B"
    assert storage.read_bytes(c) == storage.read_bytes(shared.place / "many" / "one") == b"A+B"
    opened, read = [], storage.open_for_reading
    monkeypatch.setattr(staging.storage, "open_for_reading", lambda place: opened.append(place) or read(place))
    for name in ("two", "three"):
        assert run(shared, Task(name, Files(both=(a, c)), unkeyed=Files(b=b)), tmp_path) == "A+A+B+B"
    assert [place for place in opened if place.name != BEACON] == [c]


def test_a_copy_of_an_older_file_is_not_used(shared, node, tmp_path):
    """A file that was made again, of the same name and size, is another one."""
    a = shared.place / "a"
    write(a, "first")
    assert run(shared, Task("one", Files(a=a)), tmp_path) == "first"
    write(a, "again")
    assert run(shared, Task("one", Files(a=a)), tmp_path) == "again"


def test_a_node_keeps_the_files_of_one_phase_and_of_no_job_that_is_over(shared, node, tmp_path):
    other = SharedScratch(tmp_path / "shared" / "other")
    other.begin()
    a, b = shared.place / "a", shared.place / "b"
    write(other.place / "a", "of another job")
    for place in (a, b):
        write(place, place.name)
    run(other, Task("one", Files(a=other.place / "a")), tmp_path)
    run(shared, Task("one", Files(a=a)), tmp_path)
    run(shared, Task("two", Files(b=b)), tmp_path)
    copies = [path for path in node.rglob("files/*") if path.is_file()]
    assert sorted(path.read_text() for path in copies) == ["b", "of another job"]
    other.remove()
    run(shared, Task("three", Files(a=a)), tmp_path)
    copies = [path for path in node.rglob("files/*") if path.is_file()]
    assert [path.read_text() for path in copies] == ["a"]


def test_processes_of_a_node_that_begin_a_phase_do_not_disturb_each_other(shared, node, tmp_path):
    """Each removed what the others had made, and one of them a note that another was about to read."""
    a, b = shared.place / "a", shared.place / "b"
    for place in (a, b):
        write(place, place.name)
    run(shared, Task("one", Files(both=(a, b))), tmp_path)
    found = {path: path.stat().st_ino for path in node.rglob("files/*")}
    run(shared, Task("two", Files(both=(a, b))), tmp_path)
    assert {path: path.stat().st_ino for path in node.rglob("files/*")} == found
    assert len(found) == 2
    (note,) = (path for path in node.rglob("versions/*") if path.suffix != ".lock" and path.read_text().endswith(" a"))
    note.with_name("gone").symlink_to(note.with_name("removed"))
    run(shared, Task("three", Files(b=b)), tmp_path)
    assert len([path for path in node.rglob("files/*") if path.is_file()]) == 1


def test_a_copy_from_before_the_node_started_again_is_fetched_again(shared, node, tmp_path, monkeypatch):
    """After a power cut a copy was empty, which is never flushed, and its note said that it was there."""
    a = shared.place / "a"
    write(a, "text")
    monkeypatch.setattr(staging, "boot_id", lambda: "first")
    assert run(shared, Task("one", Files(a=a)), tmp_path) == "text"
    (copy,) = (path for path in node.rglob("files/*") if path.is_file())
    copy.write_bytes(b"")
    monkeypatch.setattr(staging, "boot_id", lambda: "second")
    assert run(shared, Task("one", Files(a=a)), tmp_path) == "text"


def test_a_file_that_can_not_be_copied_is_tried_again(shared, node, tmp_path):
    a = shared.place / "a"
    write(a, "text")
    call = shared.wrapped(join_files, {a: storage.stamp(a)})
    storage.remove(a)
    with pytest.raises(RetryableError, match="could not be copied on"):
        call(Task("one", Files(a=a)), Context(tmp_path, 1, lambda units: None))


def test_a_node_without_the_storage_or_an_input_says_so(tmp_path, node):
    shared = SharedScratch(tmp_path / "shared" / "job")
    with pytest.raises(InputError, match=r"can't use .*give a --shared-scratch that every machine"):
        shared.wrapped(join_files, {})(Task("one"), Context(tmp_path, 1, lambda units: None))
    shared.begin()
    with pytest.raises(InputError, match=r"does not see .*here\.txt: put it where all machines"):
        shared.wrapped(join_files, {})(
            Task("one", Files(here=tmp_path / "here.txt")), Context(tmp_path, 1, lambda units: None)
        )
    with pytest.raises(InputError, match=r"does not see rules\.txt: put it where all machines"):
        shared.wrapped(join_files, {}, ["rules.txt"])(Task("one"), Context(tmp_path, 1, lambda units: None))


def test_a_node_that_does_not_see_the_state_folder_says_so(tmp_path, node):
    """It would have found nothing, or files of another machine under the same path."""
    state, task = tmp_path / "state", Task("one", writes=Files(out=tmp_path / "state" / "out"))
    call = OnSharedFiles.of(join_files, state)
    assert call(task, Context(tmp_path, 1, lambda units: None)) == ""
    assert OnSharedFiles.of(join_files, state) == call
    (state / SEEN).unlink()
    for other in (None, OnSharedFiles.of(join_files, state)):
        assert other is None or other.token != call.token
        with pytest.raises(InputError, match=r"does not see the state folder .*--state DIR, or give --shared-scratch"):
            call(task, Context(tmp_path, 1, lambda units: None))


class Elsewhere(LocalEngine):
    """An engine whose machines write to disks of their own."""

    is_here = False

    def run(self, call, tasks, **options):
        for position, result in super().run(call, tasks, **options):
            for file in tasks[position].writes.all():
                file.unlink()
            yield position, result


def test_an_output_on_the_disk_of_another_machine_is_named(write_shards, tmp_path):
    """Its size was asked for, and the command ended with a traceback."""
    job = job_of(Shout(), shards_in(write_shards([["a"]])), tmp_path / "out", engine=Elsewhere(1))
    with pytest.raises(
        WebtextError, match=r"out/part-00000.* was made on another machine, and this one does not see it"
    ):
        job.run()
    assert not list((tmp_path / "out").glob(".look*"))


def test_storage_for_tasks_that_run_here_is_refused(webtext, write_shards, tmp_path):
    source = write_shards([["a"]])
    done = webtext("clean", "--input", source, "--output", tmp_path / "out", "--shared-scratch", tmp_path / "shared")
    assert done.code == 2
    assert "--shared-scratch is for tasks on other machines, and --engine local runs them here" in done.sentence


def test_what_an_interrupted_run_left_in_storage_is_removed_by_the_next_one(webtext, strict, write_shards, tmp_path):
    source, out = write_shards([["some text"], ["other text"]]), tmp_path / "out"
    flags = ("shout", "--input", source, "--output", out)
    assert webtext(*flags, *strict).code == 0
    left = tmp_path / "elsewhere" / "shout-1"
    SharedScratch(left).begin()
    write(left / "deep" / "file", "left behind")
    (out / ".state" / "shared-scratch").write_text(str(left))
    assert webtext(*flags, "--restart").code == 0
    assert not left.exists()
