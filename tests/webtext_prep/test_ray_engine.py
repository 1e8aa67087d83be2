"""The engine ray on a cluster of real Ray processes on this machine: the contract of engines, deaths, and the bytes.

Starting them takes seconds, so all tests share one cluster.
"""

import importlib.util
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import practice_calls
import processes
import pytest
from practice_calls import tasks_of
from processes import descendants, is_alive, until

from webtext_prep.documents.document import Document
from webtext_prep.errors import InputError, WebtextError
from webtext_prep.running.engines import base as attempts
from webtext_prep.running.engines.ray import RayEngine, RaySettings
from webtext_prep.running.estimates import PROCESS_BYTES
from webtext_prep.running.processes import versions_here

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra webtext-gpt2[ray]")

CORES = 2


@pytest.fixture(scope="module")
def cluster(joined_ray):
    """A cluster with one node of two cores, which this process has joined."""
    return joined_ray


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A busy machine takes minutes to start what else takes seconds."""
    monkeypatch.setattr(processes, "PATIENCE", 300)


@pytest.fixture
def run(cluster, tmp_path):
    """`run(function, tasks)`: the sorted results."""

    def call(function, tasks, on_progress=lambda position, units: None, *, workers=0) -> list:
        engine = RayEngine(workers, RaySettings(cluster.address))
        return sorted(engine.run(function, tasks, scratch=tmp_path / "scratch", on_progress=on_progress))

    return call


@pytest.mark.exhaustive
def test_every_result_comes_with_its_position_and_tasks_report(run):
    seen: dict[int, int] = {}
    found = run(practice_calls.square, tasks_of(*range(1, 20)), seen.__setitem__)
    assert found == [(number - 1, number**2) for number in range(1, 20)]
    assert seen == {number - 1: number for number in range(1, 20)}


@pytest.mark.exhaustive
def test_a_task_reports_while_it_runs(run, tmp_path, monkeypatch):
    """It ends when it sees that it was heard."""
    from webtext_prep.running.engines import ray as waiting

    def hear(position, units):
        if units == 7:
            (tmp_path / "heard").touch()

    monkeypatch.setattr(waiting, "REPORTS_AFTER", 0)
    assert run(practice_calls.report_until_heard, tasks_of(7, folder=str(tmp_path)), hear) == [(0, None)]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("workers", "slots"), [(0, CORES), (1, 1)])
def test_a_task_knows_its_surroundings(run, tmp_path, workers, slots):
    found = run(practice_calls.where, tasks_of(1, 2, 3), workers=workers)
    assert found == [(position, (str(tmp_path / "scratch"), slots)) for position in range(3)]


def test_no_tasks_are_no_work():
    """Not even a Ray is started."""
    assert list(RayEngine(2).run(practice_calls.square, [], scratch=Path(), on_progress=lambda *_: None)) == []


@pytest.mark.exhaustive
def test_an_exception_is_raised_as_it_is_and_stops_the_other_task(run):
    """Which would wait forever. There is a core for each: Ray begins tasks in an order of its own."""
    with pytest.raises(OSError, match="No space left") as caught:
        run(practice_calls.fail_or_wait, tasks_of(None, "disk"))
    assert caught.value.args == (28, "No space left")
    assert "in fail_or_wait" in "".join(caught.value.__notes__)


@pytest.mark.exhaustive
def test_a_task_that_ends_its_process_is_named(run):
    with pytest.raises(WebtextError, match="internal error: a task ended its process with exit code 3"):
        run(practice_calls.end_the_process, tasks_of(1))


@pytest.mark.exhaustive
def test_a_result_that_cannot_travel_is_not_tried_again(run, tmp_path):
    with pytest.raises(WebtextError, match=r"the task task-0, or its result, can't travel: .*pickle"):
        run(practice_calls.give_what_cannot_travel, tasks_of(1, folder=str(tmp_path)))
    assert len(list(tmp_path.glob("task-0-*"))) == 1


@pytest.mark.exhaustive
def test_a_result_too_large_for_a_message_comes_too(run):
    assert run(practice_calls.much, tasks_of(300_000)) == [(0, "x" * 300_000)]


@pytest.mark.exhaustive
def test_what_dies_or_may_succeed_is_tried_again(run, tmp_path, capfd):
    """And nothing is said of it: standard output is the command's own, a JSON object with --json."""
    tasks = tasks_of(0, 0, folder=str(tmp_path))
    tasks[1].options["deaths"] = 1
    seen: dict[int, int] = {}
    assert run(practice_calls.die_at_first, tasks, seen.__setitem__) == [(0, 0), (1, 1)]
    assert seen == {0: 10, 1: 10}
    assert run(practice_calls.be_busy_at_first, tasks_of(0, folder=str(tmp_path), failures=3)) == [(0, 3)]
    assert capfd.readouterr().out == ""


@pytest.mark.exhaustive
def test_a_task_that_kills_every_worker_is_named(run, tmp_path, monkeypatch):
    monkeypatch.setattr(attempts, "MAX_ATTEMPTS", 2)
    with pytest.raises(WebtextError, match=r"the task task-0 failed 2 times: its worker process died.*memory.*resumes"):
        run(practice_calls.die_at_first, tasks_of(0, folder=str(tmp_path), deaths=99))
    assert len(list(tmp_path.glob("task-0-*"))) == 2


@pytest.mark.exhaustive
def test_a_node_that_dies_costs_its_tasks_which_are_tried_again(cluster, run, gate):
    """Four tasks wait on two nodes, one of which is killed with its workers."""
    gate.close()
    node = cluster.add()
    tasks = tasks_of(*range(4), gate=str(gate.folder))
    found: list = []
    driver = threading.Thread(target=lambda: found.extend(run(practice_calls.wait_and_name_the_node, tasks)))
    driver.start()
    until(lambda: len(list(gate.folder.glob("reached-*"))) == 4, "tasks on both nodes")
    workers = cluster.processes(node)
    cluster.kill(node)
    until(lambda: not any(map(is_alive, workers)), "the end of the node's workers")
    gate.open()
    driver.join()
    assert [position for position, _ in found] == [0, 1, 2, 3]
    assert len({name for _, name in found}) == 1


@pytest.mark.exhaustive
def test_a_node_with_other_versions_is_refused(run, monkeypatch):
    """Libraries were not asked for: a node with another ftfy made other documents."""
    from webtext_prep.running.engines import ray as waiting
    from webtext_prep.stages.clean import Clean

    call, ours = Clean(rules=("c4",)).process_shard, versions_here(Clean().libraries)
    assert {"Python", "webtext-gpt2-prep", "ftfy", "langdetect", "tiktoken"} <= ours.keys()
    monkeypatch.setattr(waiting, "versions_here", lambda libraries: {**ours, "ftfy": "9.9"})
    with pytest.raises(InputError, match=r"the node .* than the machine of this command, ftfy 9\.9 \(there it is \d"):
        run(call, tasks_of(1))


@pytest.mark.exhaustive
def test_a_setting_that_does_not_hold_on_a_node_is_refused_with_the_name_of_the_node(run, tmp_path):
    from webtext_prep.stages.filter import Filter

    (tmp_path / "keep.py").write_text("def keep(document):\n    return True\n")
    stage = Filter(function=f"{tmp_path / 'keep.py'}:keep")
    (tmp_path / "keep.py").unlink()
    with pytest.raises(InputError, match=r"^on the machine .*: no file .*keep.py: give --function"):
        run(stage.judge, tasks_of(1))


def test_the_memory_that_a_stage_states_is_found_in_a_wrapped_call():
    from webtext_prep.running.engines.ray import _memory_of
    from webtext_prep.stages.merge import Merge

    class Wrapped:
        call = Merge().run

    assert _memory_of(Wrapped()) == Merge().process_bytes >= PROCESS_BYTES
    assert _memory_of(practice_calls.square) == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--engine", "ray", "--ray-address", "ray://head:10001"], "run the command on a machine of the cluster"),
        (["--ray-address", "head:6379"], "--ray-address is a setting of --engine ray"),
    ],
)
def test_wrong_settings_are_refused(webtext, write_shards, tmp_path, arguments, sentence):
    result = webtext("shout", "--input", write_shards([["a"]]), "--output", tmp_path / "out", *arguments)
    assert result.code == 2
    assert sentence in result.sentence


def test_without_ray_there_is_a_sentence(webtext, write_shards, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = webtext("shout", "--input", write_shards([["a"]]), "--output", tmp_path / "out", "--engine", "ray")
    assert result.code == 2
    assert "pip install 'webtext-gpt2[ray]'" in result.sentence


@pytest.fixture
def shouting(write_shards, gate, webtext, contents, tmp_path):
    """The arguments of a command of which two tasks wait at the gate and one does not, and the bytes of its output."""
    waiting = [[Document("http://a.org", "text", {"wait": 1})] for _ in range(2)]
    folder = write_shards([["one"], *waiting])
    assert webtext("shout", "--input", folder, "--output", tmp_path / "local").code == 0
    arguments = ["shout", "--input", folder, "--output", tmp_path / "out", "--gate", gate.folder, "--engine", "ray"]
    return arguments, contents(tmp_path / "local")


def at_the_gate(running, tmp_path) -> set[int]:
    """Wait until both tasks are there, and the other one is done; their processes."""
    done = tmp_path / "out/.state/markers/shards/part-00000.json"
    running.wait_until(lambda: len(running.at_the_gate()) == 2 and done.exists(), "the tasks at the gate")
    return set(running.at_the_gate())


@pytest.mark.exhaustive
def test_a_driver_that_is_killed_takes_its_tasks_with_it_and_nothing_is_done_twice(
    cluster, shouting, start, gate, webtext, contents, tmp_path
):
    arguments, expected = shouting
    arguments += ["--ray-address", cluster.address]
    gate.close()
    running = start(*arguments)
    workers = at_the_gate(running, tmp_path)
    first = (tmp_path / "out/part-00000.jsonl.zst").stat().st_ino
    running.process.kill()
    until(lambda: not any(map(is_alive, workers)), "the end of the dead driver's tasks")
    gate.open()
    assert webtext(*arguments).code == 0
    assert contents(tmp_path / "out") == expected
    assert (tmp_path / "out/part-00000.jsonl.zst").stat().st_ino == first


SLURM_SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "slurm" / "prepare.sh"


def slurm_script() -> tuple[list[str], list[str]]:
    """What the script gives `ray symmetric-run`: its own words, and those of the command."""
    subprocess.run(["bash", "-n", str(SLURM_SCRIPT)], check=True)
    (line,) = (line for line in SLURM_SCRIPT.read_text().replace("\\\n", " ").splitlines() if line.startswith("srun "))
    words = shlex.split(line.partition("symmetric-run ")[2].partition(" ||")[0].replace("$SLURM_CPUS_PER_TASK", "2"))
    return words[: words.index("--")], words[words.index("--") + 1 :]


@pytest.mark.exhaustive
def test_the_slurm_script_starts_a_ray_with_options_that_exist():
    from ray.scripts.scripts import start
    from ray.scripts.symmetric_run import curate_and_validate_ray_start_args

    words, _ = slurm_script()
    own = start.make_context("start", curate_and_validate_ray_start_args(words)).params
    assert (own["num_cpus"], own["object_store_memory"]) == (2, 100_000_000)


@pytest.mark.exhaustive
def test_the_command_of_the_slurm_script_runs_on_the_ray_of_several_nodes_that_it_finds(
    cluster, write_shards, webtext, contents, tmp_path, monkeypatch
):
    """`auto` is the Ray of the machine, as `ray start --head` has noted it there."""
    program, stage, *given = slurm_script()[1]
    folder = write_shards([[f"{word} text that is long enough to be kept. " * 80] for word in ("one", "two", "three")])
    places = {"/shared/merged": str(folder), "/shared/clean": str(tmp_path / "out")}
    arguments = [stage, *(places.get(word, word) for word in given)]
    assert webtext(stage, "--input", folder, "--output", tmp_path / "local").code == 0
    node = cluster.add()
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    done = subprocess.run([Path(sys.executable).with_name(program), *arguments], capture_output=True, text=True)
    cluster.kill(node)
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "out") == contents(tmp_path / "local")


@pytest.mark.exhaustive
def test_an_interrupt_stops_the_ray_that_was_started(shouting, start, gate, tmp_path, monkeypatch):
    arguments, _ = shouting
    folder = Path(tempfile.mkdtemp(prefix="w", dir="/tmp"))
    for name in ("TMPDIR", "HOME"):
        monkeypatch.setenv(name, str(folder))
    gate.close()
    running = start(*arguments, "--workers", 2)
    at_the_gate(running, tmp_path)
    assert descendants(running.process.pid) >= set(running.at_the_gate())
    running.process.send_signal(signal.SIGINT)
    result = running.end()
    assert (result.code, result.out) == (130, "")
    assert result.err.endswith("webtext: interrupted; the same command resumes from here.\n")
    assert "Traceback" not in result.err
    until(lambda: not any(map(is_alive, running.family)), "the end of Ray's processes")
    assert not (folder / ".ray").exists()  # no token, for which every later Ray of this user would ask
    shutil.rmtree(folder)
