"""Disk and memory: what a run will need is said before it starts, and one that will not fit stops with a sentence."""

import json
import random
import types
from pathlib import Path
from pydoc_data.topics import topics

import practice_stages
import psutil
import pytest
from archives import Archive, page
from dedup_runs import scratch_used
from jobs import job_of

from command_kit.machine import Disk, Machine
from webtext_prep import storage
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.sampling import Sample, take_sample
from webtext_prep.documents.folders.shards import shards_in, write_documents
from webtext_prep.documents.formats.compression import compressed
from webtext_prep.errors import InputError
from webtext_prep.running.estimates import Needs, compare, readable
from webtext_prep.stages.blacklist import Blacklist
from webtext_prep.stages.download import Download
from webtext_prep.stages.merge import Merge
from webtext_prep.stages.tokenize import Tokenize


class Small(Machine):
    """A machine with so much disk, one or two of them, and memory."""

    def __init__(self, free=10**12, memory=10**12, *, state_elsewhere=None):
        super().__init__()
        self.free, self.memory, self.state_elsewhere = free, memory, state_elsewhere

    def disk_of(self, place):
        if self.state_elsewhere is not None and "state" in str(place):
            return Disk("second", self.state_elsewhere)
        return Disk("first", self.free)

    def available_memory(self):
        return self.memory


class Hungry(practice_stages.Shout):
    """Says that it needs what the test tells it."""

    def needs(self, sample, workers):
        return NEEDS


NEEDS = Needs(2_000_000_000, 1_100_000_000, 1_200_000_000, 812_345)


def texts(count, seed=0):
    source = random.Random(seed)
    words = ["".join(source.choices("abcdefghijklmnop", k=source.randint(2, 9))) for _ in range(2000)]
    return [" ".join(source.choices(words, k=300)) for _ in range(count)]


# What there is


@pytest.mark.parametrize(
    ("line", "folder", "limit", "usage", "cache"),
    [
        ("0::/job", "job", "memory.max", "memory.current", "inactive_file"),
        ("4:memory:/job", "memory/job", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ],
)
def test_memory_is_limited_by_the_control_group_whose_page_cache_is_free(
    tmp_path, monkeypatch, line, folder, limit, usage, cache
):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: types.SimpleNamespace(available=1_000_000))
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"1:cpu:/other\n{line}\n")
    group = tmp_path / "sys/fs/cgroup" / folder
    group.mkdir(parents=True)
    (group / limit).write_text("500000\n")
    (group / usage).write_text("300000\n")
    (group / "memory.stat").write_text(f"anon 200000\n{cache} 90000\n")
    assert Machine(tmp_path).available_memory() == 290_000
    # A group around it may be tighter, and one without a limit says "max", or a number beyond every machine.
    (group.parent / limit).write_text("60000")
    (group.parent / usage).write_text("20000")
    (group.parent / "memory.stat").write_text(f"{cache} 0\n")
    assert Machine(tmp_path).available_memory() == 40_000
    for unlimited in ("max\n", "9223372036854771712\n"):
        (group.parent / limit).write_text(unlimited)
        (group / limit).write_text(unlimited)
        assert Machine(tmp_path).available_memory() == 1_000_000


def test_this_machine_has_memory_and_a_disk_also_for_folders_to_come(tmp_path):
    assert Machine().available_memory() > 1 << 20
    here, there = Machine().disk_of(tmp_path), Machine().disk_of(tmp_path / "not" / "yet")
    assert here is not None
    assert there is not None
    assert here.name == there.name
    assert here.free > 0


# What is needed


@pytest.mark.parametrize("format_name", ["jsonl.zst", "jsonl.gz", "jsonl", "parquet"])
def test_a_sample_tells_the_size_of_all(tmp_path, format_name):
    documents = [Document(f"http://a.org/{at}", text) for at, text in enumerate(texts(1000))]
    shards = []
    for number in range(5):
        shards.append(tmp_path / f"part-{number:05}.{format_name}")
        with write_documents(shards[-1]) as writer:
            for document in documents[number * 200 : (number + 1) * 200]:
                writer.write(document)
    sizes = [shard.stat().st_size for shard in shards]
    found = take_sample(shards, sizes, format_name=format_name)
    text = sum(len(document.text) for document in documents)
    assert found.size == sum(sizes)
    assert found.documents == pytest.approx(1000, rel=0.05)
    assert found.text == pytest.approx(text, rel=0.15)
    assert found.written == pytest.approx(sum(sizes), rel=0.15)


def test_kinds_of_files_are_sampled_each_by_itself(tmp_path):
    """A folder of one compressed dump and many plain texts."""
    (tmp_path / "dump.jsonl").write_bytes(b'{"text": "a"}\n' * 1000)
    names = [tmp_path / f"{number}.txt" for number in range(50)]
    for name in names:
        name.write_bytes(b"one\ntwo\n" * 100)
    files = [tmp_path / "dump.jsonl", *names]
    found = take_sample(files, [file.stat().st_size for file in files], is_one_document=Merge().reads.is_one_document)
    assert found.documents == 1050
    assert found.text == 14_000 + 40_000
    assert found.written < found.text


def test_the_pages_of_an_archive_are_counted_not_its_lines(tmp_path):
    archive = Archive()
    for number in range(20):
        archive.add("metadata", f"http://a.org/{number}", b"via: a\r\n")
        archive.response(f"http://a.org/{number}", page("A line of a page.\n" * 30))
    (tmp_path / "a.warc.gz").write_bytes(archive.data)
    (tmp_path / "b.wacz").write_bytes(bytes(1_100_000))
    files = sorted(tmp_path.iterdir())
    found = [take_sample([file], [file.stat().st_size]) for file in files]
    assert [one.documents for one in found] == [20, 27]
    assert found[1].text == 2_970_000


def test_damaged_and_empty_files_do_not_stop_the_estimate(tmp_path):
    for name in ("a.jsonl.zst", "b.parquet", "c.jsonl.gz"):
        (tmp_path / name).write_bytes(b"\x00" * 3000)
    (tmp_path / "d.jsonl").touch()
    files = sorted(tmp_path.iterdir())
    found = take_sample(files, [file.stat().st_size for file in files])
    assert found.size == 9000
    assert found.text == 24_300


def test_merge_and_tokenize_need_what_they_then_write(tmp_path, monkeypatch):
    """Estimates from the sample against the bytes of real runs, on prose."""
    folder, prose = tmp_path / "input", " ".join(" ".join(topics.values()).split())
    with write_documents(folder / "part-00000.jsonl.zst") as writer:
        for at in range(2000):
            writer.write(Document(f"http://a.org/{at}", prose[at * 3000 % len(prose) :][:3000]))
    merge = job_of(Merge(), shards_in(folder), tmp_path / "merged")
    needed = merge.estimate(merge.sample()).needs
    used = scratch_used(monkeypatch)
    merge.run()
    made = sum(shard.stat().st_size for shard in shards_in(tmp_path / "merged"))
    assert needed.output == pytest.approx(made, rel=0.2)
    assert max(used) <= needed.scratch < 3 * max(used)
    tokenize = job_of(Tokenize(), shards_in(tmp_path / "merged"), tmp_path / "corpus")
    needed = tokenize.estimate(tokenize.sample()).needs
    tokenize.run()
    made = sum(file.stat().st_size for file in tmp_path.glob("corpus_text_document.[bi]*"))
    assert made <= needed.output < 2 * made


@pytest.mark.parametrize("name", ["list.txt", "list.txt.gz"])
def test_blacklist_needs_what_it_then_writes(tmp_path, name):
    place = tmp_path / "lists" / name
    source = random.Random(3)
    lines = "".join(f"https://www.site{source.randrange(3000)}.com/{source.random()}\n" for _ in range(20_000)).encode()
    with storage.create(place) as file, compressed(file, ".gz" if name.endswith(".gz") else "") as stream:
        stream.write(lines)
    job = job_of(Blacklist(), [place], tmp_path / "urls")
    needed = job.estimate(job.sample()).needs
    job.run()
    made = sum(shard.stat().st_size for shard in shards_in(tmp_path / "urls"))
    assert needed.documents == pytest.approx(20_000, rel=0.05)
    assert made <= needed.output < 2 * made
    assert needed.scratch >= needed.output


def test_a_download_needs_more_for_more_urls_and_no_more_than_are_asked_for():
    def needed(urls, **settings):
        return Download(**settings).needs(Sample(100 * urls, 100 * urls, 40 * urls, urls), 2)

    assert needed(2_000_000).output == pytest.approx(2 * needed(1_000_000).output)
    assert needed(2_000_000, max_urls=1_000_000) == needed(1_000_000)
    # All of it lies in the database, too.
    assert needed(1_000_000).scratch == pytest.approx(needed(1_000_000).output, rel=0.3)


def test_the_output_of_one_stage_is_the_input_of_the_next():
    merged = Merge().needs(Sample(10**9, 3 * 10**9, 10**9, 7000), 1).as_input()
    assert merged == Sample(10**9, 3 * 10**9, 10**9, 7000)
    # Tokens are estimated from the text: at most two bytes for four.
    assert Tokenize().needs(merged, 1).output == 1_650_000_000


def test_few_documents_need_no_memory_for_the_words_of_many():
    """Two workers asked for 690 MB, however little text there was, and a busy machine refused them."""
    few, many = (Tokenize().needs(Sample(text=text), 2).memory for text in (10**4, 10**9))
    assert few < 450_000_000 < many


# What is said


def estimate(machine, **options):
    state = options.pop("state", Path("/disk/output/.state"))
    return compare("dedup", "documents", NEEDS, output=Path("/disk/output"), state=state, machine=machine, **options)


def test_one_line_says_disk_and_memory():
    found = estimate(Small(55_000_000_000, 16_000_000_000))
    assert found.is_worth_saying
    assert found.problem() is None
    assert found.sentence() == (
        "dedup: needs about 3.1 GB of disk (55 GB free) and 1.2 GB of memory (16 GB available) for some 812k documents"
    )


def test_output_and_state_on_two_disks_are_two_figures():
    found = estimate(Small(55_000_000_000, 16_000_000_000, state_elsewhere=1_000_000_000))
    assert "2 GB of disk for /disk/output (55 GB free), 1.1 GB of disk for /disk/output/.state (1 GB free)" in (
        found.sentence()
    )
    assert "needs about 1.1 GB of disk for /disk/output/.state, and 1 GB are free there" in (found.problem() or "")


def test_what_an_interrupted_run_has_written_is_not_needed_again():
    small = Small(1_000_000_000)
    assert estimate(small).problem() is not None
    assert estimate(small, written=(1_500_000_000, 500_000_000)).problem() is not None
    assert estimate(small, written=(1_500_000_000, 700_000_000)).problem() is None
    # More scratch than was thought makes no room for the output.
    assert estimate(small, written=(0, 9_000_000_000)).problem() is not None


def test_a_url_is_not_checked(home):
    from webtext_prep.storage import location

    url = location("s3://bucket/out")
    found = compare("clean", "documents", NEEDS, output=url, state=Path("/state"), machine=Machine())
    assert [place.folders for place in found.places] == [(Path("/state"),)]


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (12_345, "12.3 kB"),
        (99_600, "99.6 kB"),
        (999_600, "1 MB"),
        (3.14e12, "3.14 TB"),
    ],
)
def test_sizes_are_readable(size, shown):
    assert readable(size) == shown


# What a run does


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        (
            Small(free=3_000_000_000),
            "shout needs about 3.1 GB of disk for .*, and 3 GB are free there: free some space",
        ),
        (Small(memory=10**9), "shout needs about 1.2 GB of memory, and 1 GB are available: give fewer --workers"),
    ],
)
def test_a_run_that_will_not_fit_stops_before_it_writes(write_shards, tmp_path, capsys, machine, said):
    folder = write_shards([["a", "b"]])

    def run(**options):
        return job_of(Hungry(), shards_in(folder), tmp_path / "output", machine=machine, **options).run()

    with pytest.raises(InputError, match=said):
        run()
    assert not list((tmp_path / "output").glob("*.zst"))
    assert not list((tmp_path / "output" / ".state").rglob("scratch"))
    assert run(space_check=False).tally.kept == 2
    assert "shout: needs about 3.1 GB of disk" in capsys.readouterr().err
    # What is done already needs nothing.
    assert run().resumed


def test_the_estimate_is_recorded_beside_the_state_and_not_in_the_output(write_shards, tmp_path, capsys, contents):
    folder = write_shards([["a", "b"]])
    for name, machine in (("one", Small()), ("two", Small(free=10**11))):
        job_of(Hungry(), shards_in(folder), tmp_path / name, machine=machine).run()
    recorded = json.loads((tmp_path / "one" / ".state" / "run.json").read_text())["estimate"]
    assert recorded == {
        "output": 2_000_000_000,
        "scratch": 1_100_000_000,
        "memory": 1_200_000_000,
        "documents": 812_345,
        "kept": 0,
        "text": 0,
        "seconds": 0.0,
        "others": [],
    }
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_a_small_run_says_nothing(write_shards, tmp_path, capsys):
    job_of(practice_stages.Shout(), shards_in(write_shards([["a"]])), tmp_path / "output", machine=Small()).run()
    assert capsys.readouterr().err == ""


def test_the_command_stops_and_goes_on_when_told_to(webtext, tmp_path):
    """The real disk: it has no room for a sparse file's eight terabytes, and reading its first line fails at once."""
    place = tmp_path / "input" / "huge.jsonl"
    place.parent.mkdir()
    with place.open("wb") as file:
        file.write(b"nothing\n")
        try:
            file.truncate(8 << 40)
        except OSError:
            pytest.skip("this file system has no sparse files")
    arguments = ["shout", "--input", place.parent, "--output", tmp_path / "output", "--format", "jsonl", "--workers", 1]
    result = webtext(*arguments)
    assert result.code == 2
    assert "shout needs about 8.8 TB of disk for" in result.sentence
    result = webtext(*arguments, "--no-space-check")
    assert result.code == 2
    assert "line 1, is not a document" in result.err
