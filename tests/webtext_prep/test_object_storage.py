"""Object storage, against a server of S3's protocol that fails as asked: nothing half, nothing wrong, nothing twice."""

import bz2
import errno
import itertools
import json
import lzma
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from object_store import Fault

from webtext_prep.documents import storage
from webtext_prep.documents.compression import read_chunks
from webtext_prep.documents.document import Document
from webtext_prep.documents.shards import read_documents, write_documents
from webtext_prep.documents.storage import location
from webtext_prep.documents.stores import failures, read_ahead
from webtext_prep.documents.stores import s3 as s3_module
from webtext_prep.errors import InputError, StorageBusyError, StorageError
from webtext_prep.running import lease

PIPELINES = Path(__file__).resolve().parents[2] / "pipelines"


@pytest.fixture
def pauses(monkeypatch) -> list[int]:
    """How often was waited before another attempt; nobody waits here."""
    found: list[int] = []
    monkeypatch.setattr(failures, "pause", found.append)
    return found


@pytest.fixture
def small(monkeypatch) -> None:
    """Ranges and parts of a few kilobytes."""
    for module, name, value in (
        (s3_module, "FIRST_BYTES", 1000),
        (read_ahead, "FIRST_BYTES", 1000),
        (read_ahead, "MOST_BYTES", 4000),
        (read_ahead, "BUFFER_BYTES", 100),
        (s3_module, "PART_BYTES", 3000),
        (s3_module, "PIECE_BYTES", 500),
    ):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", 1)


def put(place, data: bytes) -> None:
    with storage.create(place) as file:
        file.write(data)


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def names(folder) -> list[str]:
    return [entry.name for entry in storage.files_in(folder)]


def uploads(bucket) -> list:
    return bucket.fs.call_s3("list_multipart_uploads", Bucket=bucket.path.rstrip("/")).get("Uploads", [])


# Names and listings


def test_names_with_signs_that_urls_use_otherwise(bucket):
    folder = bucket / "a b" / "c+d"
    odd = [
        "%41.txt",
        "a b.txt",
        "a+b.txt",
        "é ü.txt",
        "q?x=1.txt",
        "h#1.txt",
        "http%3A%2F%2Fa.com%2F1.txt",
        "&=;,'.txt",
    ]
    for name in odd:
        put(folder / name, name.encode())
    assert sorted(odd) == names(folder)
    for name in odd:
        assert storage.read_bytes(folder / name) == name.encode()
        assert storage.size(folder / name) == len(name.encode())
        assert storage.read_bytes(location(str(folder / name))) == name.encode()
    assert [entry.name for entry, is_folder in storage.list_folder(bucket) if is_folder] == ["a b"]


def test_a_folder_of_more_than_a_thousand_objects(bucket, s3):
    from moto.core.models import DEFAULT_ACCOUNT_ID
    from moto.s3.models import s3_backends

    backend, name = s3_backends[DEFAULT_ACCOUNT_ID]["aws"], bucket.path.rstrip("/")
    for number in range(1005):
        backend.put_object(name, f"many/{number:05}.txt", b"")
    backend.put_object(name, "many/", b"")  # as consoles make a folder
    found = storage.list_folder(bucket / "many")
    assert [entry.name for entry, _ in found] == [f"{number:05}.txt" for number in range(1005)]
    assert [method for method, path in s3.requests] == ["GET", "GET"]
    assert storage.is_folder(bucket / "many")
    assert len(s3.requests) == 3


# Reading


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 30_000])
def test_a_stream_reads_what_was_written(bucket, small, size):
    data = noise(size)
    put(bucket / "file", data)
    with storage.open_for_reading(bucket / "file") as file:
        found = b"".join(iter(lambda: file.read(700), b""))
        assert found == data
        assert file.tell() == size
        for at, length in itertools.product((0, 5, 900, 3500, size // 2, size), (0, 1, 2500)):
            assert file.seek(at) == at
            assert file.read(length) == data[at : at + length]
        file.seek(-min(10, size), 2)
        assert file.read() == data[-min(10, size) :][: min(10, size)]
        file.seek(0)
        assert file.read() == data


def test_ranges_grow_and_are_fetched_once(bucket, s3, small):
    put(bucket / "file", noise(20_000))
    s3.requests.clear()
    assert len(storage.read_bytes(bucket / "file")) == 20_000
    # 1000, 2000, and then 4000 bytes at a time.
    assert [method for method, _ in s3.requests] == ["GET"] * 7


def test_a_small_file_takes_one_request(bucket, s3):
    put(bucket / "file", b"small")
    s3.requests.clear()
    assert storage.read_bytes(bucket / "file") == b"small"
    assert len(s3.requests) == 1


def test_a_stream_that_is_cut_goes_on_at_its_byte(bucket, s3, small, pauses, monkeypatch):
    monkeypatch.setattr(s3_module, "FIRST_BYTES", 10_000)
    data = noise(30_000)
    put(bucket / "file", data)
    s3.requests.clear()
    s3.fail("GET", "file", times=3, cut=2500)
    assert storage.read_bytes(bucket / "file") == data
    assert len(pauses) == 3
    assert s3.ranges[:4] == ["bytes=0-9999", "bytes=2500-9999", "bytes=5000-9999", "bytes=7500-9999"]


def test_an_answer_that_is_not_the_range_asked_for_is_never_taken_for_it(bucket, s3, small, pauses):
    """Some systems give all of an object, as of an empty one: behind what was there already it would be other bytes."""
    put(bucket / "none", b"")
    put(bucket / "file", noise(900))
    s3.fail("GET", times=4, is_whole=True)
    assert storage.read_bytes(bucket / "none") == b""
    assert storage.read_bytes(bucket / "file") == noise(900)
    s3.reset()
    s3.fail("GET", cut=300)
    s3.fail("GET", is_whole=True)
    with pytest.raises(OSError, match="does not give ranges"):
        storage.read_bytes(bucket / "file")


@pytest.mark.parametrize(("status", "code"), [(503, "SlowDown"), (500, "InternalError"), (429, "TooManyRequests")])
@pytest.mark.parametrize("method", ["GET", "PUT", "HEAD", "DELETE"])
def test_requests_that_are_turned_away_are_made_again(bucket, s3, pauses, method, status, code):
    put(bucket / "a.txt", b"one")
    s3.fail(method, times=3, status=status, code=code)
    put(bucket / "a.txt", b"two")
    assert names(bucket) == ["a.txt"]
    assert storage.size(bucket / "a.txt") == 3
    assert storage.read_bytes(bucket / "a.txt") == b"two"
    storage.remove(bucket / "a.txt")
    assert pauses == [1, 2, 3]


def test_a_storage_that_stays_busy_ends_in_a_sentence(bucket, s3, pauses):
    s3.fail("PUT", times=99, status=503, code="SlowDown")
    with pytest.raises(StorageBusyError, match=r"s3://.*a.txt did not answer as it should \(SlowDown\)"):
        put(bucket / "a.txt", b"one")
    assert len(pauses) == failures.ATTEMPTS - 1
    s3.reset()
    assert names(bucket) == []


def test_pauses_grow_and_differ(monkeypatch):
    slept: list[float] = []
    monkeypatch.setattr(failures.time, "sleep", slept.append)
    for tried in range(1, 12):
        failures.pause(tried)
    assert 0.1 <= slept[0] <= 0.2
    assert 10 <= slept[-1] <= 20
    assert len(set(slept)) == 11


def test_a_file_that_is_replaced_while_it_is_read_is_an_error(bucket, s3, small):
    put(bucket / "file", noise(20_000))
    with storage.open_for_reading(bucket / "file") as file:
        first = file.read(100)
        put(bucket / "file", noise(20_001))
        with pytest.raises(StorageError, match="file was changed while it was read"):
            file.read()
    assert first == noise(20_000)[:100]


def test_other_object_stores_are_read_ahead_and_compared_too(monkeypatch, small):
    place = location("memory://somewhere/file")
    put(place, noise(20_000))
    assert storage.read_bytes(place) == noise(20_000)
    with storage.open_for_reading(place) as file:
        file.read(100)
        put(place, noise(20_001))
        with pytest.raises(StorageError, match="file was changed while it was read"):
            file.read()


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl.zst", "a.jsonl.gz", "a.jsonl.bz2", "a.jsonl.xz", "a.jsonl"])
def test_a_failing_storage_is_not_taken_for_a_damaged_file(bucket, s3, small, pauses, name):
    documents = [Document(f"http://a.org/{number}", noise(2000 + number).hex()) for number in range(20)]
    if name.endswith((".bz2", ".xz")):
        text = "\n".join(document.text for document in documents).encode()
        put(bucket / name, (bz2 if name.endswith(".bz2") else lzma).compress(text))
    else:
        with write_documents(bucket / name) as writer:
            for document in documents:
                writer.write(document)

    def read() -> list:
        return list(read_chunks(bucket / name) if "jsonl" in name else read_documents(bucket / name))

    assert read()
    # The beginning can be read, and then no more.
    s3.faults.append(Fault(lambda method, path: s3.ranges[-1] != "bytes=0-999", times=99, status=503, code="SlowDown"))
    with pytest.raises(StorageBusyError):
        read()


# Writing


@pytest.mark.parametrize("size", [6000, 6001, 9000, 20_000])
def test_large_files_go_up_in_parts(bucket, s3, small, size):
    data = noise(size)
    s3.requests.clear()
    put(bucket / "file", data)
    assert storage.read_bytes(bucket / "file") == data
    parts = sum("partNumber" in path for _, path in s3.requests)
    assert parts == (0 if size == 6000 else -(-size // 3000))
    before = storage.stamp(bucket / "file")
    put(bucket / "file", data)
    assert storage.stamp(bucket / "file") == before
    assert uploads(bucket) == []


def test_nothing_is_visible_while_parts_go_up(bucket, s3, small):
    seen = []

    def look(method: str, path: str) -> None:
        if "partNumber" in path or "uploadId" in path:
            seen.append(names(bucket))

    s3.before = look
    put(bucket / "file", noise(20_000))
    assert len(seen) == 8
    assert not any(seen)


def test_parts_that_fail_go_up_again(bucket, s3, small, pauses):
    s3.fail("PUT", "partNumber=2", times=2, status=503, code="SlowDown")
    s3.fail("PUT", "partNumber=3", times=1, cut=0)
    put(bucket / "file", noise(20_000))
    assert storage.read_bytes(bucket / "file") == noise(20_000)
    assert sum("partNumber=1" in path for _, path in s3.requests) == 1
    assert pauses == [1, 2]


@pytest.mark.parametrize("size", [100, 20_000])
def test_an_answer_that_is_lost_costs_nothing(bucket, s3, small, pauses, size):
    """The server has done what was asked; asked once more, it knows nothing of the upload."""
    s3.fail("POST", "uploadId", cut=0)
    s3.fail("PUT", cut=0)
    put(bucket / "file", noise(size))
    assert storage.read_bytes(bucket / "file") == noise(size)
    assert sum(method == "PUT" for method, _ in s3.requests) == (2 if size == 100 else 8)
    assert sum("uploadId" in path and method == "POST" for method, path in s3.requests) == (0 if size == 100 else 2)


def test_an_upload_that_fails_leaves_the_old_file_and_no_parts(bucket, s3, small, pauses):
    put(bucket / "file", b"old")
    s3.fail("PUT", "partNumber=4", times=99, status=403, code="AccessDenied")
    with pytest.raises(PermissionError) as caught:
        put(bucket / "file", noise(20_000))
    assert caught.value.filename == str(bucket / "file")
    assert storage.read_bytes(bucket / "file") == b"old"
    assert uploads(bucket) == []


def test_an_upload_that_another_command_has_ended_is_made_again_with_its_task(bucket, s3, small, pauses):
    """Jobs of Slurm outlive their command; the next one took their uploads for those of killed writers."""
    s3.fail("PUT", "partNumber=4", status=404, code="NoSuchUpload")
    with pytest.raises(StorageBusyError, match="was ended as one of a killed command"):
        put(bucket / "file", noise(20_000))
    assert names(bucket) == uploads(bucket) == []


def test_uploads_of_killed_writers_are_ended(bucket):
    for key in ("out/a", "out/below/b", "other/c"):
        bucket.fs.call_s3("create_multipart_upload", Bucket=bucket.path.rstrip("/"), Key=key)
    storage.remove_leftovers(bucket / "out")
    assert sorted(entry["Key"] for entry in uploads(bucket)) == ["other/c", "out/below/b"]


# Errors as users meet them


@pytest.mark.parametrize(
    ("status", "code", "sentence"),
    [
        (400, "ExpiredToken", "the credentials for s3://.* have expired: renew them"),
        (403, "InvalidAccessKeyId", r"the credentials for s3://.* are not known there \(InvalidAccessKeyId\)"),
        (403, "RequestTimeTooSkewed", "this machine's clock is wrong"),
        (301, "PermanentRedirect", "lies in another region"),
        (403, "AccessDenied", "no permission for s3://.*: choose another path"),
        (404, "NoSuchBucket", "there is no bucket for s3://.*: check its name"),
    ],
)
def test_refusals_are_one_sentence(bucket, s3, webtext, tmp_path, status, code, sentence):
    for method in ("HEAD", "GET", "PUT"):
        s3.fail(method, times=99, status=status, code=code)
    for arguments in (
        ["clean", "--input", bucket / "in", "--output", tmp_path / "out"],
        ["clean", "--input", tmp_path, "--output", bucket / "out", "--state", tmp_path / "state"],
        ["inspect", bucket / "in"],
    ):
        (tmp_path / "part-00000.jsonl").write_text('{"url": "http://a.org/", "text": "a"}\n')
        result = webtext(*arguments)
        assert re.search(sentence, result.sentence)
        assert "hunter2" not in result.err


def test_no_credentials_and_no_server_are_one_sentence(tmp_path, s3, pauses):
    """In processes of their own: a session keeps the settings with which it began."""
    program = (
        "import sys; from webtext_prep.documents.stores import failures; failures.pause = lambda tried: None\n"
        "from webtext_prep import cli\n"
        "import os\n"
        "code = cli.main(sys.argv[1:]); os.environ.pop('AWS_ACCESS_KEY_ID')\n"
        "from webtext_prep.documents.storage import location; location('s3://b/x').fs.clear_instance_cache()\n"
        "print(code, cli.main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "inspect", "s3://bucket/folder"],
        env={**os.environ, "AWS_ENDPOINT_URL": "http://127.0.0.1:1", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    unreachable, unsigned = done.stderr.splitlines()
    assert "error: no connection to the storage of s3://bucket/folder" in unreachable
    assert "error: there are no credentials for s3://bucket/folder: set AWS_ACCESS_KEY_ID" in unsigned
    assert done.stdout == "1 1\n"


@pytest.mark.parametrize(("url", "extra"), [("gs://b/x", "gcs"), ("az://b/x", "azure"), ("abfs://b/x", "azure")])
def test_a_protocol_without_its_package_names_the_extra(url, extra, monkeypatch):
    for module in ("gcsfs", "adlfs"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError) as caught:
        location(url)
    assert str(caught.value) == (
        f"{url} needs packages that are not installed: install them with `pip install 'webtext-prep[{extra}]'`."
    )


def test_a_full_disk_for_drafts_is_said_as_one(bucket, disk_full_for):
    disk_full_for("webtext-upload")
    with pytest.raises(OSError) as caught:
        put(bucket / "file", b"one")
    assert caught.value.errno == errno.ENOSPC
    assert names(bucket) == []


# Stages


def shards_of(write_shards):
    """Four shards of three documents; the first of shard 2 makes its worker wait at the gate."""
    waits = Document("http://2.org/0", "wait here", {"wait": True})
    return write_shards([[waits if number == 2 else f"text {number}", "more", "and more"] for number in range(4)])


@pytest.mark.parametrize("home", ["s3"], indirect=True)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_command_leaves_nothing_half_and_goes_on(
    home, write_shards, contents, start, gate, webtext, tmp_path, workers
):
    folder, output, state = shards_of(write_shards), home / "out", tmp_path / "state"
    command = ["shout", "--input", folder, "--output", output, "--state", state, "--gate", gate.folder]
    webtext(*command[:3], "--output", home / "expected", "--state", tmp_path / "other", "--json").json
    gate.close()
    running = start(*command, "--workers", workers)
    done = [state / f"markers/shards/part-0000{number}.json" for number in range(2)]
    running.wait_until(lambda: running.at_the_gate() and all(marker.exists() for marker in done), "the gate")
    os.kill(running.process.pid, signal.SIGKILL)
    running.end()
    gate.open()
    made = contents(output)
    assert {"part-00000.jsonl.zst", "part-00001.jsonl.zst"} <= made.keys()
    assert "part-00002.jsonl.zst" not in made
    expected = contents(home / "expected")
    assert {name: data for name, data in made.items() if name.startswith("part-")}.items() <= expected.items()
    # Another machine, without the state, keeps away; what reads it is told that it is not finished.
    refused = webtext(*command[:5], "--state", tmp_path / "new")
    assert "another webtext command is at work on" in refused.sentence
    assert refused.code == 2
    unfinished = webtext("shout", "--input", output, "--output", tmp_path / "next")
    assert "is not finished: run the stage that makes it again" in unfinished.sentence
    done = webtext(*command, "--json").json
    assert (done["in"], done["out"]) == (12, 12)
    assert contents(output) == expected


@pytest.mark.parametrize("home", ["s3"], indirect=True)
def test_a_used_output_is_not_written_over_by_another_state(home, write_shards, contents, webtext, tmp_path):
    folder, output = shards_of(write_shards), home / "out"
    for stage in ("shout", "tokenize"):
        target = output / "corpus" if stage == "tokenize" else output
        command = [stage, "--input", folder, "--output", target]
        assert webtext(*command, "--state", tmp_path / stage, "--json").json["out"] == 12
        before = contents(output)
        refused = webtext(*command, "--state", tmp_path / "new")
        assert refused.code == 2
        assert re.search("holds other files|were not made by this command", refused.sentence)
        assert contents(output) == before
        copied = shutil.copytree(tmp_path / stage, tmp_path / f"copy-{stage}")
        assert webtext(*command, "--state", copied, "--json").json["resumed"]


@pytest.mark.parametrize("home", ["s3"], indirect=True)
def test_a_command_whose_lease_was_taken_over_stops(home, write_shards, webtext, tmp_path, monkeypatch):
    folder = shards_of(write_shards)

    def taken_over(self) -> None:
        self._taken_by = "process 5 on elsewhere since today"

    monkeypatch.setattr(lease.Lease, "_renew_often", taken_over)
    result = webtext("shout", "--input", folder, "--output", home / "out", "--state", tmp_path / "state")
    assert "out was taken over by process 5 on elsewhere since today" in result.sentence
    assert not storage.is_file(home / "out" / "stage.json")


@pytest.mark.parametrize("home", ["s3"], indirect=True)
def test_faults_all_along_change_no_byte(home, s3, pauses, write_shards, contents, webtext, tmp_path):
    folder = shards_of(write_shards)
    command = ["shout", "--input", folder, "--workers", 1]
    assert webtext(*command, "--output", home / "quiet", "--state", tmp_path / "quiet", "--json").json["out"] == 12
    kinds = [{"status": 503, "code": "SlowDown"}, {"cut": 0}, {"status": 500, "code": "InternalError"}, {"cut": 40}]
    for kind in kinds * 50:
        s3.faults.append(Fault(lambda method, path: len(s3.requests) % 3 == 0, **kind))
    assert webtext(*command, "--output", home / "noisy", "--state", tmp_path / "noisy", "--json").json["out"] == 12
    s3.faults.clear()
    assert len(pauses) > 10
    assert contents(home / "noisy") == contents(home / "quiet")


@pytest.mark.parametrize("home", ["s3"], indirect=True)
def test_what_was_made_is_exported_and_looked_at_there(home, write_shards, webtext, tmp_path):
    folder = shards_of(write_shards)

    def stage(name: str, source, target, *options: object) -> dict:
        state = tmp_path / "states" / target.name
        return webtext(name, "--input", source, "--output", target, "--state", state, *options, "--json").json

    stage("filter", folder, home / "mine", "--function", _keep(tmp_path), "--keep-dropped")
    stage("export", home / "mine", home / "exported")
    assert names(home / "exported" / "data") == ["train-00000-of-00001.parquet"]
    looked = webtext("inspect", home / "mine")
    assert looked.code == 0, looked.err
    assert "more" in looked.out + looked.err
    report = webtext("report", home / "mine", "--output", tmp_path / "report.html")
    assert report.code == 0, report.err
    assert "is a URL, and the indices" in webtext("why", "http://1.org/0", home / "mine").sentence


def _keep(folder) -> str:
    (folder / "keep.py").write_text("def keep(document):\n    return document.url.endswith('/1')\n")
    return f"{folder / 'keep.py'}:keep"


def test_a_pipeline_writes_to_object_storage_with_its_state_here(bucket, tmp_path, contents, webtext):
    (tmp_path / "texts").mkdir()
    for number in range(5):
        (tmp_path / "texts" / f"{number}.txt").write_text(f"A text of some words, of which this is number {number}.")
    webtext("merge", "--input", tmp_path / "texts", "--output", tmp_path / "merge", "--json").json
    tables = [f'[{name}]\noutput = "{bucket / name}"\n' for name in ("merge", "filter")]
    (tmp_path / "road.toml").write_text("".join([*tables, f'function = "{_keep_all(tmp_path)}"\n']))
    command = [sys.executable, PIPELINES / "run.py", "road.toml", "--input", "texts", "--folder"]
    done = subprocess.run([*command, "run"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "pipeline.json").read_text())["filter"]["out"] == 5
    assert contents(bucket / "merge") == contents(tmp_path / "merge")
    assert "stage.json" in names(bucket / "filter")
    assert (tmp_path / "run" / "merge.state" / "run.json").is_file()
    refused = subprocess.run([*command, "s3://bucket"], cwd=tmp_path, capture_output=True, text=True)
    assert refused.returncode == 2
    assert "is a URL, and training needs a folder of this machine" in refused.stderr


def _keep_all(folder) -> str:
    (folder / "all.py").write_text("def keep(document):\n    return True\n")
    return f"{folder / 'all.py'}:keep"
