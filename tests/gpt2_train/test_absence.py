"""A process that does not come to an exchange: the others end with a sentence that names it."""

from __future__ import annotations

import datetime
import os
import signal
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from tests.gpt2_train import forks
from tests.gpt2_train.conftest import command, read_until
from tests.gpt2_train.test_processes import children_of

from gpt2_train.config.errors import Gpt2Error, Gpt2UsageError
from gpt2_train.distributed.collectives import TimeoutReporter, is_time_out, operation_of

GLOO = RuntimeError("[../gloo/transport/tcp/unbound_buffer.cc:84] Timed out waiting 1800000ms for recv operation")


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[TimeoutReporter]:
    """Four processes that have met, on two machines."""
    store = dist.HashStore()
    found = []
    for rank in range(4):
        monkeypatch.setattr(socket, "gethostname", lambda rank=rank: f"node{rank // 2}")
        found.append(TimeoutReporter(store, rank, 4, later=0.2, poll=0.01))
    return found


def test_whoever_did_not_wait_in_vain_is_named(processes: list[TimeoutReporter]) -> None:
    for one in processes[1:3]:
        one.store.set(f"waited/{one.rank}", "")
    processes[0].timeout = datetime.timedelta(minutes=5)
    error = processes[0].explained(GLOO)
    assert isinstance(error, Gpt2Error) and error.exit_code == 1
    assert "process 0 of 4 waited for 5 minutes in an exchange in vain: process 3 on node1 did not take part" in str(
        error
    )
    assert "resumes from the last checkpoint; --distributed-timeout" in str(error)


def test_several_are_named_and_latecomers_are_not(processes: list[TimeoutReporter]) -> None:
    assert "processes 1 on node0, 2 on node1, 3 on node1 did not" in str(processes[0].explained(GLOO))
    for one in processes:
        one.store.set(f"waited/{one.rank}", "")
    assert "others came too late" in str(processes[1].explained(GLOO))


def test_a_store_that_does_not_answer_is_not_waited_for(
    processes: list[TimeoutReporter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be on the machine that is gone."""
    processes[0].answer = 0.1
    release = threading.Event()
    monkeypatch.setattr(TimeoutReporter, "_missing", lambda self: release.wait() and {})
    assert "their store does not answer" in str(processes[0].explained(GLOO))
    release.set()


def test_other_errors_stay_what_they_are(processes: list[TimeoutReporter]) -> None:
    for error in (ValueError("no"), Gpt2UsageError("--steps is 0"), KeyboardInterrupt()):
        assert processes[0].explained(error) is error


def test_a_time_out_is_found_behind_the_error_that_it_caused() -> None:
    """As of a checkpoint that could not be saved."""
    try:
        try:
            raise GLOO
        except RuntimeError as inner:
            raise Gpt2Error("can't save the checkpoint") from inner
    except Gpt2Error as error:
        assert is_time_out(error)
        assert operation_of(error) is None
    assert not is_time_out(Gpt2Error("can't save the checkpoint"))


def test_nccl_is_asked_whether_it_has_given_up(processes: list[TimeoutReporter]) -> None:
    """Its own thread would abort the process."""
    answers = iter(["ErrorType.SUCCESS", "ErrorType.SUCCESS", "ErrorType.TIMEOUT"])
    group: Any = SimpleNamespace(_get_backend=lambda device: SimpleNamespace(get_error=lambda: next(answers)))
    ended = threading.Event()
    errors: list[BaseException] = []
    processes[0].watch([group], lambda error: (errors.append(error), ended.set()))
    assert ended.wait(30)
    assert "in an exchange (NCCL) in vain: processes 1 on node0, 2 on node1, 3 on node1 did not" in str(errors[0])


@pytest.mark.exhaustive
def test_a_process_that_stops_answering_is_named(tmp_path: Path, corpus: str) -> None:
    """The others waited half an hour and then showed a source line of gloo."""
    flags = ("--steps", 100_000, "--data-parallel", 2, "--distributed-timeout", 0.06)
    process = forks.Started(command(tmp_path, *flags, data=corpus))
    read_until(process, "step 3/")
    os.kill(children_of(process.pid)[1], signal.SIGSTOP)
    _, rest = process.communicate()
    assert process.returncode == 1
    assert rest.count("error:") == 1 and "Traceback" not in rest
    line = next(line for line in rest.splitlines() if "error:" in line)
    assert "process 0 of 2 waited for 0.06 minutes in an exchange (" in line
    assert f"process 1 on {socket.gethostname()} did not take part" in line
