"""`webtext export`: a dataset that `datasets.load_dataset` opens, whose card holds whatever the documents say."""

import csv
import datetime
import itertools
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import markdown_it
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from offline_datasets import datasets

from indexed_tokens import Tokenizer
from webtext_audit.export import columns as columns_module
from webtext_audit.export.columns import Column, Measures, choose_columns, kind_of, proper_domain
from webtext_audit.export.dataset_card import ExportedCorpus, card, domain_list, header, plain
from webtext_audit.stages.export import write_file
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.shards import write_documents
from webtext_prep.documents.folders.stage_record import trace
from webtext_prep.documents.formats.parquet import Parquet

FORMATS = ("parquet", "jsonl", "jsonl.gz", "jsonl.zst")


def page(number: int, **metadata: object) -> Document:
    """A page on one of three sites."""
    fixed = {"title": f"T {number}", "language": "en", "score": number, "fetched_at": "2024-01-02T03:04:05Z"}
    url = f"https://news.site{number % 3}.co.uk/{number}"
    return Document(url, f"Page {number} of a site. " * (number % 3 + 1), {**fixed, **metadata})


ODD = [
    page(100, subreddits=["a", "b"], ratio=0.5, nested={"deep": [1, {"a": None}]}, none=None),
    page(101, subreddits=[], ratio=2, score="many", title=None, metadata={"of": "another"}),
    page(102, subreddits=["c"], ratio=0.25, flag=True, fetched_at="yesterday", **{"strange key\n": 1}),
]


@pytest.fixture
def webtext(webtext) -> Callable[..., Any]:
    """In this process, unless a test says how many workers."""
    return lambda *arguments: webtext(*arguments, *([] if "--workers" in arguments else ["--workers", 1]))


@pytest.fixture
def corpus(write_shards) -> Path:
    return write_shards([[page(number) for number in range(25)], [], [page(number) for number in range(30, 45)], ODD])


@pytest.fixture
def load(tmp_path) -> Callable[[Path], "datasets.Dataset"]:
    """`load(folder)`: the dataset that others get."""
    return lambda folder: datasets.load_dataset(str(folder), split="train", cache_dir=str(tmp_path / "cache"))


def by_url(documents: list[Document]) -> dict[str, Document]:
    return {document.url: document for document in documents}


@pytest.mark.parametrize("form", FORMATS)
def test_an_export_is_a_dataset_with_typed_columns(corpus, tmp_path, webtext, load, form):
    output = tmp_path / "dataset"
    found = webtext("export", corpus, "--output", output, "--format", form, "--shard-bytes", 600, "--json").json
    assert (found["in"], found["out"], found["domains"]) == (43, 43, 3)
    names = sorted(path.name for path in (output / "data").iterdir())
    assert len(names) == found["files"] > 2
    assert names == [f"train-{number:05}-of-{len(names):05}.{form}" for number in range(len(names))]
    dataset = load(output)
    assert {name: str(feature) for name, feature in dataset.features.items()} == {
        "url": "Value('string')",
        "text": "Value('string')",
        "title": "Value('string')",
        "language": "Value('string')",
        "fetched_at": "Value('timestamp[s, tz=UTC]')",
        "flag": "Value('bool')",
        "ratio": "Value('float64')",
        "score": "Value('int64')",
        "subreddits": "List(Value('string'))",
        "metadata": "Value('string')",
    }
    rows = list(dataset)
    assert [row["url"] for row in rows[:25]] == [page(number).url for number in range(25)]
    assert rows[7]["score"] == 7
    assert rows[7]["fetched_at"] == datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    assert rows[7]["metadata"] is None
    assert rows[-3]["subreddits"] == ["a", "b"]
    assert json.loads(rows[-2]["metadata"]) == {"score": "many", "title": None, "metadata": {"of": "another"}}
    assert json.loads(rows[-1]["metadata"]) == {"fetched_at": "yesterday", "strange key\n": 1}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("is_published", [False, True])
def test_merge_gives_the_same_documents_back(corpus, tmp_path, webtext, read_shards, form, is_published):
    """Also from a copy without the record and the state, as others get it from a hub."""
    output = tmp_path / "dataset"
    assert webtext("export", corpus, "--output", output, "--format", form, "--shard-bytes", 600).code == 0
    if is_published:
        (output / "stage.json").unlink()
        shutil.rmtree(output / ".state")
    merged = webtext("merge", output, "--output", tmp_path / "merged", "--json").json
    assert merged["dropped"] == {}
    assert by_url(read_shards(tmp_path / "merged")) == by_url(read_shards(corpus))
    steps = [
        step["stage"] for step in json.loads((tmp_path / "merged/stage.json").read_bytes())["inputs"] if "stage" in step
    ]
    assert steps == ([] if is_published else ["export"])


def test_other_stages_read_an_export_and_its_lineage_is_known(corpus, tmp_path, webtext):
    assert webtext("export", corpus, "--output", tmp_path / "dataset").code == 0
    assert webtext("clean", tmp_path / "dataset", "--output", tmp_path / "clean", "--min-tokens", 1).code == 0
    step = trace(tmp_path / "clean")
    assert [before.place for before in step.inputs] == [tmp_path / "dataset"]
    assert step.input_files() == [tmp_path / "dataset/data/train-00000-of-00001.parquet"]
    (tmp_path / "dataset/data/train-00000-of-00001.parquet").unlink()
    assert "is missing" in webtext("clean", tmp_path / "dataset", "--output", tmp_path / "again").sentence


def test_the_same_corpus_gives_the_same_bytes(corpus, tmp_path, webtext, contents):
    for workers in (1, 2):
        arguments = ["--output", tmp_path / f"by-{workers}", "--workers", workers, "--shard-bytes", 600]
        assert webtext("export", corpus, *arguments).code == 0
    first, second = (contents(tmp_path / f"by-{workers}") for workers in (1, 2))
    assert first == second
    assert {"README.md", "top_domains.csv", "stage.json"} < set(first)


def test_files_of_an_earlier_run_do_not_stay(corpus, tmp_path, webtext):
    """A grown corpus has another number of files, which is part of each name."""
    arguments = ["export", corpus, "--output", tmp_path / "dataset", "--shard-bytes", 600]
    before = webtext(*arguments, "--json").json["files"]
    with write_documents(corpus / "part-00009.jsonl.zst") as writer:
        for number in range(200, 260):
            writer.write(page(number))
    after = webtext(*arguments, "--json").json["files"]
    assert after > before
    assert {path.name.split("-of-")[1] for path in (tmp_path / "dataset/data").iterdir()} == {f"{after:05}.parquet"}


def test_without_a_card_there_is_what_datasets_needs_and_nothing_is_encoded(
    corpus, tmp_path, webtext, load, monkeypatch
):
    monkeypatch.setattr(Tokenizer, "encode", None)
    arguments = ["--output", tmp_path / "dataset", "--no-card", "--format", "jsonl", "--json"]
    facts = webtext("export", corpus, *arguments).json
    assert "tokens" not in facts
    text = (tmp_path / "dataset/README.md").read_text()
    assert text.startswith("---\n")
    assert text.endswith("\n---\n")
    assert not (tmp_path / "dataset/top_domains.csv").exists()
    assert len(load(tmp_path / "dataset")) == 43


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--top-domains", "0%"], "--top-domains 0%: give a share such as 10%, or a number such as 1000."),
        (["--top-domains", "all"], "--top-domains all: give a share such as 10%"),
        (["--license", " "], "--license is empty"),
        (["--shard-bytes", "0"], "--shard-bytes is 0: it should be at least 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(corpus, tmp_path, webtext, flags, problem):
    refused = webtext("export", corpus, "--output", tmp_path / "dataset", *flags)
    assert refused.code == 2
    assert problem in refused.sentence


# Columns


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("a", "string"),
        ("2024-02-29T23:59:59Z", "time"),
        ("2023-02-29T23:59:59Z", "string"),
        ("2024-02-29T23:59:59+00:00", "string"),
        ("2024-02-29T24:00:00Z", "string"),
        (True, "bool"),
        (1 << 62, "int"),
        (1 << 63, ""),
        (0.5, "float"),
        (float("nan"), ""),
        (["a", "2024-02-29T23:59:59Z"], "list of string"),
        ([1, 2], "list of int"),
        ([1, 0.5], ""),
        ([[1]], ""),
        ([True], ""),
        ({"a": 1}, ""),
        (None, ""),
    ],
)
def test_each_value_has_a_kind_or_none(value, kind):
    assert kind_of(value) == kind


def test_rare_keys_become_no_columns():
    kinds = {"rare": {"int": 9}, "usual": {"int": 10}, "title": {"string": 10}, "odd": {"": 500}, "empty": {}}
    assert choose_columns(kinds, 1000) == [Column("title", "string"), Column("usual", "int")]
    assert len(choose_columns({f"key{number}": {"int": 1} for number in range(500)}, 1)) == 64


KEYS = st.sampled_from(["title", "domain", "n", "when", "tags", "metadata", "a key", "\u202e"])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 64), 1 << 64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=5)
    | st.sampled_from(["2024-01-02T03:04:05Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", 0, 1, "{}"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
).filter(lambda value: "\x00" not in repr(value))


@given(st.lists(st.dictionaries(KEYS, VALUES, max_size=5), min_size=1, max_size=6))
def test_whatever_the_metadata_its_documents_come_back(tmp_path_factory, rows):
    documents = [Document(f"http://a.org/{number}", "t", metadata) for number, metadata in enumerate(rows)]
    measures = Measures()
    for document in documents:
        measures.add(document, 1, 1)
    columns = choose_columns(measures.kinds, len(documents))
    place = tmp_path_factory.mktemp("columns") / "a.parquet"
    with write_file(place, columns, "parquet") as write:
        for document in documents:
            write(document)
    # As JSON has it: times are texts there.
    found = [json.loads(json.dumps(document.metadata, default=_as_text)) for document in Parquet().read(place)]
    assert found == rows


def _as_text(value: datetime.datetime) -> str:
    return value.isoformat().replace("+00:00", "Z")


# Domains


@pytest.mark.parametrize(
    ("url", "domain"),
    [
        ("https://news.Example.co.uk:8080/a", "example.co.uk"),
        ("http://192.0.2.7/", "192.0.2.7"),
        ("http://[2001:db8::1]/", ""),
        ("https://bücher.example.de/", "example.de"),
        ("file:notes/a.txt:3", ""),
        ("http://localhost/", ""),
        ("http://=cmd()/", ""),
        ("http://-a.org/", ""),
        ("no url", ""),
    ],
)
def test_the_domain_of_a_url_is_the_registered_name(url, domain):
    assert proper_domain(url) == domain


@pytest.mark.parametrize(
    ("text", "domains", "listed"),
    [
        ("10%", 30, 3),
        ("10%", 31, 4),
        ("10%", 1, 1),
        ("5%", 20, 1),
        ("100%", 7, 7),
        ("1000", 7, 7),
        ("5", 7, 5),
        ("10%", 0, 0),
    ],
)
def test_how_many_domains_are_listed(text, domains, listed):
    assert columns_module.listed(text, domains) == listed


def test_the_list_of_domains_goes_by_bytes(corpus, tmp_path, webtext):
    flags = ["--top-domains", "2", "--license", "cc0-1.0"]
    assert webtext("export", corpus, "--output", tmp_path / "dataset", *flags).code == 0
    with (tmp_path / "dataset/top_domains.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    texts = {2: [page(n).text for n in [*range(25), *range(30, 45), 100, 101, 102] if n % 3 == 2]}[2]
    assert [row["domain"] for row in rows] == ["site2.co.uk", "site1.co.uk"]
    assert int(rows[0]["bytes"]) == sum(map(len, texts))
    assert int(rows[0]["documents"]) == len(texts)
    assert int(rows[0]["gpt2_tokens"]) == sum(len(Tokenizer.gpt2().encode(text)) for text in texts)
    text = (tmp_path / "dataset/README.md").read_text()
    assert "lists the largest 2 of 3 domains" in text
    assert r"states the licence cc0-1.0" in text


# The card


def rendered(text: str) -> str:
    """The body of a card as HTML."""
    return markdown_it.MarkdownIt("gfm-like", {"linkify": False}).render(text.partition("\n---\n")[2])


def test_the_card_tells_the_whole_funnel(tmp_path, webtext, write_shards):
    long = "The same page with many words of its own, again and again. " * 20
    texts = [long, long, "short", *(f"{number}@a.org has a page. {long[number:]}" for number in range(3))]
    documents = [Document(f"http://a{n}.org/", text, {"title": f"T{n}"}) for n, text in enumerate(texts)]
    raw = write_shards([documents])
    assert webtext("clean", raw, "--output", tmp_path / "clean", "--min-tokens", 20, "--mask", "email").code == 0
    assert webtext("dedup", tmp_path / "clean", "--output", tmp_path / "unique", "--stop-share", 1).code == 0
    assert webtext("export", tmp_path / "unique", "--output", tmp_path / "dataset").code == 0
    text = (tmp_path / "dataset/README.md").read_text()
    assert r"| clean | 6 | 5 | too\_short 1 |" in text
    assert re.search(r"\| dedup \| 5 \| \d \| duplicate \d \|", text)
    assert re.search(r"Near-duplicates were removed: \d of 5 documents.*similarity 0\.8; shingle word\\:5", text)
    assert "**The licences of the documents are unknown.**" in text
    assert "3 e-mail addresses were replaced by placeholders" in text
    assert "| en | " in text
    assert str(tmp_path) not in text
    assert "<table>" in rendered(text)
    header_of = yaml.safe_load(text.split("---\n")[1])
    assert header_of["language"] == ["en"]
    assert header_of["license"] == "unknown"
    assert header_of["size_categories"] == ["n<1K"]
    # What two outputs were made from in common counts once.
    assert webtext("dedup", tmp_path / "clean", "--output", tmp_path / "other", "--stop-share", 1).code == 0
    assert webtext("export", tmp_path / "unique", tmp_path / "other", "--output", tmp_path / "both").code == 0
    text = (tmp_path / "both/README.md").read_text()
    assert text.count("| clean | 6 |") == 1 and "3 e-mail addresses were replaced by placeholders" in text


HOSTILE = [
    "</td></table><script>alert(1)</script>",
    "| a | b |",
    "`code` ``` ~~~",
    "\n\n# heading\n\n---\n",
    "[click](javascript:alert(1)) ![x](http://evil.org/x.png) <http://evil.org>",
    "http://evil.org www.evil.org evil@evil.org",
    "$x$ *b* _i_ ~~s~~ &lt; \\",
    "\u202eevil\u2066\u0000\u2028",
    "'\": {}[]!& - ?",
    "a" * 5000,
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_text_in_the_card(text):
    measures = Measures()
    document = Document("http://`a|b`.org/", text, {"language": text, "title": text, text: text})
    measures.add(document, len(text), 1)
    measures.add(Document("http://a.org/", text, {"language": "zh-cn"}), 1, 1)
    step = {"stage": text, "in": 2, "out": 1, "dropped": {text: 1}, "settings": {text: text, "rules": [text]}}
    dedup = {**step, "stage": "dedup"}
    columns = choose_columns(measures.kinds, 2)
    found = ExportedCorpus(measures, columns, "data/train-*.parquet", 1, 1, text, "10%", [step, dedup], 3)
    page = card(found)
    loaded = yaml.safe_load(header(found).removeprefix("---\n").removesuffix("---\n"))
    assert loaded["license"] == text
    assert loaded["language"] == ["zh"]
    html = rendered(page)
    usual = rendered(
        card(
            ExportedCorpus(
                **{**vars(found), "license": "x", "steps": [_tame(step), {**_tame(dedup), "stage": "dedup"}]}
            )
        )
    )
    tags = [re.findall(r"<(/?\w+)", html) for html in (html, usual)]
    assert tags[0] == tags[1], "no tag more or less than with harmless names"
    assert len(list(csv.reader(domain_list(found).splitlines()))) == 2
    assert len(plain(text)) < 300


def _tame(step: dict) -> dict:
    return {**step, "stage": "a", "dropped": {"a": 1}, "settings": {"a": "a", "rules": ["a"]}}


def test_no_path_of_a_setting_is_published():
    settings_ = {"function": "/home/me/filters.py:keep", "against": ["s3://bucket/old", r"C:\data\x"], "agent": "a/0.1"}
    step = {"stage": "filter", "in": 1, "out": 1, "dropped": {}, "settings": settings_}
    measures = Measures(total=[1, 1, 1], languages={"": [1, 1, 1]}, domains={"": [1, 1, 1]})
    page = card(ExportedCorpus(measures, [], "data/*", 1, 1, "unknown", "10%", [step], 0))
    (line,) = [line for line in page.splitlines() if line.startswith("- filter")]
    assert line.replace("\\", "") == "- filter: function filters.py:keep; against old, x; agent a/0.1"
    assert "no web address | 1 | 1 | 1 | 100.0%" in page


def test_the_sizes_of_the_hub_are_met():
    for documents, size in ((999, "n<1K"), (1000, "1K<n<10K"), (10**11 - 1, "10B<n<100B"), (10**13, "n>1T")):
        measures = Measures(total=[documents, 1, 1])
        text = header(ExportedCorpus(measures, [], "data/*", 1, 1, "unknown", "10%", [], 0))
        assert yaml.safe_load(text.strip("-\n"))["size_categories"] == [size]


def test_measures_of_shards_add_up():
    documents = [page(number) for number in range(10)] + ODD
    whole, parts = Measures(), [Measures(), Measures()]
    for document, part in zip(documents, itertools.cycle(parts)):
        whole.add(document, 1, 2)
        part.add(document, 1, 2)
    parts[0].merge(parts[1])
    assert parts[0] == whole
    assert Measures(**json.loads(json.dumps(vars(whole)))) == whole


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_text_that_looks_like_a_date_stays_text_or_the_card_says_so(tmp_path, webtext, write_shards, load, form):
    """datasets 5.2.0 (pyarrow.json) guesses times in JSON lines, also with features that say string."""
    given = write_shards([[Document(f"http://a.org/{n}", "2020-01-01", {"date": "2020-01-02"}) for n in range(2)]])
    found = webtext("export", given, "--output", tmp_path / "out", "--format", form)
    row = load(tmp_path / "out")[0]
    is_kept = (row["text"], row["date"]) == ("2020-01-01", "2020-01-02")
    words = "takes text that looks like a date for a time"
    is_said = words in (tmp_path / "out" / "README.md").read_text() and words in found.out + found.err
    assert (is_kept, is_said) == (form == "parquet", form == "jsonl")
