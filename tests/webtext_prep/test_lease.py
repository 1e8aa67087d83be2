"""Of two commands with the same output in object storage one works, whatever machines they run on."""

import json
import threading
from datetime import timedelta

import pytest
from object_store import Fault

from webtext_prep import storage
from webtext_prep.errors import InputError, WebtextError
from webtext_prep.storage import lease
from webtext_prep.storage.lease import LASTS_SECONDS, LEASE, Lease, held


@pytest.fixture
def output(bucket):
    return bucket / "out"


@pytest.fixture
def take(output, tmp_path):
    """`take("machine")` opens the lease for the state folder of that name."""
    return lambda name: held(output / LEASE, output, tmp_path / name)


@pytest.fixture
def killed(output, take):
    """`killed("machine")` leaves the lease of a command that did not end it."""

    def leave(name: str) -> None:
        with take(name):
            left = storage.read_bytes(output / LEASE)
        with storage.create(output / LEASE) as file:
            file.write(left)

    return leave


@pytest.fixture
def on_another_machine(monkeypatch):
    return lambda: monkeypatch.setattr(lease.platform, "node", lambda: "second")


def content(output) -> dict:
    return json.loads(storage.read_bytes(output / LEASE))


def test_a_second_command_ends_with_one_sentence(output, take, on_another_machine):
    with take("one"):
        there = content(output)
        on_another_machine()
        says = rf"at work on .*out, process {there['pid']} on {there['host']} since 20"
        with pytest.raises(InputError, match=says), take("two"):
            pass
        assert content(output) == there
    assert storage.list_folder(output) == []
    with take("two"):
        assert content(output)["host"] == "second"


def test_the_same_state_folder_takes_over_what_a_killed_command_left(output, take, killed, capsys):
    killed("one")
    left = content(output)
    with take("one"):
        assert content(output)["run"] != left["run"]
    assert storage.list_folder(output) == []
    assert capsys.readouterr().err == ""


def test_a_state_folder_on_another_machine_waits_until_its_lease_has_run_out(
    s3, output, take, killed, on_another_machine, capsys, monkeypatch
):
    """It may be a shared folder, whose other machine has died, or a copy, whose original is at work."""
    killed("one")
    slept = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        s3.clock += timedelta(seconds=seconds)

    monkeypatch.setattr(lease.time, "sleep", sleep)
    on_another_machine()
    with take("one"):
        assert content(output)["host"] == "second"
    assert LASTS_SECONDS - 60 < sum(slept) <= LASTS_SECONDS + 1
    said = capsys.readouterr().err
    assert "with this state: waiting up to 1" in said
    assert "is taken over from process" in said


def test_a_copied_state_folder_keeps_away_from_its_original(take, on_another_machine, monkeypatch):
    with take("one") as mine:
        monkeypatch.setattr(lease.time, "sleep", lambda seconds: mine.renew())
        on_another_machine()
        with pytest.raises(InputError, match="at work on"), take("one"):
            pass
        mine.check()


def test_another_machine_takes_over_what_has_run_out_by_the_clock_of_the_storage(s3, output, take, capsys):
    with take("one") as slow:
        s3.clock = timedelta(seconds=LASTS_SECONDS - 100)
        with pytest.raises(InputError, match=r"run this again in (100|\d\d) seconds"), take("two"):
            pass
        s3.clock = timedelta(seconds=LASTS_SECONDS + 5)
        with take("two"):
            assert "out is taken over from process" in capsys.readouterr().err
            there = content(output)
            slow.renew()
            with pytest.raises(WebtextError, match=r"out was taken over by process \d+ on"):
                slow.check()
            slow.give_back()
            assert content(output) == there
    assert storage.list_folder(output) == []


def test_a_lease_is_renewed_in_the_background(output, take, monkeypatch):
    monkeypatch.setattr(lease, "RENEWED_SECONDS", 0.001)
    renewed, real = threading.Event(), Lease.renew

    def renew(self) -> None:
        real(self)
        renewed.set()

    monkeypatch.setattr(Lease, "renew", renew)
    with take("one") as mine:
        assert renewed.wait(60)
        assert content(output)["renewals"] >= 1
        mine.check()
    assert storage.list_folder(output) == []


def test_a_lease_that_somebody_removed_is_made_again(output, take):
    with take("one") as mine:
        there = content(output)
        storage.remove(output / LEASE)
        mine.renew()
        mine.check()
        assert content(output)["run"] == there["run"]


def test_of_many_that_begin_at_once_one_begins(take):
    """The storage decides, by a put that is made on a condition."""
    begin, end, began = threading.Barrier(4), threading.Barrier(4), []

    def work(number: int) -> None:
        begin.wait()
        try:
            with take(str(number)):
                began.append(number)
                end.wait()
        except InputError:
            end.wait()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(began) == 1


def test_storage_without_conditions_takes_the_last_writer_and_the_other_notices(s3, output, take):
    """Some systems that speak S3's protocol refuse If-Match and If-None-Match."""
    s3.fail("PUT", LEASE, times=9, status=501, code="NotImplemented")
    with take("one") as mine:
        there = storage.read_bytes(output / LEASE)
        storage.remove(output / LEASE)  # both have looked before one has written
        with take("two") as other:
            mine.renew()
            other.renew()
            with pytest.raises(WebtextError, match="was taken over"):
                mine.check()
            other.check()
            assert storage.read_bytes(output / LEASE) != there


def test_a_request_whose_answer_was_lost_had_made_the_lease(s3, output, take):
    s3.fail("PUT", LEASE, cut=0)
    with take("one") as mine:
        s3.fail("PUT", LEASE, cut=0)
        mine.renew()
        mine.check()
        assert content(output)["renewals"] == 1


def test_no_failed_request_has_a_lease_overwritten(s3, output, take, unpersistent, write_shards, webtext, tmp_path):
    """A request that failed was taken for "no such file", and the other command's lease was written over."""
    command = ["shout", "--input", write_shards([["a"]]), "--output", output, "--state", tmp_path / "two"]
    with take("one"):
        there = storage.read_bytes(output / LEASE)
        s3.requests.clear()
        assert "another webtext command is at work on" in webtext(*command).sentence
        for number in range(1, len(s3.requests) + 1):
            s3.reset()
            s3.faults.append(Fault(lambda method, path, number=number: len(s3.requests) == number, status=503))
            assert webtext(*command).code in (1, 2)
            assert storage.read_bytes(output / LEASE) == there
            assert [entry.name for entry, _ in storage.list_folder(output)] == [LEASE]


def test_local_outputs_need_none(tmp_path):
    with held(tmp_path / LEASE, tmp_path, tmp_path / "state") as mine:
        assert mine is None
    assert list(tmp_path.iterdir()) == []
