"""Every stage on every engine, here and in object storage: the same bytes, and nothing left behind."""

import contextlib
import io
import json
import os
import signal
from pathlib import Path

import pytest
import road
import zstandard
from pages_on_loopback import serve_pages
from ray_nodes import AWS_CONFIG

from webtext_prep import cli, storage

STATE = ".state/"
TIMED = "downloaded/outcomes/"
"""Tells, among other things, how long each answer took."""
MAPPED = {"index-tokens"}
"""Stages whose output lies next to token files, which are on this machine."""


def run(*arguments: object) -> str:
    """Run a command in this process; it must succeed. Returns the last line that it writes."""
    before, said = signal.getsignal(signal.SIGTERM), io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = cli.main([str(argument) for argument in arguments])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert code == 0, said.getvalue()
    return said.getvalue().splitlines()[-1]


def files_of(contents) -> dict[str, bytes]:
    """What is to be the same: all but state folders, and how long things took.

    The tasks by which `merge` reads, and so the files of their receipts, follow from the sizes of its input: what they
    hold one after another is the same however small its parts are.
    """
    found = {name: data for name, data in contents.items() if STATE not in name and not name.startswith(TIMED)}
    of_reading = sorted(name for name in found if name.startswith("merged/dropped/"))
    for name in of_reading:
        lines = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(found.pop(name)), read_across_frames=True).read()
        found["merged/dropped"] = found.get("merged/dropped", b"") + lines
    return found


class Road:
    """All stages in order.

    Args:
        home: a folder; the outputs of the run that the others are compared with are in `home / "here"`.
        address: of a web server, for `download`.
    """

    def __init__(self, home: Path, address: str) -> None:
        self.home, self.here = home, home / "here"
        road.write_settings(home / "settings")
        lists = [[f"{address}/{number}/{path}" for path in range(3)] for number in range(2)]
        self.lists = {f"lists/{at}.txt": "\n".join(urls).encode() for at, urls in enumerate(lists)}
        options = ("--allow-private-addresses", "loopback", "--no-robots", "--delay", 0, "--extractor", "resiliparse")
        download = road.Step("download", ("input/lists",), "downloaded", options)
        self.steps = [download, *road.steps(home / "settings", self.here / "tokenizer")]

    def walk(self, place, state: Path, *flags: object, end: str = "") -> list[str]:
        """Take the input through all stages, or as far as the output `end`, with outputs below `place`.

        Returns the names of the outputs.
        """
        road.write_inputs(place, road.input_files() | self.lists)
        targets = [step.target for step in self.steps]
        steps = self.steps[: targets.index(end) + 1] if end else self.steps
        for step in steps:
            if step.stage not in MAPPED or isinstance(place, Path):
                its_state = ["--state", state / step.target] if step.target else []
                own = () if step.stage == "download" and "--engine" in flags else flags  # one process of this machine
                run(*step.command(place, self.here), *its_state, *own)
        return [step.target for step in steps]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The road, and what it makes in one process of this machine."""
    with serve_pages(lambda path: f"<html><article><p>{road.text_of(len(path))}</p></article></html>") as address:
        found = Road(tmp_path_factory.mktemp("road"), address)
        found.walk(found.here, found.home / "state", "--workers", 1)
        yield found


@pytest.fixture
def walk(reference, contents, tmp_path):
    """`walk(place, ...)` goes the road with these flags, and compares; it returns the names of the outputs."""

    def compare(place, *flags: object, end: str = "") -> list[str]:
        targets = reference.walk(place, tmp_path / "state", *flags, end=end)
        expected, found = files_of(contents(reference.here)), files_of(contents(place))
        if end:
            names = ("input", *targets)
            expected = {
                name: data for name, data in expected.items() if name.split("/")[0].removesuffix("_held_out") in names
            }
        if not isinstance(place, Path):
            expected = {name: data for name, data in expected.items() if ".suffixes/" not in name}
        assert {name for name in expected if found.get(name) != expected[name]} == set()
        assert found.keys() == expected.keys()
        engine = flags[flags.index("--engine") + 1] if "--engine" in flags else "local"
        assert json.loads((tmp_path / "state" / "unique" / "run.json").read_bytes())["engine"] == engine
        return targets

    return compare


@pytest.mark.exhaustive
def test_all_stages_in_object_storage(walk, bucket):
    walk(bucket / "there", "--workers", 1)


def small_parts(monkeypatch) -> None:
    """Files are cut into runs, and divided into parts, as large ones are."""
    monkeypatch.setattr("webtext_prep.documents.formats.compression.CHUNK_BYTES", 2000)
    for name in ("BYTES_PER_PART", "BYTES_PER_STREAM"):
        monkeypatch.setattr(f"webtext_prep.stages.merge.{name}", 3000)
    monkeypatch.setattr("webtext_prep.stages.blacklist.BYTES_PER_STREAM", 500)
    monkeypatch.setattr("webtext_prep.stages.blacklist.RUN_BYTES", 1500)
    monkeypatch.setattr("webtext_prep.stages.tokenize.Tokenize.part_bytes", 4000)


@pytest.mark.exhaustive
def test_all_stages_where_tasks_see_only_what_they_declare(reference, walk, strict, tmp_path, monkeypatch):
    """Stages read folders named in hints, and wrote files that no task declared: on another machine there were none."""
    small_parts(monkeypatch)
    walk(tmp_path / "there", *strict)
    preview = ("dedup", "--output", tmp_path / "preview", "--dry-run", "--json", "--input")
    expected = run(*preview, reference.here / "mine", "--workers", 1)
    assert run(*preview, tmp_path / "there" / "mine", *strict) == expected


@pytest.fixture(scope="module")
def two_nodes(joined_ray):
    """Two Ray nodes with one free core each."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    first = ray.get_runtime_context().get_node_id()
    joined_ray.add(cores=1)

    class Holder:
        def ready(self) -> bool:
            return True

    here = NodeAffinitySchedulingStrategy(first, soft=False)
    holder = ray.remote(Holder).options(num_cpus=1, scheduling_strategy=here).remote()
    assert ray.get(holder.ready.remote())
    yield joined_ray
    ray.kill(holder)
    joined_ray.kill()


@pytest.mark.exhaustive
def test_all_stages_on_ray(walk, two_nodes, tmp_path):
    walk(tmp_path / "there", "--engine", "ray", "--ray-address", two_nodes.address)


def sign_in(config: Path) -> None:
    """Write what this process has in its environment to a configuration of AWS's."""
    names = {"endpoint_url": "ENDPOINT_URL", "region": "DEFAULT_REGION", "aws_access_key_id": "ACCESS_KEY_ID",
             "aws_secret_access_key": "SECRET_ACCESS_KEY"}  # fmt: skip
    config.write_text("[default]\n" + "".join(f"{name} = {os.environ[f'AWS_{it}']}\n" for name, it in names.items()))


@pytest.mark.exhaustive
def test_all_stages_on_ray_whose_nodes_share_object_storage_alone(walk, two_nodes, bucket):
    sign_in(two_nodes.folder / AWS_CONFIG)
    scratch = bucket / "scratch"
    walk(bucket / "there", "--engine", "ray", "--ray-address", two_nodes.address, "--shared-scratch", scratch)
    assert not storage.list_folder(scratch)
    for number in (0, 1):
        assert list((two_nodes.folder / f"node-{number}").glob("webtext-scratch-*/*")), f"node {number} did nothing"
