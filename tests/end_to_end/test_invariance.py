"""Every engine makes the same bytes, also where a worker, a node and the command itself are killed on the way."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SUPPORT = Path(__file__).resolve().parents[1] / "webtext_prep" / "support"
sys.path.append(str(SUPPORT))

from processes import descendants  # noqa: E402
from ray_nodes import RayNodes  # noqa: E402

from webtext_prep.documents.document import Document  # noqa: E402
from webtext_prep.documents.folders.shards import shard_name, write_documents  # noqa: E402

STAGE = "dedup"
"""The stage with the most phases: 48 tasks for six shards."""
SHARDS = 6
WORDS = 40
"""Of a document; documents with the same first word differ in the last one."""


@pytest.fixture
def corpus(tmp_path):
    """Documents, of which each fourth is nearly an earlier one, as several shards."""
    for number in range(SHARDS):
        with write_documents(tmp_path / "input" / shard_name(number)) as writer:
            for at in range(number, 60, SHARDS):
                words = [f"word{at // 4 * WORDS + place}" for place in range(WORDS)]
                writer.write(Document(f"http://host{at % 7}.org/{at}", " ".join([*words, f"last{at}"])))
    return tmp_path / "input"


class LocalMachine:
    """The local engine: a node is the command with all its processes."""

    def __init__(self):
        self.flags = ["--engine", "local", "--workers", 2]

    def kill_worker(self, command: int) -> bool:
        """Kill a process that the fork server of `multiprocessing` has forked; False if there is none now."""
        workers = [pid for pid in descendants(command) if _is_forked(pid)]
        return bool(workers) and _kill(workers[0])

    def kill_node(self, command: int) -> bool:
        """Kill the whole session of the command."""
        os.killpg(command, signal.SIGKILL)
        return True

    def stop(self):
        """Nothing is left."""


class TwoRayNodes(LocalMachine):
    """A Ray of two nodes, the second of which is killed and replaced."""

    def __init__(self):
        pytest.importorskip("ray")
        self._nodes = RayNodes(1)
        self._nodes.add()
        self.flags = ["--engine", "ray", "--ray-address", self._nodes.address]

    def kill_worker(self, command: int) -> bool:
        """Kill a worker of either node that is at a task."""
        return any(_kill(pid) for pid in self._nodes.at_work()[:1])

    def kill_node(self, command: int) -> bool:
        """Kill the second node, and add another."""
        self._nodes.kill()
        self._nodes.add()
        return True

    def stop(self):
        """End the cluster."""
        self._nodes.stop()


def _kill(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


def _is_forked(pid: int) -> bool:
    try:
        parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        return b"multiprocessing.forkserver" in Path(f"/proc/{parent}/cmdline").read_bytes()
    except OSError:
        return False


def started(corpus: Path, output: Path, flags) -> subprocess.Popen:
    words = ["webtext_prep", STAGE, "--input", corpus, "--output", output, *flags]
    return subprocess.Popen(
        [sys.executable, "-m", *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def bytes_of(output: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(output)): path.read_bytes()
        for path in sorted(output.rglob("*"))
        if path.is_file() and ".state" not in path.parts
    }


@pytest.mark.exhaustive
@pytest.mark.parametrize("machine", [LocalMachine, TwoRayNodes])
def test_killed_workers_nodes_and_commands_change_no_byte(machine, corpus, tmp_path):
    undisturbed = started(corpus, tmp_path / "undisturbed", ["--workers", 1])
    assert undisturbed.communicate()[1] is not None
    assert undisturbed.returncode == 0
    output, machine = tmp_path / "disturbed", machine()
    kills = [machine.kill_worker, machine.kill_node, _kill]
    with contextlib.ExitStack() as stack:
        stack.callback(machine.stop)
        while True:
            command = started(corpus, output, machine.flags)
            # Each kill waits until one more task is done than at the one before it.
            while command.poll() is None:
                done = sum(1 for _ in (output / ".state" / "markers").rglob("*.json"))
                if kills and done > 3 - len(kills) and kills[0](command.pid):
                    kills.pop(0)
                time.sleep(0.005)
            said = command.communicate()[1]
            assert command.returncode in (0, -signal.SIGKILL), said
            if command.returncode == 0:
                break
    assert not kills
    assert bytes_of(output) == bytes_of(tmp_path / "undisturbed")
