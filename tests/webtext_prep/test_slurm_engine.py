"""The engine slurm, on a stand-in for Slurm's commands, and on Slurm itself where it is installed."""

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import hasty_slurm
import practice_calls
import pytest
import real_slurm
from practice_calls import tasks_of
from processes import PATIENCE, until
from slurm_cluster import Cluster

from webtext_prep.documents.document import Document
from webtext_prep.errors import InputError, WebtextError
from webtext_prep.running import codec
from webtext_prep.running.clusters import slurm as waiting
from webtext_prep.running.clusters import slurm_commands as commands
from webtext_prep.running.clusters import slurm_job as job
from webtext_prep.running.clusters.slurm_job import JobArray
from webtext_prep.running.engines import base as attempts
from webtext_prep.running.engines.slurm import SlurmEngine, SlurmSettings
from webtext_prep.running.processes import versions_here
from webtext_prep.running.tasks import Task
from webtext_prep.stages.clean import Clean

SUPPORT = Path(practice_calls.__file__).parent


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A stand-in for Slurm, whose commands are on PATH."""
    found = Cluster(tmp_path / "cluster")
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
    for name, value in hasty_slurm.hurry().items():
        monkeypatch.setattr(waiting, name, value)
    yield found
    found.stop()


@pytest.fixture
def run(tmp_path):
    """`run(function, tasks, ...)`: the sorted results; flags of the engine by their names."""

    def call(function, tasks, on_progress=lambda position, units: None, *, workers=0, **settings) -> list:
        engine = SlurmEngine(workers, SlurmSettings(**{f"slurm_{name}": value for name, value in settings.items()}))
        return sorted(engine.run(function, tasks, scratch=tmp_path / "scratch", on_progress=on_progress))

    return call


def left_in(scratch: Path) -> list[Path]:
    return list(scratch.glob("slurm/*"))


def test_every_result_comes_with_its_position_and_tasks_report(cluster, run, tmp_path):
    """Five tasks in three jobs in two arrays: the cluster allows arrays of two jobs."""
    cluster.set(most_jobs=2)
    seen: dict[int, int] = {}
    found = run(practice_calls.square, tasks_of(*range(1, 6)), seen.__setitem__, tasks_per_job=2)
    assert found == [(0, 1), (1, 4), (2, 9), (3, 16), (4, 25)]
    assert seen == {0: 1, 1: 2, 2: 3, 3: 4, 4: 5}
    assert cluster.calls("sbatch") == 2
    assert len(cluster.states()) == 3
    assert left_in(tmp_path / "scratch") == []


def test_no_tasks_are_no_work(cluster, run):
    assert run(practice_calls.square, []) == []
    assert cluster.calls("sbatch") == 0


def test_a_job_does_as_many_tasks_at_once_as_it_has_cores(cluster, run, tmp_path):
    options = "--cpus-per-task=2 --comment='two words'"
    found = run(practice_calls.where, tasks_of(1, 2), tasks_per_job=2, options=options, workers=1)
    assert found == [(position, (str(tmp_path / "scratch"), 2)) for position in range(2)]
    given = (cluster.folder / "called" / "sbatch-0").read_text().splitlines()
    assert {"--comment=two words", "--array=0-0%1"} <= set(given)


def test_an_exception_is_raised_and_stops_the_other_tasks(cluster, run, tmp_path):
    """The other task would wait forever."""
    with pytest.raises(InputError, match=r"^the file is bad\.\n") as caught:
        run(practice_calls.refuse_or_wait, tasks_of(0, 1))
    assert "in refuse_or_wait" in "".join(caught.value.__notes__)
    assert "CANCELLED" in cluster.states()
    assert left_in(tmp_path / "scratch") == []
    until(lambda: not cluster.processes(), "the end of the jobs")


def test_a_node_with_other_versions_is_refused(cluster, run, monkeypatch):
    """Nothing was asked: a node with another ftfy made other documents than the rest."""
    ours = versions_here(Clean().libraries)
    monkeypatch.setattr(waiting, "versions_here", lambda libraries: {**ours, "ftfy": "9.9", "langdetect": ""})
    sentence = (
        r"the node .* of the cluster has ftfy \d\S* and langdetect \S+, and the machine of this command ftfy 9\.9 and "
        r"no langdetect: install the same on both"
    )
    with pytest.raises(InputError, match=sentence):
        run(Clean().process_shard, tasks_of(1))


def test_a_dead_job_costs_the_task_that_it_was_at(cluster, run, tmp_path, monkeypatch):
    """The first task of the job is not done again; the third has not failed yet when it does."""
    cluster.set(killed_as="NODE_FAIL")
    monkeypatch.setattr(attempts, "MAX_ATTEMPTS", 2)
    tasks = tasks_of(0, 0, 0, folder=str(tmp_path))
    tasks[1].options["deaths"] = tasks[2].options["deaths"] = 1
    seen: dict[int, int] = {}
    assert run(practice_calls.die_at_first, tasks, seen.__setitem__, tasks_per_job=3) == [(0, 0), (1, 1), (2, 1)]
    assert seen == {0: 10, 1: 10, 2: 10}
    assert cluster.calls("sbatch") == 3


@pytest.mark.parametrize("settings", [{}, {"forgets": True, "accounts": True}], ids=["squeue", "sacct"])
def test_a_task_that_kills_every_job_is_named_with_the_end_of_its_log(cluster, run, tmp_path, settings, monkeypatch):
    cluster.set(**settings)
    monkeypatch.setattr(attempts, "MAX_ATTEMPTS", 2)
    tasks = tasks_of(0, folder=str(tmp_path), deaths=99)
    sentence = (
        r"the task task-0 failed 2 times: its Slurm job 2_0 was killed, because memory ran out: run the same command "
        r"again, it resumes from .*; if memory ran out, ask for more, as with --slurm-options '--mem=16G'\.\n"
    )
    with pytest.raises(WebtextError, match=sentence) as caught:
        run(practice_calls.die_at_first, tasks)
    assert len(list(tmp_path.glob("task-0-*"))) == 2
    assert re.search(r"the end of .*/logs/0.log:\ndying", "\n".join(caught.value.__notes__))


def test_what_slurm_has_forgotten_has_ended(cluster, run, tmp_path):
    cluster.set(forgets=True)
    assert run(practice_calls.die_at_first, tasks_of(0, folder=str(tmp_path), deaths=1)) == [(0, 1)]


def test_a_preempted_job_costs_no_attempt(cluster, run, tmp_path, monkeypatch):
    cluster.set(killed_as="PREEMPTED")
    monkeypatch.setattr(attempts, "MAX_ATTEMPTS", 1)
    assert run(practice_calls.die_at_first, tasks_of(0, folder=str(tmp_path), deaths=1)) == [(0, 1)]


def test_jobs_that_somebody_cancels_are_not_submitted_again(cluster, run, monkeypatch):
    states = commands.states

    def cancel_first(names):
        commands.cancel(["1"])
        return states(names)

    (cluster.folder / "hold").touch()
    monkeypatch.setattr(commands, "states", cancel_first)
    monkeypatch.setattr(waiting.SlurmRun, "_has_begun", True, raising=False)
    with pytest.raises(WebtextError, match=r"Slurm job 1_0 was cancelled: run the same command again"):
        run(practice_calls.square, tasks_of(1))
    assert cluster.calls("sbatch") == 1


def test_while_slurm_does_not_answer_results_are_taken(cluster, run, capsys):
    cluster.set(silent=True)
    assert run(practice_calls.square, tasks_of(3)) == [(0, 9)]
    assert capsys.readouterr().err.startswith("webtext: Slurm job 1: 1 task of square in 1 job, logs in ")


def test_jobs_that_wait_long_are_told_with_their_reason(cluster, run, monkeypatch):
    """The cluster starts jobs once that was said."""
    (cluster.folder / "hold").touch()
    said = []

    def say(sentence):
        said.append(sentence)
        if sentence.startswith("the Slurm jobs wait"):
            (cluster.folder / "hold").unlink()

    monkeypatch.setattr(waiting, "_say", say)
    monkeypatch.setattr(waiting, "WAIT_SECONDS", 0)
    assert run(practice_calls.square, tasks_of(3)) == [(0, 9)]
    assert said[1:] == ["the Slurm jobs wait, most of them for this reason: Resources."]


def test_nodes_without_the_same_python_are_told_by_the_log(cluster, run, monkeypatch):
    monkeypatch.setattr(commands, "script_for", lambda *_: "#!/bin/sh\nexec /none/python -m module\n")
    with pytest.raises(WebtextError, match=r"job 1_0 ended \(FAILED\) before its first task: .*/none/python.*: see /"):
        run(practice_calls.square, tasks_of(3))


def test_nodes_that_do_not_see_the_state_are_told_by_the_missing_log(cluster, run):
    cluster.set(sees="/elsewhere")
    with pytest.raises(
        InputError, match=r"left no log in .*: the state folder must lie on a file system .* --state DIR"
    ):
        run(practice_calls.square, tasks_of(3))


def test_what_slurm_refuses_is_told_and_nothing_is_left(cluster, run, tmp_path):
    cluster.set(refuses="invalid partition specified: nope")
    with pytest.raises(InputError, match="sbatch failed: invalid partition specified: nope"):
        run(practice_calls.square, tasks_of(3), options="-p nope")
    assert left_in(tmp_path / "scratch") == []


def test_a_limit_on_jobs_is_waited_for(cluster, run, monkeypatch):
    """The second array is refused at first, with the first one at work; then again, with none."""
    cluster.set(most_jobs=1)
    submit, refusals = commands.submit, ["limit", "limit", "limit"]

    def refuse(*arguments, **named):
        if cluster.calls("sbatch") == 1 and refusals:
            raise commands.SlurmError(f"sbatch failed: job submit {refusals.pop()}.")
        return submit(*arguments, **named)

    monkeypatch.setattr(commands, "submit", refuse)
    assert run(practice_calls.square, tasks_of(2, 3)) == [(0, 4), (1, 9)]
    assert refusals == []


def test_a_limit_that_stays_is_told(cluster, run):
    cluster.set(refuses="Batch job submission failed: Job violates accounting/QOS policy (job submit limit)")
    with pytest.raises(WebtextError, match=r"sbatch failed: .*job submit limit"):
        run(practice_calls.square, tasks_of(3))
    assert cluster.calls("sbatch") == 4


def test_without_slurm_there_is_a_sentence(monkeypatch, tmp_path, webtext, write_shards):
    monkeypatch.setenv("PATH", str(tmp_path))
    result = webtext("shout", "--input", write_shards([["a"]]), "--output", tmp_path / "out", "--engine", "slurm")
    assert result.code == 2
    assert "--engine slurm needs Slurm's commands, and there is no sbatch here" in result.sentence


def test_options_that_cannot_be_split_are_refused(cluster):
    with pytest.raises(InputError, match=r"--slurm-options .* can't be split into options: No closing quotation"):
        SlurmEngine(0, SlurmSettings(slurm_options="--comment='one"))
    with pytest.raises(InputError, match=r"--slurm-options may not have --array=0-9: the engine says that itself"):
        SlurmEngine(0, SlurmSettings(slurm_options="--mem=2G --array=0-9"))


def array_of(folder: Path, function, *jobs: list[Task]) -> JobArray:
    encoded = [[codec.encode(task) for task in tasks] for tasks in jobs]
    return JobArray.create(folder, "tasks", codec.encode(function), encoded, folder / "scratch", versions_here())


def test_a_job_that_is_started_once_more_goes_on_with_the_rest(tmp_path):
    """Slurm requeues a job whose node failed."""
    array = array_of(tmp_path, practice_calls.be_busy_at_first, tasks_of(0, 0, 0, folder=str(tmp_path)))
    assert job.run(array.folder, 0, 1) == 0
    (array.folder / "results" / "0-2.json").unlink()
    assert job.run(array.folder, 0, 1) == 0
    assert [array.read(f"results/0-{task}")["result"] for task in range(3)] == [0, 0, 1]


def test_a_job_whose_array_is_not_wanted_any_more_does_nothing(tmp_path, capsys):
    array = array_of(tmp_path, practice_calls.be_busy_at_first, tasks_of(0, folder=str(tmp_path)))
    (array.folder / "array.json").unlink()
    assert job.run(array.folder, 0, 1) == 1
    assert "not wanted any more" in capsys.readouterr().err
    assert not array.names("results")


def test_a_job_whose_array_is_removed_ends_by_itself(tmp_path):
    """Its task would never end."""
    array = array_of(tmp_path, practice_calls.report_until_heard, tasks_of(7, folder=str(tmp_path)))
    code = "import sys; from pathlib import Path; from webtext_prep.running.clusters import slurm_job as job; "
    code += "job.REPORT_SECONDS = 0; sys.path.append(sys.argv[1]); sys.exit(job.run(Path(sys.argv[2]), 0, 1))"
    process = subprocess.Popen([sys.executable, "-c", code, SUPPORT, array.folder], stderr=subprocess.PIPE, text=True)
    until(lambda: array.read("progress/0") == [7], "the task")
    shutil.rmtree(array.folder, ignore_errors=True)
    assert f"{array.folder} was removed: nobody wants its results" in process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 1


# Whole stages


class Driver:
    """`webtext shout --engine slurm` in a process of its own."""

    def __init__(self, arguments: list[object], log: Path) -> None:
        command = [sys.executable, SUPPORT / "hasty_slurm.py", *arguments]
        self.log = log
        with log.open("w") as said:
            self.process = subprocess.Popen(
                list(map(str, command)), stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
            )

    def wait_until(self, happened, what: str) -> None:
        until(lambda: happened() or self.process.poll() is not None, what)
        assert self.process.poll() is None, self.log.read_text()

    def end(self, with_signal: signal.Signals) -> int:
        self.process.send_signal(with_signal)
        return self.process.wait(PATIENCE)


@pytest.fixture
def drive(tmp_path):
    """`drive(arguments)`; what is still there is killed with the test."""
    started = []

    def start(arguments: list[object]) -> Driver:
        started.append(Driver(arguments, tmp_path / f"driver-{len(started)}.log"))
        return started[-1]

    yield start
    for driver in started:
        driver.process.kill()
        driver.process.wait()


@pytest.fixture
def shouting(write_shards, tmp_path, gate, webtext, contents):
    """The arguments of a command whose two tasks wait at the gate, and the bytes of its output."""
    folder = write_shards([[Document("http://a.org", "text", {"wait": 1})] for _ in range(2)])
    assert webtext("shout", "--input", folder, "--output", tmp_path / "local").code == 0
    arguments = ["shout", "--input", folder, "--output", tmp_path / "out", "--engine", "slurm"]
    return [*arguments, "--slurm-options", "--mem=2G", "--gate", gate.folder], contents(tmp_path / "local")


def test_jobs_outlive_a_killed_command_and_are_found_again(cluster, shouting, gate, drive, webtext, contents, tmp_path):
    """Killed twice: the second time it has found the jobs and waits; then they end while there is no command."""
    arguments, expected = shouting
    gate.close()
    for words in ("2 tasks of shout in 2 jobs", "Slurm job 1 of an earlier run is still at work on 2 tasks."):
        driver = drive(arguments)
        driver.wait_until(lambda: words in driver.log.read_text(), words)  # noqa: B023
        driver.end(signal.SIGKILL)
    until(lambda: len(list(gate.folder.glob("reached-*"))) == 2, "the gate")
    assert not list((tmp_path / "out").glob("part-*"))
    gate.open()
    until(lambda: cluster.states() == ["COMPLETED", "COMPLETED"], "the end of the jobs")
    assert webtext(*arguments).code == 0
    assert cluster.calls("sbatch") == 1
    assert contents(tmp_path / "out") == expected
    assert not (tmp_path / "out" / ".state" / "scratch").exists()


def test_an_interrupt_cancels_the_jobs_and_the_same_command_goes_on(
    cluster, shouting, gate, drive, webtext, contents, tmp_path
):
    arguments, expected = shouting
    gate.close()
    driver = drive(arguments)
    driver.wait_until(lambda: len(list(gate.folder.glob("reached-*"))) == 2, "the gate")
    assert driver.end(signal.SIGINT) == 130
    assert driver.log.read_text().endswith(
        "webtext: Slurm job 1 was cancelled.\nwebtext: interrupted; the same command resumes from here.\n"
    )
    assert cluster.states() == ["CANCELLED", "CANCELLED"]
    gate.open()
    assert webtext(*arguments).code == 0
    assert cluster.calls("sbatch") == 2
    assert contents(tmp_path / "out") == expected


@pytest.mark.exhaustive
def test_a_restart_cancels_what_an_earlier_command_has_left(cluster, shouting, gate, drive, webtext):
    """Its jobs would write what other settings ask for. As long as they can't be cancelled, nothing is begun."""
    arguments, _ = shouting
    gate.close()
    driver = drive(arguments)
    driver.wait_until(lambda: len(list(gate.folder.glob("reached-*"))) == 2, "the gate")
    driver.end(signal.SIGKILL)
    assert cluster.states() == ["RUNNING", "RUNNING"]
    cluster.set(silent=True)
    assert "Unable to contact slurm controller" in webtext(*arguments[:-2], "--restart", "--mark", "?").sentence
    cluster.set()
    assert webtext(*arguments[:-2], "--restart", "--mark", "?").code == 0
    assert cluster.states()[:2] == ["CANCELLED", "CANCELLED"]
    assert cluster.calls("sbatch") == 2


@pytest.mark.exhaustive
def test_what_was_made_and_then_removed_is_made_again(cluster, shouting, drive, webtext, contents, tmp_path):
    """A result that an earlier command left counts only with what its task had made."""
    arguments, expected = shouting
    (cluster.folder / "hold").touch()
    driver = drive(arguments)
    driver.wait_until(lambda: "Slurm job 1" in driver.log.read_text(), "the jobs")
    driver.end(signal.SIGKILL)
    (cluster.folder / "hold").unlink()
    until(lambda: cluster.states() == ["COMPLETED", "COMPLETED"], "the end of the jobs")
    (tmp_path / "out" / "part-00001.jsonl.zst").unlink()
    assert webtext(*arguments).code == 0
    assert contents(tmp_path / "out") == expected
    assert len(cluster.states()) == 3


def test_jobs_of_other_settings_are_cancelled(cluster, run, tmp_path):
    """What an earlier command was at, and this one does not ask for, would be made in vain."""
    tasks = tasks_of(0, 1)
    (cluster.folder / "hold").touch()
    array = array_of(tmp_path / "scratch" / "slurm", practice_calls.refuse_or_wait, tasks[:1], tasks[1:])
    script = commands.script_for("webtext_prep.running.clusters.slurm_job", str(array.folder))
    assert commands.submit(array.name, 2, script, array.log(0).parent, []) == "1"
    (cluster.folder / "settings.json").write_text("{}")
    found = SlurmEngine(0).run(practice_calls.square, tasks, scratch=tmp_path / "scratch", on_progress=lambda *_: None)
    (cluster.folder / "hold").rename(cluster.folder / "let-go")
    assert sorted(found) == [(0, 0), (1, 1)]
    assert cluster.states()[:2] == ["CANCELLED", "CANCELLED"]


# Slurm itself


@pytest.fixture
def real_cluster(monkeypatch):
    if reason := real_slurm.why_not():
        pytest.skip(reason)
    with real_slurm.running() as configuration:
        monkeypatch.setenv("SLURM_CONF", str(configuration))
        yield


def test_slurm_itself(real_cluster, run, tmp_path, capsys):
    """An array with a job that is killed; one with a task that fails while another waits, which is cancelled."""
    tasks = tasks_of(0, 0, 0, folder=str(tmp_path))
    tasks[1].options["deaths"] = 1
    assert run(practice_calls.die_at_first, tasks, options="--mem=100") == [(0, 0), (1, 1), (2, 0)]
    assert "ended early (FAILED, " in capsys.readouterr().err
    with pytest.raises(InputError, match=r"^the file is bad\.\n"):
        run(practice_calls.refuse_or_wait, tasks_of(0, 1))
    assert subprocess.run(["squeue", "--noheader"], capture_output=True, check=True).stdout == b""
    with pytest.raises(InputError, match=r"sbatch failed: .*[Pp]artition"):
        run(practice_calls.square, tasks_of(1), options="--partition=none")
