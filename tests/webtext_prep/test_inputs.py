"""What may be given as input: a file, a folder, a glob, any mix of them; and what is never read."""

import io
import sys
from pathlib import Path

import pytest

from webtext_prep.documents.inputs import find_inputs, is_mergeable, is_url_list, spool_standard_input
from webtext_prep.documents.shards import is_document_shard
from webtext_prep.documents.stage_record import read_record
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
    return [str(path) for path in found]


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
    with pytest.raises(InputError, match="input and output are the same folder"):
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


# What a stage wrote


RECORD = '{"stage": "clean", "shards": {"part-00000.jsonl.zst": 3}}'


def test_a_link_that_leads_nowhere_is_named(tmp_path):
    (tmp_path / "lost.jsonl").symlink_to(tmp_path / "gone")
    with pytest.raises(InputError, match=r"lost\.jsonl is a link that leads nowhere"):
        find_inputs([str(tmp_path)], accepts=is_document_shard, kinds="document shards")


def test_of_a_finished_stage_only_the_shards_are_read(tree):
    tree("out/part-00000.jsonl.zst", "out/dropped/part-00000.jsonl.zst", "out/duplicates.jsonl.zst")
    tree("out/stage.json", content=RECORD)
    for given in ("out", "../" + Path.cwd().name + "/out"):
        assert [Path(found).name for found in find(given, accepts=is_mergeable)] == ["part-00000.jsonl.zst"]


def test_of_a_stage_inside_the_folder_too(tree):
    """Otherwise its dropped documents would come back, and its record would be taken for a document."""
    tree("work/out/part-00000.jsonl.zst", "work/out/dropped/part-00000.jsonl.zst", "work/extra.jsonl")
    tree("work/out/stage.json", content=RECORD)
    assert find("work", accepts=is_mergeable) == ["work/extra.jsonl", "work/out/part-00000.jsonl.zst"]
    assert find("work/out/*", accepts=is_mergeable) == ["work/out/part-00000.jsonl.zst"]


@pytest.mark.parametrize("given", ["work/out", "work", "work/*"])
def test_an_unfinished_stage_is_an_error(tree, given):
    tree("work/out/part-00000.jsonl.zst", "work/out/.state/job.json")
    with pytest.raises(InputError, match="work/out is not finished: run the stage that makes it once more"):
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
        ("empty", "no document shards in the folder empty"),
        ("data/a.txt", r"data/a\.txt is not one of the document shards read here, .* `webtext merge` first"),
        ("data/corpus.bin", "holds tokens already, look at it with `webtext inspect`"),
        ("data/page.pdf", "rename it, or convert it first"),
    ],
)
def test_an_input_without_documents_is_named(tree, given, sentence):
    tree("data/a.txt", "data/a.jsonl", "data/corpus.bin", "data/page.pdf")
    Path("empty").mkdir()
    with pytest.raises(InputError, match=sentence):
        find("data/a.jsonl", given)


def test_no_input_at_all_is_an_error():
    with pytest.raises(InputError, match="no input: give document shards with --input"):
        find()


@pytest.mark.parametrize(
    ("name", "accepted_by"),
    [
        ("part-00000.jsonl.zst", {is_document_shard, is_url_list, is_mergeable}),
        ("a.txt.gz", {is_url_list, is_mergeable}),
        ("a.json", {is_mergeable}),
        ("urls", {is_url_list}),
        ("urls.xz", {is_url_list}),
        ("a.html", set()),
        ("a.jsonl.zip", set()),
    ],
)
def test_what_is_read_by_its_name(name, accepted_by):
    kinds = {is_document_shard, is_url_list, is_mergeable}
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
