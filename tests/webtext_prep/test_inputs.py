"""What may be given as input: a file, a folder, a glob, any mix of them; and what is never read."""

import io
import os
import re
import sys
from pathlib import Path

import pytest

from command_kit.atomic import LEFTOVER_SUFFIX
from webtext_prep import storage
from webtext_prep.documents.folders.inputs import find_inputs, is_url_list, spool_standard_input
from webtext_prep.documents.folders.raw_files import is_raw_file
from webtext_prep.documents.folders.shards import is_document_shard
from webtext_prep.documents.folders.stage_record import read_record
from webtext_prep.errors import InputError


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """`tree("a.jsonl", "b/c.jsonl", ...)` makes files in the current folder."""
    monkeypatch.chdir(tmp_path)

    def make(*names: str, content: str = "") -> Path:
        for name in names:
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text(content)
        return tmp_path

    return make


def find(*given: object, output: Path | None = None, accepts=is_document_shard) -> list[str]:
    found = find_inputs(map(str, given), accepts=accepts, kinds="document shards", output=output)
    return [str(path) for path in found.files]


def test_a_file_a_folder_and_a_glob_all_work(tree):
    """Pitfall 5: a file instead of a folder found nothing, wrote an empty output and said done."""
    tree("data/b.jsonl", "data/a.jsonl.gz", "data/c.txt")
    assert find("data/b.jsonl") == ["data/b.jsonl"]
    assert find("data") == ["data/a.jsonl.gz", "data/b.jsonl"]
    assert find("data/*.jsonl*") == ["data/a.jsonl.gz", "data/b.jsonl"]
    assert find("data/b.jsonl", "data") == ["data/b.jsonl", "data/a.jsonl.gz"]


def test_absolute_paths_and_patterns_work(tree):
    here = tree("data/a.jsonl")
    assert find(here / "data") == find(here / "data/*") == find(here / "data/a.jsonl") == [str(here / "data/a.jsonl")]


def test_folders_in_a_folder_are_read_after_its_files_in_the_order_of_their_names(tree):
    tree("data/z.jsonl", "data/b/y.jsonl", "data/a/deep/x.jsonl", "data/a/w.jsonl")
    assert find("data") == ["data/z.jsonl", "data/a/w.jsonl", "data/a/deep/x.jsonl", "data/b/y.jsonl"]


def test_a_pattern_may_match_folders_or_reach_below_them(tree):
    tree("data1/a.jsonl", "data2/b.jsonl", "other/c.jsonl")
    assert find("data?") == ["data1/a.jsonl", "data2/b.jsonl"]
    assert find("**/*.jsonl") == ["data1/a.jsonl", "data2/b.jsonl", "other/c.jsonl"]


def test_a_name_that_looks_like_a_pattern_is_a_name_first(tree):
    tree("a[1].jsonl", "a1.jsonl")
    assert find("a[1].jsonl") == ["a[1].jsonl"]


def test_hidden_files_are_not_read(tree):
    tree("data/a.jsonl", "data/.b.jsonl", "data/.c/d.jsonl", "data/.part-00000.jsonl.zst.unfinished")
    assert find("data") == find("data/*") == find("**/*.jsonl") == ["data/a.jsonl"]


def test_the_output_folder_is_never_read(tree):
    """Pitfall 11: merge read its own output when both were in one folder."""
    tree("work/a.jsonl", "work/out/part-00000.jsonl", "work/out/dropped/part-00000.jsonl")
    for given in ("work", "work/**/*.jsonl", "work/*"):
        assert find(given, output=Path("work/out")) == ["work/a.jsonl"]
    with pytest.raises(InputError, match="input and output are the same"):
        find("work/out", output=Path("work/../work/out"))


def test_a_file_named_twice_is_read_once(tree):
    here = tree("data/a.jsonl", "data/b.jsonl")
    assert find("data/b.jsonl", "./data", here / "data", "data/*") == ["data/b.jsonl", "data/a.jsonl"]


def test_links_to_files_and_folders_are_read_and_circles_are_not_followed(tree):
    here = tree("data/a.jsonl", "elsewhere/b.jsonl")
    Path("data/folder").symlink_to(here / "elsewhere")
    Path("data/link.jsonl").symlink_to(here / "elsewhere/b.jsonl")
    Path("data/circle").symlink_to(here / "data")
    assert find("data") == ["data/a.jsonl", "data/link.jsonl", "data/folder/b.jsonl"]


def test_a_file_name_in_capitals_is_read(tree):
    """B.TXT and a.JSONL.GZ were left out of a folder in silence."""
    tree("data/a.JSONL.GZ", "data/B.TXT", "data/C.Json")
    assert find("data") == ["data/a.JSONL.GZ"]
    assert find("data", accepts=is_raw_file) == ["data/B.TXT", "data/C.Json", "data/a.JSONL.GZ"]


# What is not read


def test_what_is_left_out_of_a_folder_is_counted_by_suffix(tree):
    """A folder with .md, .html and .txt files gave one document and no word of the others."""
    tree("data/a.jsonl", "data/b.pdf", "data/deep/c.html", "data/d.HTML", "data/e.tar.gz", "data/README", "data/.git/x")
    tree("data/out/stage.json", content=RECORD)
    tree("data/out/part-00000.jsonl.zst", "data/out/more.csv")
    found = find_inputs(["data"], accepts=is_document_shard, kinds="document shards")
    assert [str(file) for file in found.files] == ["data/a.jsonl", "data/out/part-00000.jsonl.zst"]
    assert found.skipped == {".html": 2, ".pdf": 1, ".tar.gz": 1, "without a suffix": 1}
    assert found.notes() == ["not read, by suffix: 2 .html, 1 .pdf, 1 .tar.gz, 1 without a suffix."]


def test_of_a_folder_in_which_all_is_read_there_is_nothing_to_say(tree):
    tree("data/a.jsonl", "data/.hidden")
    assert find_inputs(["data"], accepts=is_document_shard, kinds="document shards").notes() == []


def test_a_broken_link_in_a_folder_is_left_out_and_named(tree):
    """One symbolic link that leads nowhere stopped a whole merge."""
    tree("data/a.jsonl")
    Path("data/lost.jsonl").symlink_to("gone")
    Path("data/loop.jsonl").symlink_to("loop.jsonl")
    for given in ("data", "data/*"):
        found = find_inputs([given], accepts=is_document_shard, kinds="document shards")
        assert [str(file) for file in found.files] == ["data/a.jsonl"]
        assert found.notes() == ["not read, 2 symbolic links that lead nowhere: data/loop.jsonl, data/lost.jsonl."]
    with pytest.raises(InputError, match=r"data/lost\.jsonl is a symbolic link that leads nowhere: fix or remove it"):
        find("data/lost.jsonl")


def test_a_pipe_is_refused_in_a_sentence_and_never_opened(tree):
    """A FIFO among the input made the command wait forever."""
    tree("data/a.jsonl")
    os.mkfifo("data/pipe.jsonl")
    with pytest.raises(InputError, match=r"data/pipe\.jsonl is a pipe or a device, .*write its content to a file"):
        find("data/pipe.jsonl")
    found = find_inputs(["data"], accepts=is_document_shard, kinds="document shards")
    assert [str(file) for file in found.files] == ["data/a.jsonl"]
    assert found.notes() == ["not read, 1 pipes or devices: data/pipe.jsonl."]
    with pytest.raises(InputError, match="/dev/null is a pipe or a device"):
        find("/dev/null")


@pytest.mark.parametrize(
    ("given", "holds"),
    [
        ("texts", ", which holds 2 .txt, 1 .pdf: "),
        ("texts/a.txt", " has the wrong suffix: here document shards are read; "),
    ],
)
def test_a_stage_that_reads_documents_says_how_to_make_them_from_text(tree, given, holds):
    """`webtext tokenize --input texts` said that there are no document shards, and not what to do."""
    tree("texts/a.txt", "texts/b.txt", "texts/c.pdf")
    sentence = f"{given}{holds}turn text into documents first, with `webtext merge --input {given} --output merged`"
    with pytest.raises(InputError, match=re.escape(sentence)):
        find(given)


# URLs


def test_files_folders_and_globs_behind_a_url_are_read(bucket):
    """Only paths of this machine could be given as input."""
    names = ["a.jsonl", "b.jsonl.gz", "c.pdf", ".hidden.jsonl", "deep/d.jsonl", ".git/e.jsonl", "out/f.jsonl"]
    for name in names:
        with storage.create(bucket / name):
            pass

    def found(given: str, output: str = "out") -> list[str]:
        inputs = find_inputs([given], accepts=is_document_shard, kinds="document shards", output=bucket / output)
        return [str(file).removeprefix(f"{bucket}/") for file in inputs.files]

    assert found(str(bucket)) == ["a.jsonl", "b.jsonl.gz", "deep/d.jsonl"]
    assert found(f"{bucket}/a.jsonl") == ["a.jsonl"]
    assert found(f"{bucket}/*.jsonl*") == ["a.jsonl", "b.jsonl.gz"]
    assert found(f"{bucket}/**/*.jsonl") == ["a.jsonl", "deep/d.jsonl"]
    assert found(f"{bucket}/d*") == ["deep/d.jsonl"]
    assert find_inputs([str(bucket)], accepts=is_raw_file, kinds="", output=bucket / "out").skipped == {".pdf": 1}
    with pytest.raises(InputError, match="input and output are the same"):
        found(str(bucket), output="")
    with pytest.raises(InputError, match=r"no file or folder s3://.*absent: check the path"):
        found(f"{bucket}/absent")
    with pytest.raises(InputError, match=r"no document shards match s3://.*/\*\.nothing"):
        found(f"{bucket}/*.nothing")


def test_of_a_finished_stage_behind_a_url_only_the_shards_are_read(bucket):
    for name, content in (("stage.json", RECORD), ("part-00000.jsonl.zst", ""), ("passages.jsonl.zst", "")):
        with storage.create(bucket / name) as file:
            file.write(content.encode())
    inputs = find_inputs([str(bucket)], accepts=is_document_shard, kinds="document shards")
    assert [file.name for file in inputs.files] == ["part-00000.jsonl.zst"]
    storage.remove(bucket / "part-00000.jsonl.zst")
    with pytest.raises(InputError, match=r"part-00000\.jsonl\.zst is missing"):
        find_inputs([str(bucket)], accepts=is_document_shard, kinds="document shards")


# What a stage wrote


RECORD = '{"stage": "clean", "shards": {"part-00000.jsonl.zst": 3}}'


def test_of_a_finished_stage_only_the_shards_are_read(tree):
    tree("out/part-00000.jsonl.zst", "out/dropped/part-00000.jsonl.zst", "out/passages.jsonl.zst")
    tree("out/stage.json", content=RECORD)
    for given in ("out", "../" + Path.cwd().name + "/out"):
        assert [Path(found).name for found in find(given, accepts=is_raw_file)] == ["part-00000.jsonl.zst"]


def test_of_a_stage_inside_the_folder_too(tree):
    """Otherwise its dropped documents would come back, and its record would be taken for a document."""
    tree("work/out/part-00000.jsonl.zst", "work/out/dropped/part-00000.jsonl.zst", "work/extra.jsonl")
    tree("work/out/stage.json", content=RECORD)
    tree("work/corpus_text_document.dropped.jsonl.zst")
    assert find("work", accepts=is_raw_file) == ["work/extra.jsonl", "work/out/part-00000.jsonl.zst"]
    assert find("work/out/*", accepts=is_raw_file) == ["work/out/part-00000.jsonl.zst"]


@pytest.mark.parametrize("given", ["work/out", "work", "work/*"])
def test_an_unfinished_stage_is_an_error(tree, given):
    tree("work/out/part-00000.jsonl.zst", "work/out/.state/job.json")
    with pytest.raises(InputError, match="work/out is not finished: run the stage that makes it again, it resumes"):
        find(given)


def test_a_shard_that_went_missing_is_an_error(tree):
    tree("out/part-00001.jsonl.zst")
    tree("out/stage.json", content=RECORD)
    with pytest.raises(InputError, match=r"part-00000\.jsonl\.zst is missing, .*run `webtext clean` again"):
        find("out")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"a": 1}', "\x00"])
def test_a_damaged_record_is_an_error(tree, content):
    tree("out/stage.json", content=content)
    with pytest.raises(InputError, match=r"stage\.json"):
        find("out")


def test_a_folder_without_record_has_none(tree):
    assert read_record(tree("a.jsonl")) is None


# What is wrong


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("absent", "no file or folder absent: check the path"),
        ("absent.jsonl", "no file or folder"),
        ("", "an empty path was given"),
        ("data/*.nothing", r"no document shards match data/\*\.nothing: check the pattern"),
        ("empty", "no document shards in the folder empty: give the folder or file that holds them"),
        ("data/corpus.bin", "holds tokens already, look at it with `webtext inspect`"),
        ("data/page.pdf", "convert it to one of these first"),
    ],
)
def test_an_input_without_documents_is_named(tree, given, sentence):
    tree("data/a.txt", "data/a.jsonl", "data/corpus.bin", "data/page.pdf")
    Path("empty").mkdir()
    with pytest.raises(InputError, match=sentence):
        find("data/a.jsonl", given)


@pytest.mark.parametrize("name", ["page.html", "page.htm.gz", "CC-MAIN.warc.gz", "crawl.warc", "CC-MAIN.wet.gz"])
@pytest.mark.parametrize("accepts", [is_document_shard, is_raw_file])
def test_pages_are_extracted_first(tree, name, accepts):
    tree(f"data/{name}")
    for given in ("data", f"data/{name}"):
        with pytest.raises(InputError, match=f"`webtext extract --input {given} --output extracted`, then give"):
            find_inputs([given], accepts=accepts, kinds="files")
    with pytest.raises(InputError, match=r"convert it|that holds them"):
        find_inputs([f"data/{name}"], accepts=is_url_list, kinds="URL lists")


def test_no_input_at_all_is_an_error():
    with pytest.raises(InputError, match="no input: give document shards with --input"):
        find()


@pytest.mark.parametrize(
    ("name", "accepted_by"),
    [
        ("part-00000.jsonl.zst", {is_document_shard, is_url_list, is_raw_file}),
        ("a.txt.gz", {is_url_list, is_raw_file}),
        ("a.json", {is_raw_file}),
        ("urls", {is_url_list}),
        ("urls.xz", {is_url_list}),
        ("A.TXT.GZ", {is_url_list, is_raw_file}),
        ("a.html", set()),
        ("a.jsonl.zip", set()),
    ],
)
def test_what_is_read_by_its_name(name, accepted_by):
    kinds = {is_document_shard, is_url_list, is_raw_file}
    assert {kind for kind in kinds if kind(Path(name))} == accepted_by


# Standard input


def test_the_same_standard_input_is_the_same_file(tmp_path, monkeypatch):
    kept = []
    for content in (b"http://a\n", b"http://b\n", b"http://a\n"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        kept.append((spool_standard_input(tmp_path), kept and kept[0][0].stat().st_mtime_ns))
        assert kept[-1][0].read_bytes() == content
    assert kept[0][0] == kept[2][0] != kept[1][0]
    assert kept[2][1] == kept[0][0].stat().st_mtime_ns
    assert len(list(tmp_path.iterdir())) == 2


def test_two_commands_that_spool_at_once_keep_their_input_apart(tmp_path, monkeypatch):
    """Two commands with `--input -` on one output wrote into one file: 184,985 URLs came of 100,000."""

    class Waiting(io.BytesIO):
        def read(self, size=-1):
            chunk = super().read(8)
            if self.tell() == 8:
                monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"http://other\n" * 1000)))
                spool_standard_input(tmp_path)
                monkeypatch.setattr(sys, "stdin", stdin)
            return chunk

    stdin = io.TextIOWrapper(Waiting(b"http://a\nhttp://b\n"))
    monkeypatch.setattr(sys, "stdin", stdin)
    kept = spool_standard_input(tmp_path)
    assert kept.read_bytes() == b"http://a\nhttp://b\n"
    assert sorted(path.stat().st_size for path in tmp_path.iterdir()) == [18, 13000]


def test_standard_input_that_breaks_off_leaves_nothing(tmp_path, monkeypatch):
    class Broken(io.BytesIO):
        def read(self, size=-1):
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Broken()))
    with pytest.raises(KeyboardInterrupt):
        spool_standard_input(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_standard_input_that_was_cut_off_is_kept_again(tmp_path, monkeypatch):
    """What a power cut left of standard input passed for all of it, and what a kill left stayed for ever."""

    def spool():
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"http://a\n")))
        return spool_standard_input(tmp_path)

    kept = spool()
    kept.write_bytes(b"")
    (tmp_path / f".stdin.0123456789ab{LEFTOVER_SUFFIX}").write_bytes(b"http")
    assert spool().read_bytes() == b"http://a\n"
    assert list(tmp_path.iterdir()) == [kept]


def test_of_many_suffixes_ten_are_named_and_the_others_counted(tmp_path):
    """300 suffixes were a line of 6,000 characters."""
    for number in range(14):
        for name in "ab"[: 1 + (number < 3)]:
            (tmp_path / f"{name}.s{number:02}").touch()
    (tmp_path / "a.txt").write_text("a")
    found = find_inputs([str(tmp_path)], accepts=lambda place: place.suffix == ".txt", kinds="texts")
    (sentence,) = found.notes()
    assert sentence.startswith("not read, by suffix: 2 .s00, 2 .s01, 2 .s02, 1 .s03, ")
    assert sentence.endswith("1 .s09, 4 of 4 other suffixes.")


ICEBERG = "00001-0334ce6c-789e-4b0b-958e-d60458bcb322.metadata.json"


@pytest.mark.parametrize(
    ("log", "kind"),
    [
        ("_delta_log/00000000000000000000.json", "a Delta"),
        (f"metadata/{ICEBERG}", "an Iceberg"),
        ("metadata/v1.metadata.json", "an Iceberg"),
        (".hoodie/hoodie.properties", "a Hudi"),
    ],
)
@pytest.mark.parametrize("accepts", [is_raw_file, is_url_list, is_document_shard])
def test_a_table_whose_log_tells_which_rows_were_deleted_is_refused(tree, log, kind, accepts):
    """Its files alone, as deltalake 1.6.6 and pyiceberg 0.12.0 leave them, bring deleted pages back, others twice."""
    tree(f"in/table/{log}", "in/table/data/a.parquet", "in/table/metadata/notes.jsonl")
    with pytest.raises(
        InputError, match=f"in/table is {kind} table, whose files hold rows that were deleted or replaced"
    ):
        find("in", accepts=accepts)
    (Path("in/table") / log).unlink()
    if "metadata" not in log:
        (Path("in/table") / log).parent.rmdir()
    assert "in/table/data/a.parquet" in find("in", accepts=accepts)
