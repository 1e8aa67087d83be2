"""Helpers for shards and commands. `support/` holds the stages of the tests, where worker processes can import them."""

import contextlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from command_kit.processes import _ensure_server
from webtext_prep import storage
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.shards import read_documents, shards_in, write_documents
from webtext_prep.running import engines
from webtext_prep.running.engines.ray import VARIABLES
from webtext_prep.storage import location
from webtext_prep.storage.locations import Location
from webtext_prep.storage.stores import object_store as objects

os.environ |= VARIABLES  # before anything imports Ray
SUPPORT = Path(__file__).parent / "support"
sys.path.insert(0, str(SUPPORT))

import processes  # noqa: E402
from object_store import ObjectStore  # noqa: E402
from pages_on_loopback import Site  # noqa: E402
from processes import descendants, is_alive, until  # noqa: E402
from ray_nodes import RayNodes  # noqa: E402


@pytest.fixture(autouse=True, scope="session")
def preloaded_workers() -> None:
    """Worker processes need not import their stages and GPT-2's encoder, in a second each."""
    _ensure_server(["preloaded"], {"PYTHONPATH": str(SUPPORT)})


@pytest.fixture(scope="module")
def joined_ray() -> Iterator[RayNodes]:
    """A Ray cluster with one node of two cores, which this process has joined: its workers serve all commands."""
    ray = pytest.importorskip("ray")
    before, nodes = signal.getsignal(signal.SIGTERM), RayNodes()
    ray.init(address=nodes.address, log_to_driver=False, logging_level=logging.ERROR)
    yield nodes
    ray.shutdown()
    signal.signal(signal.SIGTERM, before)
    nodes.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules with tests of Ray come first.

    With `--dist=worksteal` each process begins with a run of the list, and others take from its end: so one process has
    all of them, and starts a cluster once for each module.
    """
    with_ray = {item.path for item in items if "joined_ray" in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: item.path not in with_ray)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[ObjectStore]:
    store = ObjectStore()
    store.start()
    yield store
    store.stop()


@pytest.fixture
def s3(s3_server, monkeypatch) -> Iterator[ObjectStore]:
    """A server of S3's protocol, to which `s3://` leads; each test has a bucket of its own, `bucket`.

    Nobody waits here before a request is made again.
    """
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    settings = {
        "AWS_ENDPOINT_URL": s3_server.endpoint,
        "AWS_ACCESS_KEY_ID": "someone",
        "AWS_SECRET_ACCESS_KEY": "hunter2",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    backoff = {"init_backoff": timedelta(milliseconds=1), "max_backoff": timedelta(milliseconds=2), "base": 2}
    monkeypatch.setattr(objects, "RETRIES", {**objects.RETRIES, "backoff": backoff})
    s3_server.reset()
    yield s3_server
    s3_server.reset()


@pytest.fixture
def bucket(s3) -> Location:
    """An empty bucket."""
    name = f"b{uuid.uuid4().hex}"
    s3.backend.create_bucket(name, "us-east-1")
    return location(f"s3://{name}")


@pytest.fixture
def unpersistent(s3, monkeypatch) -> None:
    """No request to `s3` is made again."""
    monkeypatch.setattr(objects, "RETRIES", {**objects.RETRIES, "max_retries": 0})


@pytest.fixture
def home(request, tmp_path) -> Location:
    """An empty folder: on this machine, or as a test is parametrized (`indirect`) with `s3`, in object storage."""
    return request.getfixturevalue("bucket") if getattr(request, "param", "local") == "s3" else tmp_path


@pytest.fixture
def site() -> Iterator[Site]:
    """A web server on loopback."""
    site = Site()
    yield site
    site.stop()


@pytest.fixture
def strict(tmp_path, monkeypatch) -> Iterator[tuple[object, ...]]:
    """The flags of the engine `strict`, whose tasks find nothing but what they declare. Nothing may be left behind."""
    monkeypatch.setattr(engines, "__path__", [*engines.__path__, str(SUPPORT / "added_engines")])
    shared = tmp_path / "shared"
    shared.mkdir()
    yield "--engine", "strict", "--shared-scratch", shared, "--workers", 1
    sys.modules.pop("webtext_prep.running.engines.strict", None)
    assert not [path for path in shared.rglob("*") if path.is_file()]


@pytest.fixture
def latin(tmp_path) -> Path:
    """An empty folder whose name is not UTF-8, as archives and disks of other systems bring them."""
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("this file system takes no such names")
    return folder


@pytest.fixture
def state_of(home, tmp_path) -> Callable[[Location], Path]:
    """The folder for the state of an output: next to it, or for an output behind a URL a local one."""
    return lambda output: output / ".state" if home == tmp_path else tmp_path / "state" / output.name


@pytest.fixture
def write_shards(home) -> Callable[..., Location]:
    """`write_shards([[document, ...], ...], name="input")` writes a folder of shards and returns it.

    A document is a `Document`, or a text, which gets a URL of its own.
    """

    def write(shards: Iterable[Iterable[Document | str]], name: str = "input") -> Location:
        folder = home / name
        for number, shard in enumerate(shards):
            with write_documents(folder / f"part-{number:05}.jsonl.zst") as writer:
                for row, document in enumerate(shard):
                    if isinstance(document, str):
                        document = Document(f"http://{number}.org/{row}", document)
                    writer.write(document)
        return folder

    return write


@pytest.fixture
def read_shards() -> Callable[[Location], list[Document]]:
    """All documents of a folder of shards, in order."""
    return lambda folder: [d for shard in shards_in(folder) for d in read_documents(shard)]


@pytest.fixture
def contents() -> Callable[[Location], dict[str, bytes]]:
    """Name to bytes of every file below a folder, but those in which a stage keeps its state."""

    def read(folder: Location, below: str = "") -> dict[str, bytes]:
        found = {}
        for entry, is_folder in storage.list_folder(folder):
            if is_folder and entry.name != ".state":
                found |= read(entry, f"{below}{entry.name}/")
            elif not is_folder:
                found[below + entry.name] = storage.read_bytes(entry)
        return found

    return read


class Result:
    """What a command left on its two streams, and its exit code."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def __repr__(self) -> str:
        return f"Result({self.code}, {self.err!r})"  # for an assertion about the code, which says no more

    @property
    def json(self) -> dict:
        assert self.code == 0, self.err
        return json.loads(self.out)

    @property
    def messages(self) -> str:
        """Standard error without lines of progress, of which a busy machine leaves time for some."""
        return re.sub(r"(?m)^\S+  [\d,]+ .*/s(?:  .*)?\n", "", self.err)

    @property
    def sentence(self) -> str:
        """The one line on standard error, of a command that failed without a traceback."""
        assert self.code != 0
        assert self.out == ""
        assert self.messages.startswith("webtext: error: ")
        assert self.messages.count("\n") == 1, self.err
        return self.messages.strip()


@pytest.fixture
def webtext(capsys, monkeypatch) -> Iterator[Callable[..., Result]]:
    """`webtext("clean", "--input", folder, ...)` runs a command in this process, practice stages included.

    A stage has one worker, which is this process, unless its flags say otherwise.
    """
    import practice_webtext

    from webtext_prep import cli

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(cli, "find_stages", practice_webtext.with_practice_stages)

    def run(*arguments: object) -> Result:
        capsys.readouterr()
        words = [str(argument) for argument in arguments]
        if {*words[:1]} & practice_webtext.with_practice_stages().keys() and "--config" not in words:
            words[1:1] = ["--workers", "1"]
        try:
            code = cli.main(words)
        except SystemExit as end:
            code = int(end.code or 0)
        return Result(code, *capsys.readouterr())

    yield run
    signal.signal(signal.SIGTERM, before)


class Running:
    """A `webtext` command in a process group of its own."""

    def __init__(self, arguments: Iterable[object], gate: Path) -> None:
        self.gate = gate
        self.process = subprocess.Popen(
            [sys.executable, SUPPORT / "practice_webtext.py", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.family: set[int] = set()

    def at_the_gate(self) -> list[int]:
        """The processes that wait at the gate."""
        return [int(path.name.split("-")[1]) for path in self.gate.glob("reached-*")]

    def wait_until(self, happened: Callable[[], object], what: str, *, may_end: bool = False) -> None:
        """Wait for something while the command runs, and remember which processes it has started."""
        until(lambda: happened() or self.process.poll() is not None, what)
        assert may_end or self.process.poll() is None, self.process.communicate()
        self.family |= descendants(self.process.pid)

    def end(self) -> Result:
        """Wait for the end of the command and of all the processes that it started."""
        out, err = self.process.communicate(timeout=processes.PATIENCE)
        until(lambda: not any(map(is_alive, self.family)), "the end of the workers")
        return Result(self.process.returncode, out, err)


class Gate:
    """A pipe at which stages wait: `close` makes it, `open` lets everyone pass."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def close(self) -> None:
        os.mkfifo(self.folder / "gate")

    def open(self) -> None:
        other_end = os.open(self.folder / "gate", os.O_RDWR)
        (self.folder / "gate").unlink()
        os.close(other_end)
        for mark in self.folder.glob("reached-*"):
            mark.unlink()


@pytest.fixture
def gate(tmp_path) -> Gate:
    return Gate(tmp_path / "gate")


@pytest.fixture
def start(gate) -> Iterator[Callable[..., Running]]:
    """`start("shout", ...)` runs a command in the background; it is killed with the test if it is still there."""
    started: list[Running] = []

    def run(*arguments: object) -> Running:
        started.append(Running(arguments, gate.folder))
        return started[-1]

    yield run
    for running in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.process.pid, signal.SIGKILL)
        running.process.communicate()


@pytest.fixture
def names(monkeypatch):
    """`names[host] = [address, ...]`, or an error code of c-ares; all other names never answer."""
    import asyncio
    import socket

    import aiodns

    from webtext_prep.crawl.http import connections

    known = {}

    async def resolve(self, host, port=0, family=0):
        found = known.get(host)
        if found is None:
            await asyncio.Event().wait()
        if isinstance(found, int):
            raise OSError(None, "failed") from aiodns.error.DNSError(found, "failed")
        return [
            {"hostname": host, "host": entry, "port": port, "family": socket.AF_INET, "proto": 0, "flags": 0}
            for entry in found
        ]

    monkeypatch.setattr(connections.AsyncResolver, "resolve", resolve)
    return known
