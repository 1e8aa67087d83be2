"""The local engine: all results whatever the order, exceptions as they are, no process left behind."""

import multiprocessing
import os

import practice_calls
import pytest

from command_kit import available_cores
from webtext_prep.errors import InputError, WebtextError
from webtext_prep.running.engines import LocalEngine


def run(workers: int, function, arguments) -> list:
    return sorted(LocalEngine(workers).run(function, arguments, lambda units: None))


@pytest.mark.parametrize("workers", [1, 2])
def test_every_result_comes_with_its_position(workers):
    assert run(workers, practice_calls.square, range(20)) == [(number, number * number) for number in range(20)]


@pytest.mark.parametrize("workers", [1, 2])
def test_no_tasks_are_no_work(workers):
    assert run(workers, practice_calls.square, []) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_progress_adds_up_over_all_tasks(workers):
    seen: list[int] = []
    list(LocalEngine(workers).run(practice_calls.square, [3, 4, 5], seen.append))
    assert seen == sorted(seen)
    assert seen[-1] == 12


def test_one_worker_is_this_process_and_more_are_others():
    assert {pid for _, pid in run(1, practice_calls.process_id, range(3))} == {os.getpid()}
    others = {pid for _, pid in run(2, practice_calls.process_id, range(3))}
    assert os.getpid() not in others
    assert 1 <= len(others) <= 2


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("error", [InputError("the file is bad."), KeyError("bug"), OSError(28, "No space left")])
def test_an_exception_of_a_task_is_raised_as_it_is(workers, error):
    with pytest.raises(type(error)) as caught:
        run(workers, practice_calls.fail, [None, error, None, None])
    assert caught.value.args == error.args


def test_an_exception_stops_the_other_tasks():
    """They would wait for ever."""
    with pytest.raises(InputError):
        run(2, practice_calls.fail_or_wait, [None, InputError("stop"), None, None])
    assert not multiprocessing.active_children()


def test_a_worker_that_dies_is_an_error_that_says_what_to_do():
    with pytest.raises(WebtextError, match="fewer --workers, it goes on from the last finished shard"):
        run(2, practice_calls.die, [False, True, False])


def test_results_that_nobody_asks_for_any_more_are_not_computed():
    results = LocalEngine(2).run(practice_calls.square, range(1000), lambda units: None)
    next(results)
    results.close()
    assert not multiprocessing.active_children()


def test_there_is_at_least_one_core():
    assert 1 <= available_cores() <= os.cpu_count()
