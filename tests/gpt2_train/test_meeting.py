"""The start of a job that another launcher has started, or that variables in the environment only seem to make one."""

from __future__ import annotations

import datetime
import itertools
import signal
import socket
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.gpt2_train import forks
from tests.gpt2_train.conftest import command, read_until, rows

from gpt2_train.config.errors import Gpt2Error, Gpt2UsageError
from gpt2_train.config.layout import is_in_job
from gpt2_train.distributed import meeting
from gpt2_train.distributed.jobs import meet_in_job
from gpt2_train.distributed.mesh import World

STEPS = ("--steps", 2)


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """A free port, at which the environment says that processes meet."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number = int(probe.getsockname()[1])
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(number))
    return number


def test_whoever_never_comes_is_named(
    port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After half an hour of silence it was said that another process had ended, where none had ever started."""
    minutes = itertools.count(0, 60)
    clock = SimpleNamespace(monotonic=lambda: next(minutes), sleep=lambda _: None)
    monkeypatch.setattr(meeting, "time", clock)
    with pytest.raises(Gpt2Error) as raised:
        meeting.meet(0, 4, datetime.timedelta(seconds=100))
    assert "waited 2 minutes" in str(raised.value) and f"at 127.0.0.1:{port} in vain" in str(raised.value)
    assert "3 of 4 processes (1, 2, 3): start each with its RANK, WORLD_SIZE=4" in str(raised.value)
    assert f"waiting for 3 of 4 processes (1, 2, 3) at 127.0.0.1:{port}" in capsys.readouterr().err


def test_a_first_process_that_never_comes_is_named(port: int) -> None:
    with pytest.raises(Gpt2Error, match=r"process 2 of 4 waited .* in vain for process 0, which does not answer yet"):
        meeting.meet(2, 4, datetime.timedelta(seconds=0.1))


def test_those_that_come_late_are_waited_for(port: int) -> None:
    stores = []
    late, later = (threading.Thread(target=lambda rank=rank: stores.append(meeting.meet(rank, 3))) for rank in (0, 2))
    looks: list[int] = []

    def look() -> None:
        looks.append(1)
        if len(looks) == 1:
            late.start()
        if len(looks) == 3:
            later.start()

    meeting.meet(1, 3, look=look)
    late.join()
    later.join()
    assert len(looks) >= 3


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_wait_for_others(
    tmp_path: Path, corpus: str, port: int, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    """SIGTERM and Ctrl-C did nothing while torch's C++ waited."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    process = forks.Started(forks.program(train_at_once, *map(str, command(tmp_path, *STEPS, data=corpus)[3:])))
    read_until(process, "waiting for 1 of 2 processes (1)")
    process.send_signal(number)
    rest = process.communicate()[1]
    assert process.returncode == code
    assert f"stopped by {number.name} while this process waited for the others: nothing had begun" in rest


def train_at_once(*words: str) -> int:
    """`gpt2` that says at once for whom it waits."""
    from gpt2_train.cli import main

    meeting.QUIET_SECONDS = 0
    return main(words)


def test_variables_of_another_program_make_no_job(tmp_path: Path, corpus: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """RANK=0 and WORLD_SIZE=1 are what many programs leave behind; they ended in an internal error."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert not is_in_job()
    done = forks.run(command(tmp_path, *STEPS, data=corpus))
    assert done.returncode == 0, done.stderr
    assert rows(tmp_path)[-1]["step"] == 2


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE"])
def test_an_empty_variable_is_none(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for other in ("RANK", "WORLD_SIZE"):
        monkeypatch.setenv(other, "2")
    monkeypatch.setenv(name, "")
    assert not is_in_job()


def test_a_place_that_can_not_be_opened_is_said_to_be_so(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was said that another process had ended, where none had ever started."""
    with (
        socket.create_server(("", port)),
        pytest.raises(Gpt2Error, match=f"process 0 can't meet the others at 127.0.0.1:{port} .Address already in use"),
    ):
        meeting.meet(0, 2)


def test_an_address_that_is_none_is_said_to_be_so(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(Gpt2Error, match=rf"process 0 can't meet the others at 127.0.0.1:{port} .Name or service not"):
        meeting.meet(0, 2)


@pytest.mark.parametrize("size", ["4", "two", "0"])
def test_several_processes_without_a_place_to_meet_are_refused(size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", size)
    with pytest.raises(Gpt2UsageError, match=f"RANK=0 and WORLD_SIZE={size} are .* not both of MASTER_ADDR and"):
        is_in_job()


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two' in the environment"),
        ({"RANK": "4"}, "RANK is '4' in the environment, where .* a number from 0 to 3"),
        ({"LOCAL_RANK": "-1"}, "LOCAL_RANK is '-1'"),
        ({"MASTER_PORT": "ssh"}, "MASTER_PORT is 'ssh' in the environment, which is no port"),
    ],
)
def test_variables_that_no_launcher_sets_are_refused(
    variables: dict[str, str], said: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ({"RANK": "0", "WORLD_SIZE": "4"} | variables).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Gpt2UsageError, match=said):
        meet_in_job(World.of_environment(), datetime.timedelta(seconds=0.1))


def test_the_first_process_of_a_debian_is_reached_by_its_address_in_the_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Debian and Ubuntu name their own host 127.0.1.1, where gloo let the other machines wait for half an hour."""
    ways = {"10.0.0.2": "10.0.0.1"}
    monkeypatch.setattr(meeting, "address_towards", lambda host, port: ways[host])
    assert meeting.own_address(["127.0.0.1", "127.0.0.1", "10.0.0.2"], 0) == "10.0.0.1"
    assert meeting.own_address(["127.0.0.1", "127.0.0.1", "10.0.0.2"], 1) == "10.0.0.1"
    assert meeting.own_address(["127.0.0.1", "127.0.0.1", "10.0.0.2"], 2) == "10.0.0.2"
    assert meeting.own_address(["127.0.0.1", "127.0.0.1"], 1) == "127.0.0.1"


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone is asked for its interfaces")
def test_gloo_is_told_the_interface_of_an_address() -> None:
    assert meeting.interface_of(meeting.address_towards("127.0.0.1", 9)) == "lo"
    assert meeting.interface_of("127.0.1.1") == "lo"
    assert meeting.interface_of("198.51.100.7") is None
    assert meeting.interface_of("") is None
