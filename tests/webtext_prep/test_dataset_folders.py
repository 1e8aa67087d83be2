"""`webtext merge` on datasets as others lay them out: pushed to a hub, saved to disk, C4, OSCAR, RedPajama, Dolma."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from offline_datasets import datasets

from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.raw_files import choose_splits, file_names, splits_of, without_descriptions
from webtext_prep.documents.records.arrow import ArrowRecords
from webtext_prep.documents.records.base import Keys, SourceFile, Unreadable
from webtext_prep.errors import InputError

KEYS = Keys(("text",), ("url", "meta.url"))
WIKITEXT = [{"text": ""}, {"text": " = Robert = \n"}, {"text": " Robert is an actor. \n"}]


@pytest.fixture
def merge(webtext, read_shards, tmp_path) -> Callable[..., tuple[dict, dict[str, Document]]]:
    """`merge(folder, "--split", "train")`: the summary, and the documents by URL."""

    def run(folder: Path, *arguments: object) -> tuple[dict, dict[str, Document]]:
        output = tmp_path / "merged"
        summary = webtext("merge", "--input", folder, "--output", output, "--workers", 1, "--json", *arguments).json
        return summary, {document.url: document for document in read_shards(output)}

    return run


@pytest.fixture
def pushed(tmp_path) -> Path:
    """What `push_to_hub` makes: Parquet shards in `data/`, a card, and files that only the hub reads."""
    rows = [
        {"text": f"page {n}", "id": f"<urn:uuid:{n}>", "url": f"http://a{n}.org/x", "date": "2013-05-18T05:48:54Z"}
        for n in range(10)
    ]
    folder = tmp_path / "fineweb"
    (folder / "data").mkdir(parents=True)
    for number in range(3):
        shard = datasets.Dataset.from_list(rows[:9]).shard(3, number)
        shard.to_parquet(str(folder / f"data/train-{number:05}-of-00003.parquet"))
    datasets.Dataset.from_list(rows[9:]).to_parquet(str(folder / "data/test-00000-of-00001.parquet"))
    (folder / "README.md").write_text("---\nlanguage: en\n---\n# Dataset Card for FineWeb\n\nText.\n")
    (folder / ".gitattributes").write_text("*.parquet filter=lfs\n")
    (folder / "dataset_infos.json").write_text('{"default": {"splits": {"train": {"name": "train"}}}}')
    return folder


def test_the_card_of_a_pushed_dataset_is_no_document(pushed, merge):
    """A dataset's card became a document, and its dataset_infos.json an unreadable record."""
    summary, found = merge(pushed)
    assert (summary["in"], summary["out"]) == (9, 9)
    assert found["http://a0.org/x"].metadata == {"id": "<urn:uuid:0>", "date": "2013-05-18T05:48:54Z"}
    assert summary["problems"] == [
        "not read, since they describe a dataset: README.md, dataset_infos.json.",
        "splits read, with their files: train (3); not read: test (1); --split NAME chooses.",
    ]


def test_one_split_can_be_chosen(pushed, merge, webtext, tmp_path):
    summary, found = merge(pushed, "--split", "eval")
    assert (summary["in"], list(found)) == (1, ["http://a9.org/x"])
    assert summary["problems"][1] == "splits read, with their files: test (1); not read: train (3)."
    refused = webtext("merge", "--input", pushed, "--output", tmp_path / "none", "--split", "unsupervised")
    assert (refused.code, refused.sentence) == (
        2,
        "webtext: error: --split unsupervised: there is no such split in the input, but test, train.",
    )


def test_a_dataset_saved_to_disk_is_read(tmp_path, merge):
    """Folders of `save_to_disk` could not be read: their .json files were taken for records, their .arrow files not."""
    whole = datasets.Dataset.from_list(WIKITEXT)
    splits = datasets.DatasetDict(train=whole, test=whole.select([2]))
    splits.save_to_disk(str(tmp_path / "wikitext"), num_shards={"train": 2, "test": 1})
    summary, found = merge(tmp_path / "wikitext", "--split", "train", "test")
    assert (summary["in"], summary["dropped"], summary["notes"]) == (4, {"empty": 1}, {"named by file": 4})
    assert {url: document.text for url, document in found.items()} == {
        "file:train/data-00000-of-00002.arrow:2": " = Robert = \n",
        "file:train/data-00001-of-00002.arrow:1": " Robert is an actor. \n",
        "file:test/data-00000-of-00001.arrow:1": " Robert is an actor. \n",
    }
    assert summary["problems"] == [
        "not read, since they describe a dataset: dataset_dict.json, dataset_info.json, state.json.",
        "splits read, with their files: test (1), train (2).",
    ]


def saved_with_splits(folder: Path, *names: str) -> Path:
    splits = {name: datasets.Dataset.from_list([{"text": "t", "url": f"http://{name}.org/"}]) for name in names}
    datasets.DatasetDict(splits).save_to_disk(str(folder))
    return folder


def test_the_splits_that_a_model_is_tested_with_are_not_read_unless_they_are_named(tmp_path, merge):
    """Of a dataset with splits all were merged into the corpus, so that a model learned what it is tested with."""
    saved = saved_with_splits(tmp_path / "wikitext", "train", "validation", "test")
    summary, found = merge(saved)
    assert list(found) == ["http://train.org/"]
    assert summary["problems"][1] == (
        "splits read, with their files: train (1); not read: test (1), validation (1); --split NAME chooses."
    )
    _, found = merge(saved / "test", "--restart")
    assert list(found) == ["http://test.org/"]


def test_a_dataset_without_a_training_split_is_an_error_that_names_its_splits(tmp_path, webtext):
    saved = saved_with_splits(tmp_path / "wikitext", "validation", "test")
    refused = webtext("merge", "--input", saved, "--output", tmp_path / "none")
    assert (refused.code, refused.sentence) == (
        2,
        f"webtext: error: {saved} has no split train, but test, validation: choose with `webtext merge --split NAME`, "
        "or give the files of a split by name.",
    )


def test_a_stage_that_reads_documents_takes_the_training_split_too(pushed, webtext, read_shards, tmp_path):
    """Parquet files of a dataset that another stage than merge read itself were documents of all splits."""
    done = webtext("clean", "--input", pushed, "--output", tmp_path / "clean", "--min-tokens", 1, "--language", "any")
    assert len(read_shards(tmp_path / "clean")) == 9
    assert "not read, since the split train is: test (1); name its files to read another." in done.err
    test = pushed / "data/test-00000-of-00001.parquet"
    webtext("clean", "--input", test, "--output", tmp_path / "test", "--min-tokens", 1, "--language", "any")
    assert len(read_shards(tmp_path / "test")) == 1


def test_folders_and_files_that_are_given_by_name_are_all_read(tmp_path):
    (tmp_path / "data").mkdir()
    files = [tmp_path / "data" / name for name in ("train.jsonl", "test.jsonl")]
    assert choose_splits(files, [], (), [tmp_path]) == files[:1]
    assert choose_splits(files, [], ()) == files
    given = [tmp_path / "train", tmp_path / "test"]
    below = [folder / "a.jsonl" for folder in given]
    assert choose_splits(below, [], (), given) == below
    outputs = [folder / "part-00000.jsonl.zst" for folder in given]
    assert choose_splits(outputs, [], (), [tmp_path]) == outputs


def test_what_the_library_keeps_beside_a_saved_dataset_is_not_read(tmp_path, merge):
    saved = tmp_path / "saved"
    datasets.Dataset.from_list(WIKITEXT).save_to_disk(str(saved))
    loaded = datasets.load_from_disk(str(saved))
    loaded.map(lambda row: {"text": row["text"] + "!"})
    assert len(list(saved.glob("*.arrow"))) == 2, "the library has written its result beside the data"
    summary, _ = merge(saved)
    assert summary["in"] == 3


def test_urls_are_found_where_large_corpora_have_them(tmp_path, merge):
    """OSCAR, RedPajama and Dolma: their documents got made-up URLs though they had real ones."""
    oscar = {"content": "o", "warc_headers": {"warc-target-uri": "http://oscar.org/", "warc-date": "2022"}}
    dolma = {"text": "d", "metadata": {"url": "http://dolma.org/", "n": 1}}
    folder = tmp_path / "mixed"
    folder.mkdir()
    (folder / "oscar.jsonl").write_text(json.dumps(oscar))
    (folder / "dolma.json.gz").write_bytes(gzip.compress(json.dumps(dolma).encode()))
    meta = {"url": "http://pajama.org/", "source": "cc"}
    datasets.Dataset.from_list([{"text": "r", "meta": meta}]).to_parquet(str(folder / "struct.parquet"))
    in_text = json.dumps({**meta, "url": "http://json.org/"})
    datasets.Dataset.from_list([{"text": "j", "meta": in_text}]).to_parquet(str(folder / "string.parquet"))
    summary, found = merge(folder)
    assert {url: (document.text, document.metadata) for url, document in found.items()} == {
        "http://oscar.org/": ("o", {"warc_headers": {"warc-date": "2022"}}),
        "http://dolma.org/": ("d", {"metadata": {"n": 1}}),
        "http://pajama.org/": ("r", {"meta": {"source": "cc"}}),
        "http://json.org/": ("j", {"meta": {"source": "cc"}}),
    }
    assert summary["notes"] == {
        "URL from meta.url": 2,
        "URL from metadata.url": 1,
        "URL from warc_headers.warc-target-uri": 1,
        "text from content": 1,
    }


def test_text_inside_a_struct_is_found_and_the_error_names_its_key(tmp_path, merge, webtext):
    rows = [{"name": "N", "url": "http://w.org/", "article_body": {"wikitext": "w", "html": "<p>"}}]
    datasets.Dataset.from_list(rows).to_parquet(str(tmp_path / "wiki.parquet"))
    _, found = merge(tmp_path / "wiki.parquet", "--text-key", "article_body.wikitext")
    assert found["http://w.org/"].text == "w"
    failed = webtext("merge", "--input", tmp_path / "wiki.parquet", "--output", tmp_path / "none")
    assert "(but article_body.html, article_body.wikitext, name, url: name the right one" in failed.sentence


# Names


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("data/train-00000-of-00003.parquet", "train"),
        ("data/validation-00000-of-00001-0123456789abcdef.parquet", "validation"),
        ("data/unsupervised-00000-of-00001.parquet", "unsupervised"),
        ("en/c4-train.00000-of-01024.json.gz", "train"),
        ("multilingual/c4-af-validation.tfrecord-00000-of-00001.json.gz", "validation"),
        ("a/test.jsonl", "test"),
        ("a/dev.csv", "validation"),
        ("test/0000.parquet", "test"),
        ("CC-MAIN-2013-20/000_00000.parquet", "train"),
        ("a/test_results.csv", "train"),
        ("a/contest.csv", "train"),
        ("test/essay.txt", "train"),
    ],
)
def test_the_split_of_a_file_follows_from_its_name(name, split):
    assert list(splits_of([Path("/dataset") / name], [])) == [split]


def names(files: list[Path]) -> list[str]:
    return [str(file) for file in files]


def test_a_readme_is_a_text_among_texts_and_a_card_among_tables():
    texts = [Path("notes/README.md"), Path("notes/a.md"), Path("notes/b.csv")]
    tables = [Path("web/README.md"), Path("web/deep/data/a.parquet"), Path("web/top_domains.csv")]
    kept, left_out = without_descriptions([*texts, *tables])
    assert names(kept) == [*names(texts), "web/deep/data/a.parquet"]
    assert names(left_out) == ["web/README.md", "web/top_domains.csv"]
    assert without_descriptions([Path("README.md")]) == ([Path("README.md")], [])
    state = [Path("a/state.json"), Path("b/cache-0.arrow")]
    assert without_descriptions(state) == (state, []), "they mean something beside a dataset_info.json only"


# Arrow files


def arrow(path: Path, table: pa.Table, *, is_stream: bool) -> Path:
    new = pa.ipc.new_stream if is_stream else pa.ipc.new_file
    with path.open("wb") as file, new(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=300)
    return path


def records(path: Path) -> list[Document | Unreadable]:
    return [record.document for record in ArrowRecords().read(SourceFile(path, path.name), KEYS)]


def test_columns_that_only_the_folders_of_a_table_tell_are_metadata(tmp_path, merge):
    """Spark 4.3.0, DuckDB 2.0.1, Polars 2.1.0 and pyarrow 26.0.1 take them out of the files: they were lost."""
    languages = ["en", "de", None, "zh/Hant"]
    rows = [{"url": f"http://a.org/{n}", "text": f"text {n}", "language": name} for n, name in enumerate(languages)]
    pq.write_to_dataset(pa.Table.from_pylist(rows), tmp_path / "table", partition_cols=["language"])
    of_json = tmp_path / "table/language=sv/kind=a%20b/a.jsonl"
    of_json.parent.mkdir(parents=True)
    of_json.write_text('{"url": "http://a.org/4", "text": "text", "kind": "its own"}\n{"text": "of no URL"}\n')
    _, found = merge(tmp_path / "table")
    assert {document.metadata.get("language") for document in found.values()} == {*languages, "sv"}
    assert found["http://a.org/4"].metadata == {"kind": "its own", "language": "sv"}
    nameless = "file:language%3Dsv/kind%3Da%2520b/a.jsonl:2"
    assert found[nameless].metadata == {"language": "sv", "kind": "a b"}
    _, alone = merge(tmp_path / "table/language=sv", "--restart")
    assert alone[nameless] == found[nameless]


def test_folders_of_ones_own_with_an_equals_sign_are_no_columns(tmp_path, merge, webtext):
    runs = tmp_path / "seed=1"
    (runs / "texts").mkdir(parents=True)
    (runs / "texts/a.txt").write_text("A text.")
    webtext("merge", "--input", runs / "texts", "--output", runs / "of=merge", "--json")
    _, found = merge(runs / "of=merge")
    assert [document.metadata for document in found.values()] == [{}]
    assert file_names([runs / "texts/a.txt"]) == ["a.txt"]


@pytest.mark.parametrize("is_stream", [True, False])
def test_arrow_files_with_and_without_a_footer_are_read(tmp_path, is_stream):
    rows = [{"text": f"t{n}", "meta": {"url": f"http://a.org/{n}"}, "n": n} for n in range(1000)]
    found = records(arrow(tmp_path / "a.arrow", pa.Table.from_pylist(rows), is_stream=is_stream))
    assert found == [Document(f"http://a.org/{n}", f"t{n}", {"meta": {}, "n": n}) for n in range(1000)]


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_damaged_arrow_file_is_an_error_that_names_it(tmp_path, is_stream):
    path = arrow(tmp_path / "a.arrow", pa.table({"text": ["one" * 50] * 900}), is_stream=is_stream)
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"text", b""):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"a\.arrow is not a valid Arrow file"):
            records(path)


def test_offsets_that_lead_outside_of_an_arrow_file_are_unreadable_rows(tmp_path):
    """Arrow believes the offsets in a file: unchecked, a row of a damaged one is whatever lies in memory there."""
    path = arrow(tmp_path / "a.arrow", pa.table({"text": ["one", "two", "three"]}), is_stream=True)
    offsets = [b"".join(n.to_bytes(4, "little") for n in (0, 3, second, 11)) for second in (6, 1 << 30)]
    assert path.read_bytes().count(offsets[0]) == 1
    path.write_bytes(path.read_bytes().replace(*offsets))
    first, *others = records(path)
    assert first.text == "one"
    assert [str(other)[:24] for other in others] == ["a row that can't be read"] * 2
