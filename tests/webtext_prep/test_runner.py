"""What the runner promises for every stage: resuming, the same bytes, every document accounted for, no file lost.

The stages here are in `support/practice_stages.py`; commands that are killed are real processes.
"""

import json
import os
import random
import signal
from collections.abc import Callable

import practice_stages
import pytest
from jobs import job_of

from webtext_prep import storage
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.inputs import find_inputs
from webtext_prep.documents.folders.shards import shard_name, shards_in
from webtext_prep.errors import InputError, WebtextError
from webtext_prep.running import processes as versions
from webtext_prep.running.claims import Claim
from webtext_prep.running.job import Job
from webtext_prep.running.summary import Summary
from webtext_prep.running.tasks import Tally, Task


def pytest_generate_tests(metafunc):
    """Each test runs on this machine and in object storage; there it is exhaustive."""
    if "home" in metafunc.fixturenames:
        metafunc.parametrize("home", ["local", pytest.param("s3", marks=pytest.mark.exhaustive)], indirect=True)


@pytest.fixture
def shout(home, state_of):
    """`shout(folder, **options)` runs the practice stage over a folder of shards into `output`."""

    def run(folder, *, stage=None, output=home / "output", workers=1, **options) -> Summary:
        stage = stage or practice_stages.Shout()
        return job_of(stage, shards_in(folder), output, state=state_of(output), workers=workers, **options).run()

    return run


def marked(url: str, **metadata: object) -> Document:
    return Document(url, "some text", metadata)


def many(shards: int = 6, documents: int = 40) -> list[list[Document]]:
    """Shards of documents of all kinds, some dropped."""
    source = random.Random(0)
    return [
        [
            marked(f"http://{shard}.org/{row}", **({"drop": source.choice(["short", "odd"])} if row % 3 == 1 else {}))
            for row in range(documents)
        ]
        for shard in range(shards)
    ]


def record(folder) -> dict:
    return json.loads(storage.read_bytes(folder / "stage.json"))


def times(folder) -> dict[str, object]:
    return {path.name: storage.stamp(path) for path in shards_in(folder)}


def move(source, target) -> None:
    """Put a file in the place of another one."""
    with storage.create(target) as file:
        file.write(storage.read_bytes(source))
    storage.remove(source)


def cut(place, size: int) -> None:
    """Shorten a file."""
    data = storage.read_bytes(place)[:size]
    with storage.create(place) as file:
        file.write(data)


def write(place, data: bytes) -> None:
    with storage.create(place) as file:
        file.write(data)


# Every document is accounted for


def test_in_is_out_and_dropped(write_shards, read_shards, shout, home):
    """Pitfall 12: documents that it failed on were not counted."""
    folder = write_shards([["a", "b"], [marked("http://c", drop="odd")], [marked("http://d", drop="dull"), "e"]])
    counts = shout(folder).as_dict()
    assert (counts["in"], counts["out"], counts["dropped"]) == (5, 3, {"dull": 1, "odd": 1})
    assert [document.text for document in read_shards(home / "output")] == ["A!", "B!", "E!"]
    assert record(home / "output")["shards"] == {shard_name(0): 2, shard_name(1): 0, shard_name(2): 1}


def test_a_stage_that_loses_a_document_is_caught(write_shards, shout, home):
    with pytest.raises(WebtextError, match="3 in, 2 out, 0 dropped do not add up"):
        shout(write_shards([["a", marked("http://b", lose=True), "c"]]))
    assert not storage.is_file(home / "output" / "stage.json")


def test_each_dropped_document_has_a_receipt_with_the_values_that_decided(write_shards, read_shards, shout, home):
    folder = write_shards([["a", marked("http://b", drop="odd", title="B")], ["c"]])
    shout(folder)
    (dropped,) = read_shards(home / "output" / "dropped")
    assert (dropped.url, dropped.text, dropped.metadata) == ("http://b", "", {"reason": "odd", "detail": 1})


def test_nothing_in_is_an_error(write_shards, shout, home):
    """Pitfall 5: an empty input gave an empty output, and it said done."""
    with pytest.raises(InputError, match=r"no documents in the input \(.*part-00000\.jsonl\.zst\): check what made it"):
        shout(write_shards([[]]))
    assert not storage.is_file(home / "output" / "stage.json")


def test_nothing_out_is_an_error_with_its_reasons(write_shards, shout, home):
    folder = write_shards([[marked("http://a", drop="odd")], [marked("http://b", drop="odd")]])
    with pytest.raises(WebtextError, match=r"none of the 2 documents was kept \(odd 2\): check the input"):
        shout(folder)
    assert not storage.is_file(home / "output" / "stage.json")


def test_one_empty_shard_among_others_is_no_error(write_shards, shout):
    assert shout(write_shards([[], ["a"]])).tally.read == 1


def test_the_closing_table_shows_the_funnel():
    tally = Tally(read=4, kept=1)
    tally.dropped.update({"odd": 1, "short": 2})
    table = Summary("shout", "out", tally, {"tokens": 12345}, seconds=75).table().splitlines()
    assert table[0] == "shout  out  (1:15)"
    assert [line.split() for line in table[1:]] == [
        ["documents", "in", "4", "100.0%"],
        ["out", "1", "25.0%"],
        ["dropped:", "short", "2", "50.0%"],
        ["dropped:", "odd", "1", "25.0%"],
        ["tokens:", "12,345"],
    ]


# The same bytes


@pytest.mark.parametrize("workers", [1, 2])
def test_names_that_are_not_utf8_are_read_written_recorded_and_resumed(latin, webtext, workers):
    """Such a name ended the run in an internal error after all the work was done, each time anew."""
    source = latin / os.fsdecode(b"\xe9.jsonl")
    source.write_text('{"url": "http://a.org/", "text": "one"}\nno JSON\n')
    command = ["merge", "--input", latin, "--output", latin / "out", "--json", "--workers", workers]
    done = webtext(*command, "--allow-unreadable").json
    assert (done["out"], done["resumed"], done["output"]) == (1, False, str(latin / "out"))
    assert done["problems"][0].startswith(f"{source}, line 2: not valid JSON")
    run = json.loads((latin / "out/.state/run.json").read_bytes())
    assert run["files"] == [str(source)]
    assert webtext(*command, "--allow-unreadable").json["resumed"]
    assert "/caf\\udce9/out\n" in webtext("inspect", latin / "out").out
    tokens = webtext("tokenize", "--input", latin / "out", "--output", latin / "corpus", "--json", "--workers", workers)
    assert tokens.json["out"] == 1


def test_one_two_and_three_workers_write_the_same_bytes(write_shards, shout, contents, home):
    """Pitfall 6: output changed from run to run."""
    folder = write_shards(many())
    found = []
    for workers in (1, 2, 3):
        output = home / f"output{workers}"
        shout(folder, output=output, workers=workers)
        found.append(contents(output))
    assert len(found[0]) == 13
    assert found[0] == found[1] == found[2]


def test_more_workers_than_shards_are_no_error(write_shards, shout):
    assert shout(write_shards([["a"], ["b"]]), workers=9).tally.kept == 2


# Resuming


def test_the_same_command_again_does_nothing(write_shards, shout, contents, home):
    folder = write_shards(many())
    first = shout(folder, workers=2)
    before, written = contents(home / "output"), times(home / "output")
    again = shout(folder)
    assert not first.resumed
    assert again.resumed
    assert again.tally == first.tally
    assert contents(home / "output") == before
    assert times(home / "output") == written


def test_only_the_shard_whose_input_changed_is_made_again(write_shards, shout, contents, home):
    """Pitfall 8: resuming counted lines, and a changed input corrupted it."""
    folder = write_shards([["a"], ["b"], ["c"]])
    shout(folder)
    before = times(home / "output")
    write_shards([["a"], ["b"], ["c"]], name="other")
    write_shards([["a"], ["new"], ["c"]], name="changed")
    move(home / "changed" / shard_name(1), folder / shard_name(1))
    assert not shout(folder).resumed
    after = times(home / "output")
    assert [name for name in after if after[name] != before[name]] == [shard_name(1)]
    shout(folder, output=home / "fresh")
    assert contents(home / "output") == contents(home / "fresh")


def test_a_grown_input_adds_its_shards_and_a_shrunk_one_loses_them(write_shards, shout, contents, home):
    folder = write_shards([["a"], ["b"]])
    shout(folder)
    before = times(home / "output")
    write_shards([["a"], ["b"], ["c"]], name="grown")
    move(home / "grown" / shard_name(2), folder / shard_name(2))
    assert shout(folder).tally.kept == 3
    assert before.items() <= times(home / "output").items()
    for number in (1, 2):
        storage.remove(folder / shard_name(number))
    assert shout(folder).tally.kept == 1
    shout(folder, output=home / "fresh")
    assert contents(home / "output") == contents(home / "fresh")


def test_a_lost_or_shortened_output_is_made_again(write_shards, shout, contents, home):
    folder = write_shards([["a"], ["b"], ["c"]])
    shout(folder)
    whole = contents(home / "output")
    storage.remove(home / "output" / shard_name(0))
    cut(home / "output" / shard_name(2), 9)
    assert not shout(folder).resumed
    assert contents(home / "output") == whole


def test_a_lost_record_is_written_again_without_work(write_shards, shout, contents, home):
    folder = write_shards([["a"], ["b"]])
    shout(folder)
    whole, written = contents(home / "output"), times(home / "output")
    storage.remove(home / "output" / "stage.json")
    shout(folder)
    assert contents(home / "output") == whole
    assert times(home / "output") == written


def test_damaged_markers_cost_only_the_work_again(write_shards, shout, contents, home, state_of):
    folder = write_shards([["a"], ["b"]])
    shout(folder)
    whole = contents(home / "output")
    for mark in state_of(home / "output").rglob("*.json"):
        mark.write_bytes(b"\x00" * mark.stat().st_size)
    shout(folder)
    assert contents(home / "output") == whole


def spoil(folder) -> None:
    """Put zeros into all shards: those that are made again are told by it, though they come out the same."""
    for path in shards_in(folder):
        with storage.create(path) as file:
            file.write(bytes(storage.size(path)))


def test_a_new_version_of_a_stage_makes_everything_again_and_says_so(write_shards, shout, contents, home, capsys):
    folder = write_shards([["a"], ["b"]])
    shout(folder)
    before = contents(home / "output")
    spoil(home / "output")
    assert "earlier version" not in capsys.readouterr().err
    shout(folder, stage=practice_stages.ShoutVersion2())
    said = " ".join(capsys.readouterr().err.split())
    assert f"{home / 'output'} holds files of an earlier version of `webtext shout`, which made others of the" in said
    after = contents(home / "output")
    assert all(after[name] == before[name] for name in (shard_name(0), shard_name(1)))
    assert record(home / "output")["version"] == 2


def test_a_setting_that_changes_no_result_may_change(write_shards, shout, home):
    folder = write_shards([["a"]])
    shout(folder)
    assert shout(folder, stage=practice_stages.Shout(gate=str(home))).resumed


def test_finished_shards_survive_an_error_in_another(write_shards, shout, contents, home):
    folder = write_shards([["a"], ["b"], [marked("http://c", fail=True)]])
    with pytest.raises(KeyError, match="a bug"):
        shout(folder)
    before = times(home / "output")
    assert sorted(before) == [shard_name(0), shard_name(1)]
    write_shards([["a"], ["b"], ["c"]], name="fixed")
    move(home / "fixed" / shard_name(2), folder / shard_name(2))
    shout(folder)
    assert before.items() <= times(home / "output").items()


# Whose folder it is


def test_other_settings_on_the_same_folder_are_named(write_shards, shout, contents, home):
    folder = write_shards([["a"]])
    shout(folder)
    before = contents(home / "output")
    with pytest.raises(InputError, match=r"other settings \(mark was '!', now '\?'\): .*--restart"):
        shout(folder, stage=practice_stages.Shout(mark="?"))
    assert contents(home / "output") == before


def test_another_version_of_a_library_is_named(write_shards, shout, home, state_of, monkeypatch):
    """A run that was resumed after an upgrade of a library mixed the documents of two versions, without a word."""
    installed = {"ftfy": "6.2", "langdetect": "1.0"}
    monkeypatch.setattr(versions, "version_of", installed.__getitem__)
    folder, stage = write_shards([["a"], [marked("http://b", fail=True)]]), practice_stages.ShoutByLibrary()
    with pytest.raises(KeyError):
        shout(folder, stage=stage)
    installed["ftfy"] = "6.3"
    move(write_shards([["b"]], "mended") / shard_name(0), folder / shard_name(1))
    sentence = r"output was made with ftfy 6\.2 \(here it is 6\.3\), .* give another --output, or --restart to make it"
    with pytest.raises(InputError, match=sentence):
        shout(folder, stage=stage)
    installed["ftfy"] = "6.2"
    before = times(home / "output")
    assert len(before) == 1
    shout(folder, stage=stage)
    assert before.items() <= times(home / "output").items()
    assert record(home / "output")["libraries"] == {"ftfy": "6.2", "langdetect": "1.0"}
    assert shout(folder, stage=stage).resumed
    installed["langdetect"] = "2.0"
    with pytest.raises(InputError, match=r"made with langdetect 1\.0 \(here it is 2\.0\), "):
        shout(folder, stage=stage)
    assert not shout(folder, stage=stage, restart=True).resumed
    assert record(home / "output")["libraries"]["langdetect"] == "2.0"


def test_an_output_of_unknown_libraries_is_made_again(write_shards, shout, home, state_of, monkeypatch):
    """Its task markers hold for the versions that they were made with alone, also where the claim names none."""
    installed = {"ftfy": "6.2", "langdetect": "1.0"}
    monkeypatch.setattr(versions, "version_of", installed.__getitem__)
    folder, stage = write_shards([["a"]]), practice_stages.ShoutByLibrary()
    shout(folder, stage=stage)
    claim = state_of(home / "output") / "job.json"
    known = json.loads(claim.read_text())
    del known["libraries"]
    claim.write_text(json.dumps(known))
    assert shout(folder, stage=stage).resumed
    claim.write_text(json.dumps(known))
    installed["langdetect"] = "3.0"
    (marker,) = (state_of(home / "output") / "markers").rglob("*.json")
    before = marker.read_text()
    assert not shout(folder, stage=stage).resumed
    assert marker.read_text() != before
    shout(folder, output=home / "without")
    assert "libraries" not in record(home / "without")


def test_restart_makes_the_folder_anew(write_shards, read_shards, shout, contents, home):
    folder = write_shards([["a"], ["b", marked("http://c", drop="odd")]])
    shout(folder)
    before = times(home / "output")
    changed = practice_stages.Shout(mark="?")
    assert not shout(folder, stage=changed, restart=True).resumed
    assert all(after != before[name] for name, after in times(home / "output").items())
    shout(folder, stage=changed, output=home / "fresh")
    assert contents(home / "output") == contents(home / "fresh")


def test_a_restart_that_was_cut_short_goes_on(write_shards, shout, home, monkeypatch):
    folder = write_shards([["a", marked("http://b", drop="odd")]])
    shout(folder)

    def cut_short(self, plain=Claim.remove_output):
        plain(self)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Claim, "remove_output", cut_short)
        with pytest.raises(KeyboardInterrupt):
            shout(folder, restart=True)
    assert shout(folder, restart=True).tally.kept == 1


def test_the_folder_of_another_stage_is_refused_even_for_a_restart(write_shards, shout, contents, home):
    folder = write_shards([["a"]])
    shout(folder)
    before = contents(home / "output")
    for restart in (False, True):
        with pytest.raises(InputError, match="is the output of `webtext shout`: give another --output"):
            shout(folder, stage=practice_stages.Whisper(), restart=restart)
    assert contents(home / "output") == before


def test_a_folder_with_other_files_is_refused_and_left_alone(write_shards, shout, home):
    precious = home / "precious"
    write(precious / "part-00007.jsonl.zst", b"mine")
    for restart in (False, True):
        with pytest.raises(InputError, match=r"holds other files \(part-00007\.jsonl\.zst\): give an empty or new"):
            shout(write_shards([["a"]]), output=precious, restart=restart)
    assert [path.name for path, _ in storage.list_folder(precious)] == ["part-00007.jsonl.zst"]


@pytest.mark.parametrize("below", [".", "dropped"])
def test_an_input_inside_the_output_folder_is_refused(write_shards, shout, home, below):
    """Pitfall 11: merge read its own output when both were in one folder."""
    folder = write_shards([["a"]], name=f"work/{below}")
    with pytest.raises(InputError, match="lies in the output folder itself"):
        shout(folder, output=home / "work")


# Interrupted, killed, out of room


def waiting_shards() -> list[list[Document]]:
    """Six shards; work on the first, third and sixth has to wait at the gate: before, amid and after the rest."""
    shards = many(6, 9)
    for shard, row in ((0, 0), (2, 5), (5, 8)):
        shards[shard][row].metadata = {"wait": 1}
    return shards


@pytest.fixture
def uninterrupted(write_shards, shout, contents, home):
    """The bytes of a run over `waiting_shards` that nothing interrupts, and the folder of its input."""
    folder = write_shards(waiting_shards())
    shout(folder, output=home / "uninterrupted")
    return folder, contents(home / "uninterrupted")


@pytest.fixture
def command(uninterrupted, gate, home, state_of):
    """The arguments of the command over `waiting_shards`, for a number of workers."""

    def arguments(workers: int) -> list[object]:
        output = home / "output"
        options = ["--input", uninterrupted[0], "--output", output, "--gate", gate.folder, "--state", state_of(output)]
        return ["shout", *options, "--workers", workers]

    return arguments


@pytest.fixture
def markers(home, state_of) -> Callable[[], int]:
    """How many shards are marked as done."""
    return lambda: len(list((state_of(home / "output") / "markers").rglob("part-*.json")))


STOPPED_AT = [pytest.param(1, 1, 0, id="1 worker", marks=pytest.mark.exhaustive), pytest.param(2, 2, 1, id="2")]
"""Workers; how many wait at the gate when all that can is done; how many shards are done then."""


@pytest.mark.parametrize(("workers", "waiting", "done"), STOPPED_AT)
def test_a_killed_run_resumes_to_the_same_bytes(
    uninterrupted, markers, command, start, webtext, gate, contents, home, workers, waiting, done
):
    """Pitfall 8: resuming lost and doubled work. Here `kill -9` comes in the middle of shards; workers end by
    themselves, and the same command with any number of workers resumes."""
    gate.close()
    running = start(*command(workers))
    running.wait_until(lambda: len(running.at_the_gate()) == waiting and markers() == done, "the gate")
    assert len(running.family) >= (workers if workers > 1 else 0)
    finished = times(home / "output")
    os.kill(running.process.pid, signal.SIGKILL)
    assert running.end().code == -signal.SIGKILL
    assert not storage.is_file(home / "output" / "stage.json")
    gate.open()
    again = webtext(*command(4 - workers), "--json").json
    assert again["in"] == again["out"] + sum(again["dropped"].values()) == 54
    assert contents(home / "output") == uninterrupted[1]
    assert finished.items() <= times(home / "output").items()


@pytest.mark.parametrize(
    ("how", "workers", "waiting", "done"),
    [
        ("Ctrl-C", 4, 3, 3),
        pytest.param("SIGTERM", 1, 1, 0, marks=pytest.mark.exhaustive),
    ],
)
def test_an_interrupt_stops_the_workers_and_the_same_command_goes_on(
    uninterrupted, markers, command, start, webtext, gate, contents, home, workers, waiting, done, how
):
    """With four workers, three are at work and one has nothing left to do."""
    gate.close()
    running = start(*command(workers))
    running.wait_until(lambda: len(running.at_the_gate()) == waiting and markers() == done, "the gate")
    if how == "Ctrl-C":
        os.killpg(running.process.pid, signal.SIGINT)  # a terminal sends it to the workers, too
    else:
        os.kill(running.process.pid, signal.SIGTERM)
    result = running.end()
    assert (result.code, result.out) == (130, "")
    assert result.messages.splitlines()[-1] == "webtext: interrupted; the same command resumes from here."
    gate.open()
    assert webtext(*command(2), "--json").json["in"] == 54
    assert contents(home / "output") == uninterrupted[1]


def test_a_worker_that_is_killed_costs_nothing_but_its_task(uninterrupted, command, start, gate, contents, home):
    """One worker that ran out of memory ended the whole run."""
    gate.close()
    running = start(*command(2))
    running.wait_until(lambda: len(running.at_the_gate()) == 2, "the gate")
    os.kill(running.at_the_gate()[0], signal.SIGKILL)
    gate.open()
    assert running.end().code == 0
    assert contents(home / "output") == uninterrupted[1]


def test_a_second_command_on_the_same_folder_waits_its_turn(
    uninterrupted, command, start, webtext, gate, contents, home
):
    gate.close()
    running = start(*command(2), "--json")
    running.wait_until(lambda: len(running.at_the_gate()) == 2, "the gate")
    for options in ([], ["--restart"]):
        second = webtext(*command(1), *options)
        assert second.code == 2
        assert f"another webtext command is at work on {home / 'output'}: wait for it" in second.sentence
    gate.open()
    assert running.end().json["in"] == 54
    assert contents(home / "output") == uninterrupted[1]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_is_one_sentence_and_nothing_half_written(
    uninterrupted, command, webtext, gate, contents, home, workers
):
    (gate.folder / "full").touch()
    result = webtext(*command(workers))
    assert result.code == 1
    assert "the disk is full" in result.sentence
    assert "free some space and run the same command again" in result.sentence
    assert not times(home / "output")
    (gate.folder / "full").unlink()
    assert webtext(*command(workers), "--json").json["in"] == 54
    assert contents(home / "output") == uninterrupted[1]


def test_a_full_disk_while_a_mark_is_written_costs_only_that_shard(
    uninterrupted, markers, command, webtext, contents, home, disk_full_for
):
    disk_full_for("part-00002.json", times=1)
    assert "the disk is full" in webtext(*command(1)).sentence
    assert markers() == 2
    spoil(home / "output")
    assert webtext(*command(1), "--json").json["in"] == 54
    found = contents(home / "output")
    kept = {name for name, content in found.items() if not any(content)}
    assert kept == {shard_name(0), shard_name(1)}
    assert {**found, **{name: uninterrupted[1][name] for name in kept}} == uninterrupted[1]


def test_what_a_killed_run_left_half_written_is_cleared_away(
    uninterrupted, command, start, webtext, gate, home, state_of, tmp_path, tmp_path_factory, monkeypatch
):
    drafts = tmp_path_factory.mktemp(
        "drafts"
    )  # where files lie before they are put elsewhere; sockets have short names
    monkeypatch.setenv("TMPDIR", str(drafts))
    monkeypatch.setattr("tempfile.tempdir", None)
    gate.close()
    running = start(*command(3))
    running.wait_until(lambda: len(running.at_the_gate()) == 3, "the gate")
    os.kill(running.process.pid, signal.SIGKILL)
    running.end()
    is_local = home == tmp_path
    assert list(tmp_path.rglob(".part-00005*.unfinished") if is_local else drafts.rglob(".webtext-upload*.unfinished"))
    gate.open()
    storage.remove(uninterrupted[0] / shard_name(5))
    assert webtext(*command(1), "--json").json["in"] == 45
    assert not [*tmp_path.rglob("*.unfinished"), *drafts.rglob("*.unfinished")]
    assert not storage.is_folder(state_of(home / "output") / "scratch")


def test_a_temporary_folder_may_have_a_name_too_long_for_sockets(start, command, tmp_path, monkeypatch):
    (tmp_path / ("long" * 25)).mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / ("long" * 25)))
    running = start(*command(2))
    assert running.process.wait(timeout=60) == 0


def test_damaged_input_is_one_sentence_from_any_process(uninterrupted, command, webtext):
    damaged = uninterrupted[0] / shard_name(1)
    cut(damaged, storage.size(damaged) // 2)
    for workers in (1, 2):
        result = webtext(*command(workers))
        assert result.code == 2
        assert f"{damaged} is cut off in the middle of its compressed data" in result.sentence


def test_an_internal_error_is_one_sentence_and_a_traceback_only_for_debug(write_shards, webtext, home, state_of):
    folder = write_shards([["a", marked("http://b", fail=True)], ["c"]])
    for workers in (1, 2):
        arguments = ["shout", "--input", folder, "--output", home / "output", "--state", state_of(home / "output")]
        arguments += ["--workers", workers]
        assert "internal error: KeyError: 'a bug' (run again with --debug" in webtext(*arguments).sentence
        debugged = webtext(*arguments, "--debug")
        assert (debugged.code, "practice_stages.py" in debugged.err) == (1, True)


# What a stage says


def test_a_fact_of_a_stage_never_hides_a_count(home, write_shards, state_of):
    """A stage's own figure called `in` replaced the number of documents in."""

    class Boastful(practice_stages.Shout):
        def run(self, job):
            outcome = super().run(job)
            outcome.facts["in"] = 1_000_000
            return outcome

    folder = write_shards([["a", "b"]])
    summary = job_of(Boastful(), shards_in(folder), home / "output", state=state_of(home / "output")).run()
    assert summary.as_dict()["in"] == 2
    assert record(home / "output")["in"] == 2
    assert record(home / "output")["facts"] == {"in": 1_000_000}


def test_a_task_that_has_nothing_to_say_is_done_once(home, write_shards, state_of):
    """A task that returned None was run again and again."""
    calls = []

    class Silent(practice_stages.Shout):
        def run(self, job):
            job.map("quiet", lambda task, context: calls.append(task.name), [Task("one")])
            return super().run(job)

    folder = write_shards([["a"]])
    for _ in range(2):
        job_of(Silent(), shards_in(folder), home / "output", state=state_of(home / "output")).run()
        storage.remove(home / "output" / "stage.json")
    assert calls == ["one"]


def test_progress_of_a_resumed_run_counts_what_was_done(home, write_shards, state_of, shout, monkeypatch):
    """After an interruption the progress began at 0 and had no total, so that it showed no time left."""
    from webtext_prep.running import job as module

    folder = write_shards([["a"] * 5, ["b"] * 7])
    shout(folder)
    storage.remove(home / "output" / shard_name(1))
    seen = []

    class Watched(module.Progress):
        def __init__(self, label, unit, total=None, *, done=0, **options):
            seen.append((total, done))
            super().__init__(label, unit, total, done=done, **options)

    monkeypatch.setattr(module, "Progress", Watched)
    monkeypatch.setattr(Job, "documents", 12)
    assert not shout(folder).resumed
    assert seen == [(12, 5)]


def test_the_state_of_an_output_behind_a_url_needs_a_place_here(write_shards):
    folder = write_shards([["a"]])
    with pytest.raises(InputError, match=r"is remote: give a local folder for its state with --state DIR"):
        job_of(practice_stages.Shout(), shards_in(folder), storage.location("s3://bucket/out"))


def test_an_unfinished_output_is_not_read_wherever_its_state_lies(home, write_shards, tmp_path, shout):
    """Behind a URL, where no state lies next to it, half an output passed for a shorter corpus."""
    folder = write_shards([["a"], [marked("http://b", fail=True)]])
    with pytest.raises(KeyError):
        job_of(practice_stages.Shout(), shards_in(folder), home / "output", state=tmp_path / "elsewhere").run()
    assert [path.name for path in shards_in(home / "output")] == [shard_name(0)]
    stage = practice_stages.Shout()
    with pytest.raises(InputError, match="is not finished: run the stage that makes it again"):
        find_inputs([str(home / "output")], accepts=stage.reads.accepts, kinds="shards")
    move(folder / shard_name(0), folder / shard_name(1))
    with storage.create(folder / shard_name(0)) as file:
        file.write(storage.read_bytes(folder / shard_name(1)))
    job_of(stage, shards_in(folder), home / "output", state=tmp_path / "elsewhere").run()
    found = find_inputs([str(home / "output")], accepts=stage.reads.accepts, kinds="shards").files
    assert [path.name for path in found] == [shard_name(0), shard_name(1)]
    assert ".state" not in [path.name for path, _ in storage.list_folder(home / "output")]


def test_a_state_folder_belongs_to_one_output(home, write_shards, tmp_path, contents):
    """With the --state of one output, another one counted as done, or lost the files that lay in it."""
    folder, state = write_shards([["a"], ["b"]]), tmp_path / "elsewhere"

    def run(output, **options):
        return job_of(practice_stages.Shout(), shards_in(folder), output, state=state, **options).run()

    run(home / "one")
    theirs = write_shards([["what somebody else made"], ["and this"], ["and that"]], "two")
    before = contents(theirs)
    for options in ({}, {"restart": True}):
        with pytest.raises(InputError, match=r"holds the state of another output, .*one: give another --state DIR"):
            run(theirs, **options)
    assert contents(theirs) == before
    assert run(home / "one").resumed


def test_a_state_folder_beside_one_output_is_not_another_ones(tmp_path, write_shards):
    """With the --state of one output, another one counted as done, or lost the files that lay in it."""
    folder = write_shards([["a"]])
    stage, inputs = practice_stages.Shout(), shards_in(folder)
    job_of(stage, inputs, tmp_path / "one").run()
    with pytest.raises(InputError, match=r"holds the state of another output, .*one: give another --state DIR"):
        job_of(stage, inputs, tmp_path / "two", state=tmp_path / "one" / ".state").run()
    assert job_of(stage, inputs, tmp_path / "one", state=tmp_path / "one" / ".." / "one" / ".state").run().resumed


def test_an_output_begun_with_its_state_elsewhere_says_so(tmp_path, write_shards):
    """Without the --state with which it was begun, an output ended in "File exists"."""
    folder = write_shards([[marked("http://b", fail=True)]])
    with pytest.raises(KeyError):
        job_of(practice_stages.Shout(), shards_in(folder), tmp_path / "out", state=tmp_path / "elsewhere").run()
    with pytest.raises(InputError, match="was begun with its state elsewhere: give the same --state DIR again"):
        job_of(practice_stages.Shout(), shards_in(folder), tmp_path / "out").run()


@pytest.fixture
def scored(tmp_path, webtext):
    """Documents with scores."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": f"A text of number {n}.", "score": n}) + "\n" for n in range(40)))
    assert webtext("merge", rows, "--output", tmp_path / "scored").code == 0
    return tmp_path / "scored"


def test_the_output_of_a_refused_command_takes_the_corrected_settings(scored, tmp_path, webtext, contents):
    """Nothing was made, and it said "was made with other settings"."""
    words = ("train-filter", scored, "--workers", 1, "--good-when")
    for _ in range(2):
        assert "no good documents" in webtext(*words, "score >= 99", "--output", tmp_path / "o").sentence
    assert webtext(*words, "score >= 20", "--output", tmp_path / "o").code == 0
    assert webtext(*words, "score >= 20", "--output", tmp_path / "new").code == 0
    assert contents(tmp_path / "o") == contents(tmp_path / "new")
    assert "was made with other settings" in webtext(*words, "score >= 9", "--output", tmp_path / "o").sentence


def test_a_refused_command_leaves_no_output_of_which_nothing_was_made(tmp_path, webtext):
    """An output folder stayed, and of an empty file also a shard."""
    (tmp_path / "empty.jsonl").write_text("")
    assert webtext("merge", tmp_path / "empty.jsonl", "--output", tmp_path / "o").code == 2
    assert not (tmp_path / "o").exists()


def test_what_was_dropped_stays_where_nothing_was_kept(scored, tmp_path, webtext):
    words = ("clean", scored, "--output", tmp_path / "o", "--language", "any", "--min-tokens")
    assert webtext(*words, 99999).code == 1
    assert len(list((tmp_path / "o" / "dropped").iterdir())) == 1
    assert webtext(*words, 1).code == 0


def test_finished_shards_of_a_run_that_failed_are_not_given_up_for_other_settings(scored, tmp_path, webtext):
    whole = next(scored.glob("part-*")).read_bytes()
    (tmp_path / "some").mkdir()
    for number, content in enumerate((whole, whole[:-9])):
        (tmp_path / "some" / f"part-{number:05}.jsonl.zst").write_bytes(content)
    words = ("clean", tmp_path / "some", "--output", tmp_path / "o", "--workers", 1, "--language", "any")
    assert "part-00001" in webtext(*words, "--min-tokens", 1).sentence
    assert "was made with other settings" in webtext(*words, "--min-tokens", 2).sentence
