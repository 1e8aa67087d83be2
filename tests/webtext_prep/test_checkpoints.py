"""Checkpoints inside a shard: a kill costs seconds of work, and the bytes are those of an uninterrupted run."""

import contextlib
import os
import random
import shutil
import signal
from pathlib import Path

import practice_stages
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from webtext_prep.documents import compressed_streams
from webtext_prep.documents.document import Document
from webtext_prep.documents.shards import known_formats, shards_in
from webtext_prep.errors import RetryableError
from webtext_prep.running.checkpoint import FOLDER, Checkpoint, units_done
from webtext_prep.running.job import Job
from webtext_prep.running.shard_writing import write_shard, write_shard_in_steps
from webtext_prep.running.task import Context, Task
from webtext_prep.stages.clean import Clean
from webtext_prep.stages.filter import Filter


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def checkpoint(tmp_path):
    """`checkpoint()` is that of one task, made anew as when the task is run again."""

    def make(key="k", **options):
        context = Context(tmp_path, 1, lambda units: None)
        return Checkpoint(Task("part-00000", (), key=key), context, clock=Clock(), **options)

    return make


def segments(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.segment"))


# The tool


def test_nothing_is_written_before_anything_is_due(checkpoint, tmp_path):
    found = checkpoint()
    found.add(b"one")
    assert found.state is None
    assert not found.is_due()
    assert list(found.records()) == [b"one"]
    found.remove()
    assert list(tmp_path.iterdir()) == []


def test_it_is_due_after_some_seconds_or_some_bytes(tmp_path):
    clock = Clock()
    context = Context(tmp_path, 1, lambda units: None)
    found = Checkpoint(Task("a", (), key="k"), context, seconds=20, held_bytes=10, clock=clock)
    clock.now += 19
    assert not found.is_due()
    clock.now += 1
    assert found.is_due()
    found.save(1)
    assert not found.is_due()
    found.add(b"123456789")
    assert not found.is_due()
    found.add(b"0")
    assert found.is_due()
    found.save(2)
    assert not found.is_due()


def test_what_was_saved_is_found_again_in_order(checkpoint, tmp_path):
    first = checkpoint(parts=2)
    first.add(b"a\n\x00")
    first.add(b"x", 1)
    first.save({"read": 1}, units=1)
    first.add(b"")
    first.save({"read": 2}, units=2)
    first.add(b"never saved")
    second = checkpoint(parts=2)
    assert second.state == {"read": 2}
    assert units_done(Task("part-00000", (), key="k"), tmp_path) == 2
    second.add(b"b")
    assert list(second.records(0)) == [b"a\n\x00", b"", b"b"]
    assert list(second.records(1)) == [b"x"]
    second.save({"read": 3})
    assert list(checkpoint(parts=2).records(0)) == [b"a\n\x00", b"", b"b"]
    second.remove()
    assert checkpoint(parts=2).state is None
    assert segments(tmp_path) == []


def test_another_key_finds_nothing(checkpoint, tmp_path):
    """A changed input or setting."""
    checkpoint().save(1)
    other = checkpoint("other")
    assert other.state is None
    # Nor do segments of the other task that somebody puts there.
    shutil.copytree(tmp_path / FOLDER / "k", tmp_path / FOLDER / "third")
    assert checkpoint("third").state is None


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "gone", "folder"])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_damaged_segment_ends_the_chain_before_it(checkpoint, tmp_path, damage, at):
    first = checkpoint()
    for number in range(3):
        first.add(b"record %d" % number * 50)
        first.save(number)
    place = segments(tmp_path)[at]
    data = bytearray(place.read_bytes())
    data[len(data) // 2] ^= 1
    place.unlink()
    if damage == "folder":
        place.mkdir()
    elif damage != "gone":
        place.write_bytes({"cut": bytes(data[:-1]), "flipped": bytes(data), "empty": b""}[damage])
    second = checkpoint()
    assert second.state == (at - 1 if at else None)
    if damage == "folder":
        return
    # What is saved now does not join the older segments behind the damaged one.
    second.add(b"again")
    second.save("again")
    third = checkpoint()
    assert third.state == "again"
    assert list(third.records()) == [b"record %d" % number * 50 for number in range(at)] + [b"again"]


def test_two_attempts_at_one_task_do_not_mix(checkpoint):
    """A task that was given up, and its retry."""
    one, two = checkpoint(), checkpoint()
    for attempt, record in ((one, b"one"), (two, b"two")):
        attempt.add(record)
        attempt.save(record.decode())
    one.add(b"more")
    one.save("more")
    assert checkpoint().state == "two"
    with pytest.raises(RetryableError, match="another attempt at the task has replaced"):
        list(one.records())
    assert list(two.records()) == [b"two"]


@settings(max_examples=50, deadline=None)
@given(
    records=st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=20)), max_size=30),
    cuts=st.sets(st.integers(0, 30)),
    kills=st.sets(st.integers(0, 30)),
)
def test_any_kills_give_the_same_records(tmp_path_factory, records, cuts, kills):
    """Records of three parts, saved at `cuts`; at `kills` the task begins again from what was saved."""
    scratch = tmp_path_factory.mktemp("scratch")

    def again():
        context = Context(scratch, 1, lambda units: None)
        return Checkpoint(Task("a", (), key="k"), context, parts=3, clock=Clock())

    found, at, left = again(), 0, set(kills)
    while at < len(records):
        part, record = records[at]
        found.add(record, part)
        at += 1
        if at in cuts:
            found.save(at)
        if at in left:
            left.discard(at)
            found = again()
            at = found.state or 0
    for part in range(3):
        assert list(found.records(part)) == [record for of, record in records if of == part]


# Shards


class Stopped(Exception):
    pass


class Stopping(list):
    """A list that takes no more than so many entries."""

    def __init__(self, most):
        super().__init__()
        self.most = most

    def append(self, entry):
        if len(self) == self.most:
            raise Stopped
        super().append(entry)


def marked(url, **metadata):
    return Document(url, "some text", metadata)


def documents(count=40):
    source = random.Random(0)
    return [
        marked(f"http://{row}.org/", **({"drop": source.choice(["short", "odd"])} if row % 3 == 1 else {"n": row}))
        for row in range(count)
    ]


@pytest.mark.parametrize("format_name", ["jsonl.zst", "jsonl.gz", "jsonl", "parquet"])
@pytest.mark.parametrize("every", [1, 7, 1000])
def test_steps_write_the_bytes_of_one_go(tmp_path, format_name, every):
    stage = practice_stages.Murmur(every=every)
    context = Context(tmp_path / "scratch", 1, lambda units: None)
    made = {}
    for name in ("plain", "steps"):
        task = Task(
            name, (), tuple(tmp_path / name / folder / f"part-00000.{format_name}" for folder in ("", "dropped"))
        )
        if name == "plain":
            tally = write_shard(task, context, documents(), stage.process)
        else:
            tally = write_shard_in_steps(
                task, context, lambda start: documents()[start:], stage.process, stage.checkpoint(task, context)
            )
        made[name] = (tally, [output.read_bytes() for output in task.outputs])
    assert made["plain"] == made["steps"]
    assert not segments(tmp_path)


@pytest.fixture
def write_large(tmp_path, monkeypatch):
    """`write_large(format, stop_after=N)` writes 300 documents, many times a piece, to two shards with checkpoints.

    It stops when so many have been written to the shards, and returns how many were worked on, and how many written.
    """
    monkeypatch.setattr(compressed_streams, "PIECE_BYTES", 4000)
    source = random.Random(3)
    found = [marked(f"http://{row}.org/", n="word" * source.randint(1, 300)) for row in range(300)]

    def process(some, tally):
        for document in some:
            worked.append(document.url)
            if int(document.url[7:-5]) % 3:
                yield document
            else:
                tally.drop(document, "third")

    def run(format_name, *, stop_after=10_000, name="output", plain=False):
        outputs = tuple(tmp_path / name / folder / f"part-00000.{format_name}" for folder in ("", "dropped"))
        task = Task("part-00000", (), outputs, key=name)
        context = Context(tmp_path / "scratch", 1, lambda units: None)
        worked.clear()
        if plain:
            write_shard(task, context, found, process)
            return None
        with monkeypatch.context() as patched:
            written = Stopping(stop_after)

            def noted(self, data, write=compressed_streams.CompressedStream.write):
                written.append(len(data))
                return write(self, data)

            patched.setattr(compressed_streams.CompressedStream, "write", noted)
            with pytest.raises(Stopped) if stop_after < 10_000 else contextlib.nullcontext():
                checkpoint = Checkpoint(task, context, parts=2, held_bytes=9000)
                write_shard_in_steps(task, context, lambda start: found[start:], process, checkpoint)
        return len(worked), len(written)

    worked: list[str] = []
    return run


@pytest.mark.parametrize("format_name", ["jsonl.zst", "jsonl.gz", "jsonl"])
@pytest.mark.parametrize("stop_after", [0, 1, 50, 101, 170, 250, 299])
def test_the_last_writing_of_a_large_shard_goes_on(write_large, tmp_path, contents, format_name, stop_after):
    """Not even the last checkpoint's documents are worked on again, and no more than a piece is written again."""
    write_large(format_name, name="whole", plain=True)
    assert write_large(format_name, stop_after=stop_after) == (300, stop_after)
    worked, again = write_large(format_name)
    assert worked == 0
    assert again <= 300 - stop_after + 15
    assert contents(tmp_path / "output") == contents(tmp_path / "whole")
    assert not list((tmp_path / "scratch").rglob("*.*"))


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
@pytest.mark.parametrize("format_name", ["jsonl.zst", "jsonl.gz"])
def test_a_damaged_draft_is_written_again(write_large, tmp_path, contents, format_name, damage):
    write_large(format_name, name="whole", plain=True)
    write_large(format_name, stop_after=250)
    (draft,) = (path for path in (tmp_path / "scratch").rglob("*.draft") if path.stat().st_size)
    data = bytearray(draft.read_bytes())
    data[len(data) // 3] ^= 0x10
    draft.unlink()
    if damage != "gone":
        draft.write_bytes(bytes(data if damage == "flipped" else data[: len(data) // 2]))
    worked, again = write_large(format_name)
    assert worked == 0
    assert again >= 200
    assert contents(tmp_path / "output") == contents(tmp_path / "whole")


def test_what_is_packed_is_written_as_the_document_itself(tmp_path):
    odd = [
        Document("http://a/", "", {}),
        Document("http://b/", "text\nand more \u2028 \x00", {"title": "T", "language": None, "big": 2**70, "f": 1.0}),
        Document("http://c/", "lone \ud800 surrogate", {"k\udfff": ["\ud800", {"n": [1, None]}]}),
        Document("http://d/", "t", {"url": "another", "text": "another", "title": 5, "domain": "d"}),
    ]
    for form in known_formats().values():
        made = {}
        for way in ("plain", "packed"):
            with (tmp_path / way).open("wb") as stream, form.write(stream) as writer:
                for document in odd:
                    if way == "plain":
                        writer.write(document)
                    else:
                        writer.write_packed(form.pack(document))
            made[way] = (tmp_path / way).read_bytes()
        assert made["plain"] == made["packed"], form.name


def test_a_stage_that_never_ends_its_input_is_no_endless_loop(tmp_path):
    context = Context(tmp_path, 1, lambda units: None)
    task = Task("a", (), (tmp_path / "part-00000.jsonl",))
    tally = write_shard_in_steps(
        task, context, lambda start: documents()[start:], lambda found, tally: [], Checkpoint(task, context)
    )
    assert (tally["in"], tally["out"]) == (0, 0)


@pytest.fixture
def murmur(write_shards, tmp_path, monkeypatch):
    """`murmur(output, stop_after=N)` runs the practice stage with checkpoints over two shards, of 40 and 9 documents.

    It returns the URLs of the documents that were worked on.
    """
    folder = write_shards([documents(), documents(9)])

    def run(output="output", *, stop_after=1000, every=3, **options):
        monkeypatch.setattr(practice_stages, "asked", Stopping(stop_after))
        job = Job(practice_stages.Murmur(every=every), shards_in(folder), tmp_path / output, **options)
        with pytest.raises(Stopped) if stop_after < 49 else contextlib.nullcontext():
            job.run()
        return list(practice_stages.asked)

    return run


WAYS = [{}, {"keep_dropped": True}, {"format": "parquet", "keep_dropped": True}]


@pytest.mark.parametrize("options", WAYS, ids=["plain", "dropped", "parquet"])
@pytest.mark.parametrize("at", [0, 1, 20, 39])
def test_a_killed_task_goes_on_inside_its_shard(write_shards, tmp_path, start, gate, webtext, contents, options, at):
    """`kill -9` while document `at` is worked on; what lay before is not worked on again."""
    waiting = documents()
    waiting[at].metadata["wait"] = 1
    waiting[at].metadata.pop("drop", None)
    folder = write_shards([waiting, documents(9)])
    whole = Job(practice_stages.Murmur(), shards_in(folder), tmp_path / "whole", **options)
    whole.run()
    flags = ["--keep-dropped"] if "keep_dropped" in options else []
    arguments = ["murmur", "--input", folder, "--output", tmp_path / "output", "--gate", gate.folder, "--workers", 1]
    arguments += ["--every", 1, "--format", options.get("format", "jsonl.zst"), *flags]
    gate.close()
    running = start(*arguments)
    running.wait_until(running.at_the_gate, "the gate")
    os.kill(running.process.pid, signal.SIGKILL)
    running.end()
    assert len(segments(tmp_path / "output")) == at
    gate.open()
    practice_stages.asked.clear()
    result = webtext(*arguments, "--json").json
    assert result["in"] == 49
    assert practice_stages.asked[: 40 - at] == [document.url for document in waiting[at:]]
    assert len(practice_stages.asked) == 49 - at
    assert contents(tmp_path / "output") == contents(tmp_path / "whole")
    assert not (tmp_path / "output" / ".state" / "scratch").exists()


def test_a_worker_that_is_killed_goes_on_inside_its_shard(write_shards, tmp_path, start, gate, contents):
    """The same command, which runs its task again: its progress does not begin anew either."""
    waiting = documents()
    waiting[30].metadata = {"wait": 1}
    folder = write_shards([waiting, documents(9)])
    Job(practice_stages.Murmur(), shards_in(folder), tmp_path / "whole").run()
    gate.close()
    arguments = ["--input", folder, "--output", tmp_path / "output", "--gate", gate.folder, "--workers", 2]
    running = start("murmur", *arguments)

    def saved():
        return [(place.name, place.stat().st_mtime_ns) for place in segments(tmp_path / "output")]

    done = tmp_path / "output" / ".state" / "markers" / "shards" / "part-00001.json"
    running.wait_until(lambda: running.at_the_gate() and done.exists(), "the gate")
    (first,) = running.at_the_gate()
    before = saved()
    assert len(before) == 30
    os.kill(first, signal.SIGKILL)
    running.wait_until(lambda: running.at_the_gate() != [first], "the gate again")
    assert saved() == before
    gate.open()
    assert running.end().code == 0
    assert contents(tmp_path / "output") == contents(tmp_path / "whole")


def test_a_task_that_failed_goes_on_after_the_last_checkpoint(murmur, contents, tmp_path):
    everything = murmur("whole")
    assert len(everything) == 49
    assert len(murmur(stop_after=20)) == 20
    # Checkpoints lie after 3, 6, ..., 18.
    assert len(segments(tmp_path / "output")) == 6
    assert len(murmur(stop_after=10)) == 10
    assert murmur() == everything[27:]
    assert contents(tmp_path / "output") == contents(tmp_path / "whole")


@pytest.mark.parametrize("kept", [0, 3])
@pytest.mark.parametrize("damage", ["flipped", "foreign"])
def test_damaged_and_foreign_segments_cost_only_their_work_again(murmur, contents, tmp_path, damage, kept):
    everything = murmur("whole", keep_dropped=True)
    murmur(stop_after=20, keep_dropped=True)
    if damage == "foreign":
        murmur("other", stop_after=20, every=2)
        shutil.copy(segments(tmp_path / "other")[kept], segments(tmp_path / "output")[kept])
    else:
        data = bytearray(segments(tmp_path / "output")[kept].read_bytes())
        data[-1] ^= 1
        segments(tmp_path / "output")[kept].write_bytes(data)
    assert murmur(keep_dropped=True) == everything[3 * kept :]
    assert contents(tmp_path / "output") == contents(tmp_path / "whole")


def test_a_changed_input_begins_anew(murmur, write_shards, contents, tmp_path):
    murmur(stop_after=20)
    write_shards([documents(30), documents(9)])
    assert len(murmur()) == 39
    Job(practice_stages.Murmur(), shards_in(tmp_path / "input"), tmp_path / "whole").run()
    assert contents(tmp_path / "output") == contents(tmp_path / "whole")


def test_progress_goes_on_from_where_it_was(murmur, monkeypatch):
    from webtext_prep.running import job as module

    murmur(stop_after=20)
    seen = []

    class Watched(module.Progress):
        def __init__(self, label, unit, total=None, *, done=0, **options):
            seen.append(done)
            super().__init__(label, unit, total, done=done, **options)

        def update(self, done, note=""):
            seen.append(done)

    monkeypatch.setattr(module, "Progress", Watched)
    murmur(stop_after=3)
    assert seen[0] == min(seen) == 18


# The stages that go on inside a shard


def test_clean_and_filter_do(tmp_path):
    (tmp_path / "mine.py").write_text("def keep(document):\n    return True\n")
    for stage in (Clean(), Filter(function=f"{tmp_path / 'mine.py'}:keep")):
        assert stage.is_independent


def test_clean_gives_the_same_whether_or_not_it_was_interrupted(tmp_path, write_shards, contents):
    """Its answers about a document do not depend on those before it."""
    source = random.Random(5)
    english = ["the", "of", "and", "to", "in", "is", "that", "it", "was", "for", "on", "are", "with", "his", "they"]
    german = ["der", "die", "und", "in", "den", "von", "zu", "das", "mit", "sich", "des", "auf", "ist", "im", "dem"]
    texts = [
        " ".join(source.choices(source.choice([english, english, german]), k=source.randint(60, 300)))
        for _ in range(40)
    ]
    folder = write_shards([[text if row % 5 else text + " schÃ¶n &amp; gut" for row, text in enumerate(texts)]])

    def run(output, seconds, stop_after=None):
        calls = []

        class Watched(Clean):
            def checkpoint(self, task, context):
                return Checkpoint(task, context, parts=len(task.outputs), seconds=seconds)

            def process(self, found, tally):
                def counted():
                    for document in found:
                        if stop_after is not None and len(calls) == stop_after:
                            raise Stopped
                        calls.append(document.url)
                        yield document

                return super().process(counted(), tally)

        job = Job(Watched(), shards_in(folder), tmp_path / output, keep_dropped=True)
        if stop_after is None:
            job.run()
        else:
            with pytest.raises(Stopped):
                job.run()
        return calls

    assert len(run("whole", 1000)) == 40
    run("output", 0, stop_after=17)
    assert len(run("output", 0)) == 23
    assert contents(tmp_path / "output") == contents(tmp_path / "whole")
