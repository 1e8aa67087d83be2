"""Of two commands with the same output in object storage one works, whatever machines they run on."""

import json
import threading
from datetime import timedelta

import pytest

from webtext_prep import storage
from webtext_prep.errors import InputError, WebtextError
from webtext_prep.storage import lease
from webtext_prep.storage.lease import LASTS_SECONDS, LEASE, Lease, held, lease_place


@pytest.fixture(params=["s3", "memory", "practice"])
def output(request, tmp_path):
    """An output folder in each kind of storage."""
    if request.param == "s3":
        return request.getfixturevalue("bucket") / "out"
    return storage.location(f"{request.param}://{tmp_path}/remote/out")


@pytest.fixture
def take(output, tmp_path):
    """`take("machine")` opens the lease for the state folder of that name."""

    def opened(name: str):
        return held(output / LEASE, output, tmp_path / name)

    return opened


def taken(output, state) -> Lease:
    """The lease of a command that does not end it."""
    found = Lease(output / LEASE, output, lease._owner(state))
    found.take()
    found._is_over.set()
    return found


@pytest.fixture
def on_another_machine(monkeypatch):
    return lambda name="second": monkeypatch.setattr(lease.platform, "node", lambda: name)


def content(output) -> dict:
    return json.loads(storage.read_bytes(output / LEASE))


def test_a_second_command_ends_with_one_sentence(output, take, on_another_machine):
    with take("one"):
        there = content(output)
        assert there["renewals"] == 0
        on_another_machine()
        with (
            pytest.raises(InputError, match=rf"at work on .*out, process {there['pid']} on {there['host']} since 20"),
            take("two"),
        ):
            pass
        assert content(output) == there
    assert storage.list_folder(output) == []
    with take("two"):
        assert content(output)["host"] == "second"


def test_the_same_state_folder_takes_over_what_a_killed_command_left(output, take, tmp_path, capsys):
    killed = taken(output, tmp_path / "one")
    assert content(output)["run"] == killed._mine["run"]
    with take("one"):
        assert content(output)["run"] != killed._mine["run"]
    assert storage.list_folder(output) == []
    assert capsys.readouterr().err == ""


def test_a_state_folder_on_another_machine_waits_until_its_lease_has_run_out(
    bucket, s3, tmp_path, on_another_machine, capsys, monkeypatch
):
    """It may be a shared folder, whose other machine has died, or a copy, whose original is at work."""
    output = bucket / "out"
    killed = taken(output, tmp_path / "one")
    slept = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        s3.clock += timedelta(seconds=seconds)

    monkeypatch.setattr(lease.time, "sleep", sleep)
    on_another_machine()
    with held(output / LEASE, output, tmp_path / "one"):
        assert content(output)["host"] == "second"
    assert LASTS_SECONDS - 60 < sum(slept) <= LASTS_SECONDS + 1
    said = capsys.readouterr().err
    assert "worked on" in said
    assert "with this state: waiting up to 1" in said
    assert "is taken over from process" in said
    assert killed._mine["host"] != "second"


def test_a_copied_state_folder_keeps_away_from_its_original(output, take, on_another_machine, monkeypatch):
    with take("one") as mine:
        monkeypatch.setattr(lease.time, "sleep", lambda seconds: mine.renew())
        on_another_machine()
        with pytest.raises(InputError, match="at work on"), take("one"):
            pass
        mine.check()


def test_another_machine_takes_over_what_has_run_out_by_the_clock_of_the_storage(bucket, s3, tmp_path, capsys):
    output = bucket / "out"
    killed = taken(output, tmp_path / "one")
    s3.clock = timedelta(seconds=LASTS_SECONDS - 100)
    with pytest.raises(InputError, match=r"run this again in (100|\d\d) seconds"):
        taken(output, tmp_path / "two")
    s3.clock = timedelta(seconds=LASTS_SECONDS + 5)
    with held(output / LEASE, output, tmp_path / "two"):
        assert "out is taken over from process" in capsys.readouterr().err
        killed.renew()
        with pytest.raises(WebtextError, match=r"out was taken over by process \d+ on"):
            killed.check()
        killed.give_back()
        assert content(output)["run"] != killed._mine["run"]
    assert storage.list_folder(output) == []


def test_a_lease_is_renewed_in_the_background(output, take, monkeypatch):
    monkeypatch.setattr(lease, "RENEWED_SECONDS", 0.001)
    renewed, real = threading.Event(), Lease.renew

    def renew(self) -> None:
        if self._mine["renewals"] < 2:
            real(self)
        else:  # no more of them: in a store whose writes are not atomic, one might be read half
            renewed.set()

    monkeypatch.setattr(Lease, "renew", renew)
    with take("one") as mine:
        assert renewed.wait(60)
        assert content(output)["renewals"] >= 2
        mine.check()
    assert storage.list_folder(output) == []


def test_a_lease_that_somebody_removed_is_made_again(output, take):
    with take("one") as mine:
        storage.remove(output / LEASE)
        mine.renew()
        mine.check()
        assert content(output)["run"] == mine._mine["run"]


def test_of_many_that_begin_at_once_one_begins(bucket, tmp_path):
    """The storage decides, by a put that is made on a condition."""
    output, begin, results = bucket / "out", threading.Barrier(4), []

    def work(number: int) -> None:
        begin.wait()
        try:
            results.append(taken(output, tmp_path / str(number)))
        except InputError:
            results.append(None)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [found for found in results if found is not None]
    assert content(output)["run"] == winner._mine["run"]
    winner.give_back()


def test_storage_without_conditions_takes_the_last_writer_and_the_other_notices(bucket, s3, tmp_path, monkeypatch):
    """Some systems that speak S3's protocol refuse If-Match and If-None-Match."""
    output = bucket / "out"
    s3.fail("PUT", LEASE, times=9, status=501, code="NotImplemented")
    mine = taken(output, tmp_path / "one")
    with monkeypatch.context() as patch:
        patch.setattr(Lease, "_free", lambda self: None)  # both have looked before one has written
        other = taken(output, tmp_path / "two")
    mine.renew()
    other.renew()
    with pytest.raises(WebtextError, match="was taken over"):
        mine.check()
    other.check()


def test_a_request_whose_answer_was_lost_had_made_the_lease(bucket, s3, tmp_path):
    output = bucket / "out"
    s3.fail("PUT", LEASE, cut=0)
    with held(output / LEASE, output, tmp_path / "one") as mine:
        s3.fail("PUT", LEASE, cut=0)
        mine.renew()
        mine.check()
        assert content(output)["renewals"] == 1


def test_local_outputs_need_none(tmp_path):
    with held(tmp_path / LEASE, tmp_path, tmp_path / "state") as mine:
        assert mine is None
    assert list(tmp_path.iterdir()) == []


def test_where_it_lies(bucket):
    assert lease_place(bucket / "out", is_prefix=False) == bucket / "out" / ".webtext-lease.json"
    assert lease_place(bucket / "corpus", is_prefix=True) == bucket / ".corpus.webtext-lease.json"
