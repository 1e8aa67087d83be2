"""The local engine: all results whatever the order, failures tried again or raised, no process left behind."""

import multiprocessing
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import practice_calls
import pytest
from practice_calls import tasks_of

from command_kit import CommandError, available_cores
from webtext_prep.errors import InputError, WebtextError
from webtext_prep.running import engines
from webtext_prep.running import settings as running_settings
from webtext_prep.running.engines import local
from webtext_prep.running.engines.local import LocalEngine


def run(workers: int, function, tasks, on_progress=lambda position, units: None) -> list:
    return sorted(LocalEngine(workers).run(function, tasks, scratch=Path("scratch"), on_progress=on_progress))


@pytest.mark.parametrize("workers", [1, 2])
def test_every_result_comes_with_its_position(workers):
    assert run(workers, practice_calls.square, tasks_of(*range(20))) == [(number, number**2) for number in range(20)]


@pytest.mark.parametrize("workers", [1, 2])
def test_no_tasks_are_no_work(workers):
    assert run(workers, practice_calls.square, []) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_a_task_may_have_nothing_to_say(workers):
    """A task that returned None was never done."""
    assert run(workers, practice_calls.nothing, tasks_of(1, 2)) == [(0, None), (1, None)]


def test_one_worker_is_this_process_and_more_are_others():
    assert {pid for _, pid in run(1, practice_calls.process_id, tasks_of(*range(3)))} == {os.getpid()}
    others = {pid for _, pid in run(2, practice_calls.process_id, tasks_of(*range(3)))}
    assert os.getpid() not in others
    assert 1 <= len(others) <= 2


def test_workers_have_the_environment_of_their_parent_as_it_is_now(monkeypatch):
    """They are forked by a server that may have begun before a setting was made."""
    run(2, practice_calls.square, tasks_of(1, 2))
    monkeypatch.setenv("WEBTEXT_PRACTICE", "new")
    assert run(2, practice_calls.environment, tasks_of("WEBTEXT_PRACTICE", "ABSENT")) == [(0, "new"), (1, None)]


def test_a_task_knows_its_scratch_folder_and_how_many_run_beside_it():
    assert run(1, practice_calls.where, tasks_of(1, 2)) == [(0, ("scratch", 1)), (1, ("scratch", 1))]
    assert run(3, practice_calls.where, tasks_of(1, 2)) == [(0, ("scratch", 2)), (1, ("scratch", 2))]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", practice_calls.ERRORS)
def test_an_exception_of_a_task_is_raised_as_it_is(workers, name):
    error = practice_calls.ERRORS[name]()
    with pytest.raises(type(error)) as caught:
        run(workers, practice_calls.fail, tasks_of(None, name, None, None))
    assert caught.value.args == error.args


def test_an_exception_that_cannot_travel_is_named():
    with pytest.raises(WebtextError, match="internal error: Unpicklable: just one"):
        run(2, practice_calls.fail_unpicklably, tasks_of(1, 2))


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (practice_calls.fail_speechlessly, r"internal error: Speechless \(run again"),
        (practice_calls.end_the_process, "internal error: a task ended its process with exit code 3"),
    ],
)
def test_whatever_a_task_raises_has_a_name(function, sentence):
    """A task that left by sys.exit, or whose error had no message, counted as a worker that was killed."""
    with pytest.raises(WebtextError, match=sentence):
        run(2, function, tasks_of(1, 2))


def test_a_result_that_cannot_travel_is_not_tried_again(tmp_path, capfd):
    """A result that can't be pickled ended four workers with a traceback each, and memory was blamed."""
    with pytest.raises(TypeError, match="pickle"):
        run(2, practice_calls.give_what_cannot_travel, tasks_of(1, 2, folder=str(tmp_path)))
    assert len(list(tmp_path.glob("task-0-*"))) <= 1
    assert "Traceback" not in capfd.readouterr().err


def test_workers_that_die_before_they_take_a_task_are_not_started_for_ever(monkeypatch):
    """A worker that died as it started was replaced without end."""
    started = []

    def die(worker, position, task):
        started.append(worker)
        assert len(started) < 20
        worker.process.kill()
        worker.process.join()
        return False

    monkeypatch.setattr(local._TaskWorker, "start", die)
    with pytest.raises(WebtextError, match="failed 4 times: its worker process was killed by SIGKILL"):
        run(2, practice_calls.square, tasks_of(1, 2))
    assert not multiprocessing.active_children()


PATIENCE = 30
"""Seconds."""
PROGRAM = f"""
import sys
sys.path.insert(0, {str(Path(practice_calls.__file__).parent)!r})
from pathlib import Path
import practice_calls
from webtext_prep.running.engines.local import LocalEngine
from webtext_prep.running.tasks import Task
call, *names = sys.argv[1:]
tasks = [Task(name) for name in names]
found = LocalEngine(2).run(getattr(practice_calls, call), tasks, scratch=Path(), on_progress=lambda *_: None)
print(sorted(found), practice_calls.hears_ctrl_c(None, None))
"""
"""Runs some calls by two workers, in a process of its own."""


def test_workers_do_not_hear_ctrl_c_from_their_first_moment():
    """Ctrl-C while workers started printed a traceback for each process that was still importing."""
    command = [sys.executable, "-c", PROGRAM, "hears_ctrl_c", "one", "two"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "[(0, False), (1, False)] True\n"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process for which no thread runs")
def test_a_worker_that_is_stuck_ends_with_a_killed_parent():
    """A worker stuck inside C code outlived its killed parent, and wrote along with the one that did its task again."""
    command = [sys.executable, "-c", PROGRAM, "stand_still", "one", "two"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        workers = [int(parent.stdout.readline()) for _ in range(2)]
        watched = [os.pidfd_open(worker) for worker in workers]
        parent.kill()
    ended = [bool(select.select([worker], [], [], PATIENCE)[0]) for worker in watched]
    for worker, has_ended, descriptor in zip(workers, ended, watched, strict=True):
        os.close(descriptor)
        if not has_ended:
            os.kill(worker, signal.SIGKILL)
    assert ended == [True, True]


def test_an_exception_stops_the_other_tasks():
    """They would wait forever."""
    with pytest.raises(InputError):
        run(2, practice_calls.fail_or_wait, tasks_of(None, "input", None, None))
    assert not multiprocessing.active_children()


def test_a_dead_worker_costs_its_task_which_is_tried_again(tmp_path):
    """One worker that died stopped all of the work."""
    tasks = tasks_of(0, 0, 0, 0, folder=str(tmp_path))
    tasks[1].options["deaths"] = 1
    tasks[2].options["deaths"] = 3
    seen: dict[int, int] = {}
    results = run(2, practice_calls.die_at_first, tasks, seen.__setitem__)
    assert results == [(0, 0), (1, 1), (2, 3), (3, 0)]
    assert seen == {0: 10, 1: 10, 2: 10, 3: 10}
    assert len(list(tmp_path.glob("task-0-*"))) == len(list(tmp_path.glob("task-3-*"))) == 1


def test_a_retry_is_not_counted_twice(tmp_path):
    """Progress only ever grew: what a dead worker had reported was counted again by the one that replaced it."""
    tasks = tasks_of(0, 0, folder=str(tmp_path), deaths=2)
    now: dict[int, int] = {}
    most = 0

    def show(position: int, units: int) -> None:
        nonlocal most
        now[position] = units
        most = max(most, sum(now.values()))

    run(2, practice_calls.die_at_first, tasks, show)
    assert most == 20


def test_a_task_that_kills_every_worker_is_named(tmp_path):
    """A killed worker was reported without the task that it was at."""
    tasks = tasks_of(0, 0, folder=str(tmp_path))
    tasks[1].options["deaths"] = 99
    with pytest.raises(WebtextError, match=r"the task task-1 failed 4 times: .* killed by SIGKILL.*memory.*resumes"):
        run(2, practice_calls.die_at_first, tasks)
    assert len(list(tmp_path.glob("task-1-*"))) == 4
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("workers", [1, 2])
def test_what_may_succeed_is_tried_again_and_then_named(workers, tmp_path):
    tasks = tasks_of(0, 0, folder=str(tmp_path), failures=3)
    assert run(workers, practice_calls.be_busy_at_first, tasks) == [(0, 3), (1, 3)]
    tasks[1].options["failures"] = 99
    with pytest.raises(WebtextError, match="the task task-1 failed 4 times: the store is busy"):
        run(workers, practice_calls.be_busy_at_first, tasks[1:] + tasks[:1])


def test_results_that_nobody_asks_for_any_more_are_not_computed():
    results = LocalEngine(2).run(
        practice_calls.square, tasks_of(*range(1000)), scratch=Path("scratch"), on_progress=lambda *_: None
    )
    next(results)
    results.close()
    assert not multiprocessing.active_children()


def test_there_is_at_least_one_core():
    assert 1 <= available_cores() <= os.cpu_count()


def test_an_engine_is_added_in_one_file(tmp_path, plugin, webtext, write_shards):
    """Nothing but the interface: a file in the folder of engines is a value of --engine."""
    source = (
        "from webtext_prep.running.engines.base import Engine\n"
        "from webtext_prep.running.tasks import Context\n"
        "class Backwards(Engine):\n"
        "    name = 'backwards'\n"
        "    def run(self, call, tasks, *, scratch, on_progress):\n"
        "        for position, task in reversed(list(enumerate(tasks))):\n"
        "            yield position, call(task, Context(scratch, 1, lambda units: on_progress(position, units)))\n"
    )
    plugin(engines, "backwards", source)
    folder = write_shards([["a"], ["b"], ["c"]])
    assert running_settings.make_engine("backwards", 2).workers == 2
    for engine in ("backwards", "local"):
        assert webtext("shout", "--input", folder, "--output", tmp_path / engine, "--engine", engine).code == 0
    one, two = ((tmp_path / name / "part-00002.jsonl.zst").read_bytes() for name in ("backwards", "local"))
    assert one == two


def test_workers_are_forked_with_the_modules_that_a_stage_preloads(tmp_path):
    """Each phase of a stage started workers that imported a compiler for a second each."""
    (tmp_path / "preloading.py").write_text(
        """
import sys
from pathlib import Path
from webtext_prep.running.engines.local import LocalEngine
from webtext_prep.running.tasks import Task

class Calls:
    preload = ("colorsys",)

    def is_there(self, task, context):
        return "colorsys" in sys.modules

if __name__ == "__main__":
    import preloading

    tasks = [Task("one"), Task("two")]
    call = preloading.Calls().is_there
    found = LocalEngine(2).run(call, tasks, scratch=Path(), on_progress=lambda position, units: None)
    print(sorted(found), "colorsys" in sys.modules)
"""
    )
    done = subprocess.run(
        [sys.executable, "preloading.py"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[(0, True), (1, True)] False\n"


OTHER_ENGINE = """
from dataclasses import dataclass

from command_kit import setting
from webtext_prep.running.engines.local import LocalEngine


@dataclass(frozen=True)
class SteamSettings:
    {setting}: int = setting(7, "how hard to heat it", ge=1)


class Steam(LocalEngine):
    name = "steam"
    settings_class = SteamSettings

    def run(self, call, tasks, *, scratch, on_progress):
        print("pressure", self.settings.{setting})
        return super().run(call, tasks, scratch=scratch, on_progress=on_progress)
"""


@pytest.fixture
def add_engine(plugin):
    """`add_engine(name_of_its_setting)` makes `--engine steam` known."""
    return lambda setting: plugin(engines, "steam", OTHER_ENGINE.format(setting=setting))


def test_an_engine_has_settings_of_its_own(add_engine, webtext, write_shards, tmp_path):
    add_engine("steam_pressure")
    assert "with --engine steam:" in webtext("shout", "--help").out
    stage = ["shout", "--input", write_shards([["a"]]), "--output"]
    given = webtext(*stage, tmp_path / "one", "--engine", "steam", "--steam-pressure", 9)
    assert (given.code, given.out.splitlines()[0]) == (0, "pressure 9")
    config = tmp_path / "settings.toml"
    config.write_text('[shout]\nengine = "steam"\nsteam_pressure = 3\nmark = "?"\n')
    assert "pressure 3" in webtext(*stage, tmp_path / "two", "--config", config).out
    # It is no part of what an output is made with: another value resumes.
    again = webtext(*stage, tmp_path / "two", "--config", config, "--steam-pressure", 4)
    assert again.code == 0
    assert "pressure" not in again.out
    assert "steam" not in (tmp_path / "two/stage.json").read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--steam-pressure", 9], "--steam-pressure is a setting of --engine steam, and the engine is local"),
        (["--config", "settings.toml"], "settings.toml: steam_pressure is a setting of --engine steam"),
        (["--engine", "steam", "--steam-pressure", 0], "--steam-pressure is 0: it should be at least 1"),
    ],
)
def test_a_setting_of_another_engine_is_refused(
    add_engine, webtext, write_shards, tmp_path, monkeypatch, arguments, sentence
):
    add_engine("steam_pressure")
    monkeypatch.chdir(tmp_path)
    Path("settings.toml").write_text("[shout]\nsteam_pressure = 3\n")
    result = webtext("shout", "--input", write_shards([["a"]]), "--output", tmp_path / "out", *arguments)
    assert result.code == 2
    assert sentence in result.sentence
    assert not (tmp_path / "out").exists()


def test_a_setting_of_an_engine_has_the_name_of_the_engine(add_engine):
    """Two engines with a setting `address` each could not stand on one command line."""
    add_engine("pressure")
    with pytest.raises(CommandError, match="the setting pressure of engine steam should be called steam_pressure"):
        running_settings.find_engines()
