"""Storage: the same promises on this machine and behind a URL, and a new kind of it in one file."""

import errno
import functools
import http.server
import json
import os
import pickle
import threading
from pathlib import Path
from typing import ClassVar

import pytest

from webtext_prep import storage
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.inputs import find_inputs, is_url_list
from webtext_prep.documents.folders.shards import write_documents
from webtext_prep.errors import InputError, StorageError
from webtext_prep.running.tasks import Done, Files, Markers, Task
from webtext_prep.storage import location, stores
from webtext_prep.storage.stores import read_only


@pytest.fixture(params=["local", "s3"])
def folder(request, tmp_path):
    """An empty folder in each kind of storage that is written."""
    return (tmp_path if request.param == "local" else request.getfixturevalue("bucket")) / "corpus"


def put(place, data: bytes) -> None:
    with storage.create(place) as file:
        file.write(data)


def test_what_was_created_can_be_read_listed_and_removed(folder):
    put(folder / "b.txt", b"two")
    put(folder / "a.txt", b"one")
    put(folder / "below" / "c.txt", b"three")
    assert storage.read_bytes(folder / "a.txt") == b"one"
    assert storage.size(folder / "below" / "c.txt") == 5
    assert [(entry.name, is_folder) for entry, is_folder in storage.list_folder(folder)] == [
        ("a.txt", False),
        ("b.txt", False),
        ("below", True),
    ]
    assert storage.is_folder(folder)
    assert storage.is_file(folder / "b.txt")
    storage.remove(folder / "b.txt")
    storage.remove(folder / "b.txt")
    assert not storage.is_file(folder / "b.txt")
    assert [entry.name for entry in storage.files_in(folder)] == ["a.txt"]
    with pytest.raises(FileNotFoundError):
        storage.read_bytes(folder / "b.txt")


def test_nothing_is_visible_before_it_is_whole(folder):
    with storage.create(folder / "a.txt") as file:
        file.write(b"half")
        file.flush()
        assert not storage.is_file(folder / "a.txt")
    assert storage.read_bytes(folder / "a.txt") == b"half"


def test_a_failed_writer_leaves_what_was_there(folder):
    put(folder / "a.txt", b"old")
    with pytest.raises(ValueError, match="stop"), storage.create(folder / "a.txt") as file:
        file.write(b"new")
        raise ValueError("stop")
    assert storage.read_bytes(folder / "a.txt") == b"old"
    assert [entry.name for entry in storage.files_in(folder)] == ["a.txt"]


def test_a_stamp_changes_when_the_file_does(folder):
    put(folder / "a.txt", b"one")
    before = storage.stamp(folder / "a.txt")
    assert before == storage.stamp(folder / "a.txt") == json.loads(json.dumps(before))
    put(folder / "a.txt", b"two")
    assert storage.stamp(folder / "a.txt") != before


def test_objects_are_asked_about_side_by_side(bucket, s3, tmp_path):
    """10,000 shards in object storage took 10,000 round trips, one after another, before the first task."""
    places = [bucket / f"{number}.txt" for number in range(4)]
    for place in places:
        put(place, place.name.encode())
    tasks = [Task(place.name, writes=Files(made=place)) for place in places]
    markers = Markers(tmp_path)
    for task in tasks:
        markers.write(task, Done(None, 1))
    all_asked = threading.Barrier(4, timeout=60)
    s3.before = lambda method, path: all_asked.wait()
    assert [name for name, _, _ in storage.stamps(places)] == [place.name for place in places]
    assert storage.sizes(places) == [5] * 4
    assert markers.read_all(tasks) == [Done(None, 1)] * 4


def test_a_finished_file_is_moved_to_its_place(folder, tmp_path):
    draft = tmp_path / "draft"
    draft.write_bytes(b"done")
    storage.publish(draft, folder / "a.txt")
    assert storage.read_bytes(folder / "a.txt") == b"done"
    assert not draft.exists()


def test_a_location_travels_to_other_processes(folder):
    assert pickle.loads(pickle.dumps(folder / "a.txt")) == folder / "a.txt"


def test_what_a_file_is_named_and_what_a_url_is():
    assert location("work/urls") == Path("work/urls")
    assert location("file:///data/urls") == Path("/data/urls")
    assert str(location("memory://bucket/urls")) == "memory://bucket/urls"
    assert location("a:b//c") == Path("a:b//c")
    with pytest.raises(InputError, match="nothing://x can't be opened"):
        location("nothing://x")


def test_a_store_is_added_in_one_file(tmp_path, plugin):
    """The interface is enough: a store of which the package knows nothing serves a protocol of its own."""
    source = (
        "import io\n"
        "from pathlib import Path\n"
        "from webtext_prep.storage.stores.local import LocalStore\n"
        "class UpperCase(LocalStore):\n"
        "    protocols = ('upper',)\n"
        "    def open(self, location):\n"
        "        return io.BytesIO(Path('/', *location.parts).read_bytes().upper())\n"
    )
    (tmp_path / "a.txt").write_text("loud")
    plugin(stores, "upper_case", source, storage._stores)
    assert storage.read_bytes(location(f"upper://{tmp_path}/a.txt")) == b"LOUD"


# Other URLs are read


@pytest.fixture
def web(tmp_path):
    """The URL of a folder with a document and a list, as a web server shows it; requests get the statuses of `fail`."""
    folder = tmp_path / "served"
    (folder / "below").mkdir(parents=True)
    (folder / "urls.txt").write_text("http://a.org/1\nhttp://b.org/2\n")
    with write_documents(folder / "below" / "part-00000.jsonl") as writer:
        writer.write(Document("http://c.org/3", "some text of a page"))

    class Handler(http.server.SimpleHTTPRequestHandler):
        fail: ClassVar[list[int]] = []

        def send_head(self):
            if self.fail:
                self.send_error(self.fail.pop())
                return None
            return super().send_head()

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield location(f"http://127.0.0.1:{server.server_port}"), Handler.fail
    server.shutdown()
    server.server_close()


def test_a_file_and_a_folder_of_a_web_server_are_read(web, webtext, tmp_path):
    place, _ = web
    assert storage.is_folder(place / "below") and storage.is_file(place / "urls.txt")
    assert not storage.is_folder(place / "urls.txt") and not storage.is_file(place / "none")
    assert storage.list_folder(place / "none") == []
    assert storage.stamp(place / "urls.txt")[:2] == ["urls.txt", 30]
    made = webtext("shout", "--input", place / "below", "--output", tmp_path / "out", "--json").json
    assert made["in"] == 1


@pytest.mark.parametrize("status", [403, 429, 503])
@pytest.mark.parametrize("ask", [storage.is_file, storage.is_folder, storage.list_folder, storage.stamp])
def test_a_request_that_fails_is_no_answer(web, ask, status):
    """A server that was busy for a moment had no such file."""
    place, fail = web
    fail += [status] * 20
    with pytest.raises(OSError) as caught:
        ask(place / "urls.txt")
    assert not isinstance(caught.value, FileNotFoundError)
    fail.clear()
    fail.append(404)
    assert storage.is_file(place / "urls.txt")  # asked for its head, then for itself


def test_a_server_that_sends_no_part_of_a_file_is_named(web, tmp_path, monkeypatch):
    """A large archive there ended in an internal error."""
    monkeypatch.setattr(read_only, "READ_AHEAD_BYTES", 8)
    (tmp_path / "served" / "large").write_bytes(bytes(100_000))
    with storage.open_for_reading(web[0] / "large") as file:
        assert file.read(8) == bytes(8)
        file.seek(90_000)
        with pytest.raises(
            StorageError, match=r"large can only be read from its beginning, .* copy it to this machine"
        ):
            file.read(8)


class Hub(http.server.BaseHTTPRequestHandler):
    """What a repository of datasets on Hugging Face's hub answers that holds one file."""

    content, version = b"http://a.org/1\nhttp://b.org/2\n", "1" * 40

    def do_GET(self):
        begin, end = map(int, self.headers.get("Range", "bytes=0-99")[6:].split("-"))
        if self.path == "/datasets/o/n/resolve/main/urls.txt":
            self.answer(206, self.content[begin : end + 1])
        elif self.path.startswith("/api/datasets/o/n/tree/main"):
            entry = {"type": "file", "path": "urls.txt", "size": len(self.content), "oid": self.version}
            self.answer(200, json.dumps([entry]).encode())
        else:
            self.answer(200, json.dumps({"id": "o/n", "sha": "0" * 40, "siblings": []}).encode())

    def answer(self, status, data):
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments):
        pass


def test_a_file_of_a_hub_is_read_and_told_from_another_version(monkeypatch):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        template = url + "/{repo_id}/resolve/{revision}/{filename}"
        for name, value in (("ENDPOINT", url), ("HF_HUB_OFFLINE", False), ("HUGGINGFACE_CO_URL_TEMPLATE", template)):
            monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
        place = location("hf://datasets/o/n/urls.txt")
        assert storage.is_file(place) and storage.list_folder(place.parent) == [(place, False)]
        assert find_inputs(["hf://datasets/o/n"], accepts=is_url_list, kinds="URL lists").files == [place]
        assert storage.read_bytes(place) == Hub.content
        before = storage.stamp(place)
        monkeypatch.setattr(Hub, "version", "2" * 40)
        assert before[:2] == ["urls.txt", 30] and storage.stamp(place) != before
        server.shutdown()


def test_other_urls_are_not_written(web, webtext, write_shards, tmp_path):
    place, _ = web
    advice = ": write to a local folder, or to a URL of s3://, gs:// or az://."
    for url in (place / "out", "memory://bucket/out", "sftp://host/out"):  # paramiko is not asked for first
        refused = webtext("clean", "--input", write_shards([["a"]]), "--output", url, "--state", tmp_path / "state")
        assert (refused.code, refused.sentence) == (2, f"webtext: error: nothing can be written to {url}{advice}")
    assert not (tmp_path / "state").exists()
    with pytest.raises(InputError, match="nothing can be written to"), storage.create(place / "a.txt"):
        pass


# Local files


def test_a_finished_file_may_come_from_another_file_system(tmp_path, monkeypatch):
    """With its --state on another file system than its output, a download ended in "Invalid cross-device link"."""
    replace = Path.replace

    def on_one_file_system(self, target):
        if self.parent != Path(target).parent:
            raise OSError(errno.EXDEV, "Invalid cross-device link", str(self))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", on_one_file_system)
    draft, place = tmp_path / "draft", tmp_path / "folder" / "a.txt"
    draft.write_bytes(b"one")
    storage.publish(draft, place)
    assert place.read_bytes() == b"one"
    assert not draft.exists()
    assert [path.name for path in place.parent.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("content", [b"old", b"new", b"longer"])
def test_a_local_file_is_left_alone_where_it_would_stay_the_same(tmp_path, content):
    place = tmp_path / "file"
    place.write_bytes(b"old")
    os.utime(place, ns=(5, 5))
    with storage.create(place) as file:
        file.write(content)
    assert (storage.stamp(place)[2] == 5) == (content == b"old")
    os.utime(place, ns=(5, 5))
    (tmp_path / "draft").write_bytes(content)
    storage.publish(tmp_path / "draft", place)
    assert storage.stamp(place)[2] == 5
    (tmp_path / "draft").write_bytes(b"odd")
    storage.publish(tmp_path / "draft", place)
    assert storage.stamp(place)[2] != 5
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert place.read_bytes() == b"odd"
