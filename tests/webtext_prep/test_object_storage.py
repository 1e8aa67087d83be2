"""Object storage, against a server of S3's protocol that fails as asked: nothing half, nothing wrong, nothing twice."""

import base64
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
from datetime import timedelta
from pathlib import Path

import fsspec
import obstore
import pytest
from object_store import Fault

from webtext_prep import storage
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.inputs import find_inputs
from webtext_prep.documents.folders.shards import read_documents, write_documents
from webtext_prep.documents.folders.stage_record import read_record
from webtext_prep.documents.formats.compression import read_chunks
from webtext_prep.documents.records.base import Keys, SourceFile
from webtext_prep.documents.records.plain_text import TextRecords
from webtext_prep.errors import InputError, StorageBusyError, StorageError
from webtext_prep.storage import lease, location
from webtext_prep.storage.stores import object_store as objects

PIPELINES = Path(__file__).resolve().parents[2] / "pipelines"


@pytest.fixture
def small(monkeypatch) -> None:
    """Ranges and parts of a few kilobytes."""
    for module, name, value in (
        (objects, "FIRST_BYTES", 1000),
        (objects, "MOST_BYTES", 4000),
        (objects, "BUFFER_BYTES", 100),
        (objects, "PART_BYTES", 3000),
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


def uploads(bucket, s3) -> list[str]:
    """The keys of those that were not finished."""
    return sorted(upload.key_name for upload in s3.backend.list_multipart_uploads(bucket.name).values())


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


def test_a_folder_of_more_objects_than_one_answer_holds(bucket, s3, monkeypatch):
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "10")  # of S3 itself 1,000
    for number in range(15):
        s3.backend.put_object(bucket.name, f"many/{number:05}.txt", b"")
    s3.backend.put_object(bucket.name, "many/", b"")  # as consoles make a folder
    found = storage.list_folder(bucket / "many")
    assert [entry.name for entry, _ in found] == [f"{number:05}.txt" for number in range(15)]
    assert [method for method, path in s3.requests] == ["GET", "GET"]
    assert storage.is_folder(bucket / "many")
    assert len(s3.requests) == 3


def test_a_key_that_is_a_folder_too_hides_nothing(bucket):
    """The object was read, and what lies in the folder of its name left out without a word."""
    for name in ("b.jsonl", "b.jsonl/1.jsonl", "b.jsonl/c/2.jsonl"):
        put(bucket / "p" / name, b"")
    assert [(entry.name, is_folder) for entry, is_folder in storage.list_folder(bucket / "p")] == [
        ("b.jsonl", False),
        ("b.jsonl", True),
    ]
    for given in ("p", "p/b.jsonl", "p/**/*.jsonl"):
        found = find_inputs([f"{bucket}/{given}"], accepts=lambda place: True, kinds="files").files
        assert [str(file).partition("/p/")[2] for file in found] == ["b.jsonl", "b.jsonl/1.jsonl", "b.jsonl/c/2.jsonl"]


@pytest.mark.parametrize("key", ["a//2.txt", "a/./2.txt", "a/b/../2.txt", "a/2\n.txt", "/a/2.txt"])
def test_a_key_that_is_no_path_is_named(bucket, s3, key):
    """It was said that a path had an empty segment, and not what to do."""
    for name in ("a/1.txt", key):
        s3.backend.put_object(bucket.name, name, b"")
    with pytest.raises(OSError, match=r"which is no path: rename it, or give the other files by name\.$"):
        find_inputs([str(bucket)], accepts=lambda place: True, kinds="files")


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


def test_a_stream_that_is_cut_goes_on_at_its_byte(bucket, s3, small, monkeypatch):
    monkeypatch.setattr(objects, "FIRST_BYTES", 10_000)
    data = noise(30_000)
    put(bucket / "file", data)
    s3.fail("GET", "file", times=3, cut=2500)
    assert storage.read_bytes(bucket / "file") == data
    assert s3.ranges[:4] == ["bytes=0-9999", "bytes=2500-9999", "bytes=5000-9999", "bytes=7500-9999"]


def test_an_answer_that_is_not_the_range_asked_for_is_never_taken_for_it(bucket, s3, small):
    """Some systems give all of an object, as of an empty one: behind what was there already it would be other bytes."""
    put(bucket / "none", b"")
    put(bucket / "file", noise(900))
    s3.fail("GET", times=99, is_whole=True)
    assert storage.read_bytes(bucket / "none") == b""
    assert storage.read_bytes(bucket / "file") == noise(900)
    put(bucket / "file", noise(9000))
    assert storage.read_bytes(bucket / "file") == noise(9000)
    s3.reset()
    s3.fail("GET", cut=300)
    s3.fail("GET", is_whole=True)
    assert storage.read_bytes(bucket / "file") == noise(9000)


@pytest.mark.parametrize(("status", "code"), [(503, "SlowDown"), (500, "InternalError"), (429, "TooManyRequests")])
@pytest.mark.parametrize("method", ["GET", "PUT", "HEAD", "DELETE"])
def test_requests_that_are_turned_away_are_made_again(bucket, s3, method, status, code):
    put(bucket / "a.txt", b"one")
    s3.fail(method, times=3, status=status, code=code)
    put(bucket / "a.txt", b"two")
    assert names(bucket) == ["a.txt"]
    assert storage.size(bucket / "a.txt") == 3
    assert storage.read_bytes(bucket / "a.txt") == b"two"
    storage.remove(bucket / "a.txt")
    assert not any(fault.times for fault in s3.faults)


def test_a_storage_that_stays_busy_ends_in_a_sentence(bucket, s3):
    s3.fail("PUT", times=99, status=503, code="SlowDown")
    with pytest.raises(StorageBusyError, match=r"s3://.*a.txt did not answer as it should \(SlowDown\)"):
        put(bucket / "a.txt", b"one")
    assert [method for method, _ in s3.requests] == ["PUT"] * 9
    s3.reset()
    assert names(bucket) == []


def test_ctrl_c_is_heard_while_requests_are_made_again(bucket, s3, monkeypatch):
    """A client in Rust returns to Python when it has an answer, or has given up."""
    monkeypatch.setattr(objects, "RETRIES", {**objects.RETRIES, "backoff": {"init_backoff": timedelta(hours=1)}})
    s3.before = lambda method, path: os.kill(os.getpid(), signal.SIGINT)
    s3.fail("HEAD", times=99, status=503)
    with pytest.raises(KeyboardInterrupt):
        storage.stamp(bucket / "a.txt")


def test_a_file_that_is_replaced_while_it_is_read_is_an_error(bucket, s3, small):
    put(bucket / "file", noise(20_000))
    with storage.open_for_reading(bucket / "file") as file:
        first = file.read(100)
        put(bucket / "file", noise(20_001))
        with pytest.raises(StorageError, match="file was changed while it was read"):
            file.read()
    assert first == noise(20_000)[:100]


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl.zst", "a.jsonl.gz", "a.jsonl.bz2", "a.jsonl.xz", "a.jsonl"])
def test_a_failing_storage_is_not_taken_for_a_damaged_file(bucket, s3, small, name):
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


def test_a_failing_storage_is_not_taken_for_damaged_metadata(bucket, s3, unpersistent):
    """A text was left out for good, and a finished stage was to be made again with --restart."""
    put(bucket / "a.txt", b"a text")
    put(bucket / "a.json", b"{}")
    put(bucket / "stage.json", b'{"stage": "clean"}')
    source = SourceFile(bucket / "a.txt", "a.txt", bucket / "a.json")
    for part, ask in (
        ("a.json", lambda: list(TextRecords().read(source, Keys(("text",), ("url",))))),
        ("stage.json", lambda: read_record(bucket)),
    ):
        assert ask()
        s3.fail("GET", part, status=503, code="SlowDown")
        with pytest.raises(StorageBusyError, match="did not answer as it should"):
            ask()


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
    assert uploads(bucket, s3) == []


def test_nothing_is_visible_while_parts_go_up(bucket, s3, small):
    seen = []

    def look(method: str, path: str) -> None:
        if "partNumber" in path or "uploadId" in path:
            seen.append(names(bucket))

    s3.before = look
    put(bucket / "file", noise(20_000))
    assert len(seen) == 8
    assert not any(seen)


def test_parts_that_fail_go_up_again(bucket, s3, small):
    s3.fail("PUT", "partNumber=2", times=2, status=503, code="SlowDown")
    s3.fail("PUT", "partNumber=3", times=1, cut=0)
    put(bucket / "file", noise(20_000))
    assert storage.read_bytes(bucket / "file") == noise(20_000)
    assert sum("partNumber=1" in path for _, path in s3.requests) == 1


@pytest.mark.parametrize("size", [100, 20_000])
def test_an_answer_that_is_lost_costs_nothing(bucket, s3, small, size):
    """The server has done what was asked; asked once more, it knows nothing of the upload."""
    s3.fail("POST", "uploadId", cut=0)
    s3.fail("PUT", cut=0)
    put(bucket / "file", noise(size))
    assert storage.read_bytes(bucket / "file") == noise(size)
    assert sum(method == "PUT" for method, _ in s3.requests) == (2 if size == 100 else 8)
    assert sum("uploadId" in path and method == "POST" for method, path in s3.requests) == (0 if size == 100 else 2)


def test_an_upload_that_fails_leaves_the_old_file_and_no_parts(bucket, s3, small):
    put(bucket / "file", b"old")
    s3.fail("PUT", "partNumber=4", times=99, status=403, code="AccessDenied")
    with pytest.raises(PermissionError) as caught:
        put(bucket / "file", noise(20_000))
    assert caught.value.filename == str(bucket / "file")
    assert storage.read_bytes(bucket / "file") == b"old"
    assert uploads(bucket, s3) == []


def test_an_upload_that_another_command_has_ended_is_made_again_with_its_task(bucket, s3, small):
    """Tasks elsewhere may outlive their command; the next one took their uploads for those of killed writers."""
    s3.fail("PUT", "partNumber=4", status=404, code="NoSuchUpload")
    with pytest.raises(StorageBusyError, match="which a later command has ended"):
        put(bucket / "file", noise(20_000))
    assert names(bucket) == uploads(bucket, s3) == []


def test_uploads_of_killed_writers_are_ended(bucket, s3):
    for key in ("out/a", "out/below/b", "other/c"):
        s3.backend.create_multipart_upload(bucket.name, key, {}, "STANDARD", [], None, None, None)
    storage.remove_leftovers(bucket / "out")
    assert uploads(bucket, s3) == ["other/c", "out/below/b"]


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


def test_no_credentials_and_no_server_are_one_sentence(webtext, s3, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    result = webtext("inspect", "s3://unreachable/folder")
    assert "error: no connection to the storage of s3://unreachable/folder" in result.sentence
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    result = webtext("inspect", "s3://unsigned/folder")
    assert "error: there are no credentials for s3://unsigned/folder: set AWS_ACCESS_KEY_ID" in result.sentence


@pytest.mark.parametrize(
    ("url", "extra"), [("s3://b/x", "s3"), ("gs://b/x", "gcs"), ("az://b/x", "azure"), ("abfs://b/x", "azure")]
)
def test_a_protocol_without_its_package_names_the_extra(url, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(InputError) as caught:
        location(url)
    assert str(caught.value) == (
        f"{url} needs packages that are not installed: install them with `pip install 'webtext-gpt2[{extra}]'`."
    )


def address(url: str) -> str:
    """Where a request for an object goes, without its signature."""
    place = location(url)
    client = objects._client(place.protocol, place.parts[0])
    return obstore.sign(client, "GET", "/".join(place.parts[1:]), timedelta(1)).partition("?")[0]


def test_settings_of_azure_and_google_lead_to_their_servers(monkeypatch, tmp_path):
    """By the variables that their other tools take; there is no server of their protocols here."""
    key = base64.b64encode(b"hunter2").decode()
    named = f"DefaultEndpointsProtocol=https;AccountName=mine;AccountKey={key};EndpointSuffix=core.windows.net"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", named)
    assert address("az://inside/a b") == "https://mine.blob.core.windows.net/inside/a%20b"
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "other")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", key)
    assert address("az://outside/a") == "https://other.blob.core.windows.net/outside/a"
    assert address("abfs://inside@third.dfs.core.windows.net/a") == "https://third.blob.core.windows.net/inside/a"


def test_settings_of_s3_come_from_profiles_and_fsspec_too(s3, bucket, monkeypatch, tmp_path):
    put(bucket / "a", b"one")
    (tmp_path / "config").write_text(f"[profile mine]\nregion = eu-south-1\nendpoint_url = {s3.endpoint}\n")
    (tmp_path / "keys").write_text("[mine]\naws_access_key_id = someone\naws_secret_access_key = hunter2\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_PROFILE", "mine")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
    objects._client.cache_clear()
    assert storage.read_bytes(bucket / "a") == b"one"
    assert "/eu-south-1/" in s3.signatures[-1]
    monkeypatch.setitem(fsspec.config.conf, "s3", {"anon": "true", "endpoint_url": s3.endpoint})
    objects._client.cache_clear()
    s3.signatures.clear()
    with pytest.raises(PermissionError):
        storage.read_bytes(bucket / "a")
    assert s3.signatures == []


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


@pytest.mark.exhaustive
@pytest.mark.parametrize("home", ["s3"], indirect=True)
def test_a_killed_command_leaves_nothing_half_and_goes_on(home, write_shards, contents, start, gate, webtext, tmp_path):
    folder, output, state = shards_of(write_shards), home / "out", tmp_path / "state"
    command = ["shout", "--input", folder, "--output", output, "--state", state, "--gate", gate.folder]
    webtext(*command[:3], "--output", home / "expected", "--state", tmp_path / "other", "--json").json
    gate.close()
    running = start(*command, "--workers", 2)
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


BUSY = {"status": 503, "code": "SlowDown"}


@pytest.mark.parametrize(
    ("each", "kinds"),
    [
        (20, [BUSY]),
        pytest.param(
            3, [BUSY, {"cut": 0}, {"status": 500, "code": "InternalError"}, {"cut": 40}], marks=pytest.mark.exhaustive
        ),
    ],
)
@pytest.mark.parametrize("home", ["s3"], indirect=True)
def test_faults_all_along_change_no_byte(home, s3, write_shards, contents, webtext, tmp_path, each, kinds):
    folder = shards_of(write_shards)

    def make(name: str) -> dict[str, bytes]:
        for stage, source in (("shout", folder), ("tokenize", home / name / "shout")):
            state, output = tmp_path / name / stage, home / name / stage
            assert webtext(stage, "--input", source, "--output", output, "--state", state, "--json").json["out"] == 12
        return contents(home / name)

    quiet = make("quiet")
    s3.faults += [Fault(lambda method, path: len(s3.requests) % each == 0, **kind) for kind in kinds * 50]
    noisy = make("noisy")
    assert sum(not fault.times for fault in s3.faults) > 3
    assert noisy == quiet


@pytest.mark.exhaustive
def test_where_requests_fail_for_good_the_same_command_again_makes_the_same_bytes(
    bucket, s3, unpersistent, write_shards, contents, webtext, tmp_path
):
    """One in twenty; whatever the command has to take for an error, it takes for no answer."""
    command = ["shout", "--input", shards_of(write_shards), "--json"]
    assert webtext(*command, "--output", bucket / "quiet", "--state", tmp_path / "quiet").code == 0
    source = random.Random(3)
    s3.faults.append(Fault(lambda method, path: source.random() < 1 / 20, times=10**6, **BUSY))
    ends = []
    while 0 not in ends and len(ends) < 50:
        done = webtext(*command, "--output", bucket / "noisy", "--state", tmp_path / "noisy")
        ends.append(done.code)
        assert done.code == 0 or "did not answer as it should" in done.sentence
    s3.reset()
    assert done.json["out"] == 12
    assert contents(bucket / "noisy") == contents(bucket / "quiet")


@pytest.mark.parametrize("home", ["s3"], indirect=True)
def test_what_was_made_is_exported_and_looked_at_there(home, write_shards, webtext, tmp_path):
    folder = shards_of(write_shards)

    def stage(name: str, source, target, *options: object) -> dict:
        state = tmp_path / "states" / target.name
        return webtext(name, "--input", source, "--output", target, "--state", state, *options, "--json").json

    stage("filter", folder, home / "mine", "--function", _keep(tmp_path))
    stage("export", home / "mine", home / "exported")
    assert names(home / "exported" / "data") == ["train-00000-of-00001.parquet"]
    looked = webtext("inspect", home / "mine")
    assert looked.code == 0, looked.err
    assert "more" in looked.out + looked.err
    report = webtext("report", home / "mine", "--output", tmp_path / "report.html")
    assert report.code == 0, report.err
    assert "is a URL, and outputs are searched on this" in webtext("why", "http://1.org/0", home / "mine").sentence


def _keep(folder) -> str:
    (folder / "keep.py").write_text("def keep(document):\n    return document.url.endswith('/1')\n")
    return f"{folder / 'keep.py'}:keep"


@pytest.mark.exhaustive
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
