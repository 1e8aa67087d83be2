"""`webtext urls`: from dumps to one row a page, every submission accounted for, the same bytes however it is run."""

import bz2
import gzip
import json
import lzma
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard
from pages_on_loopback import serve_pages

from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.sampling import Sample
from webtext_prep.documents.folders.shards import read_documents
from webtext_prep.reddit.pages import page_key_by_rules
from webtext_prep.stages import urls

REAL = Path(__file__).parent / "submissions" / "RS_v2_2005-07.jsonl"


def row(url: str = "http://example.org/", **fields) -> dict:
    whole = {"url": url, "score": 5, "over_18": False, "is_self": False, "id": "", "title": "T", "subreddit": "news"}
    return {**whole, "created_utc": 1338508800, "num_comments": 0, **fields}


@pytest.fixture
def dump(tmp_path):
    """`dump([row, ...], name)` writes a dump and returns its path; a row may also be a line of bytes."""

    def write(rows, name: str = "RS_2012-06.jsonl") -> Path:
        lines = [entry if isinstance(entry, bytes) else json.dumps(entry).encode() for entry in rows]
        path = tmp_path / "dumps" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        return path

    return write


@pytest.fixture
def run(webtext, tmp_path, read_shards):
    """`run(input, flags...)`: the summary, and the rows of the list by their URLs."""

    def go(source, *flags, output="out"):
        summary = webtext("urls", "--input", source, "--output", tmp_path / output, "--workers", 1, "--json", *flags)
        return summary.json, {found.url: found.metadata for found in read_shards(tmp_path / output)}

    return go


def test_real_rows_become_pages_and_all_are_accounted_for(run):
    summary, found = run(REAL)
    rows = [json.loads(line) for line in REAL.read_bytes().splitlines()]
    low = sum(entry["score"] < 3 for entry in rows)
    assert summary["in"] == 24
    assert summary["dropped"] == {"low_score": low, "duplicate_url": 2}  # the third has a low score of its own
    assert summary["out"] == len(found) == 24 - low - 2
    assert found["http://db.uwaterloo.ca/~alopez-o/Coffee/caffaq.html#IsItTrueEsp"] == {
        "reddit_score": 7,
        "reddit_submissions": 2,
        "reddit_title": "Frequently Asked Questions about Caffeine",
        "reddit_subreddits": ["reddit.com"],
        "reddit_id": "950",
        "reddit_first_submitted": "2005-07-19T02:00:32Z",
    }
    escaped = [url for url in found if "VerizonNewsArticle" in url]
    assert len(escaped) == 1
    assert "?type=internetNews&storyid=2005-06" in escaped[0]
    assert (
        found["http://abcnews.go.com/Health/Sun/wireStory?id=781896"]["reddit_title"]
        == "Now, the Sun <Prevents> Skin Cancer?"
    )


def test_scores_can_be_summed_over_the_submissions_of_a_page(run, dump):
    rows = [row(score=2), row("https://www.example.org/#a", score=1), row("http://b.org/", score=2)]
    summary, found = run(dump(rows), "--sum-scores")
    assert found["http://example.org/"]["reddit_score"] == 3
    assert summary["dropped"] == {"duplicate_url": 1, "low_score": 1}


def test_nothing_that_counts_is_an_error_that_says_why(webtext, dump, tmp_path):
    result = webtext("urls", "--input", dump([row(score=2), row(is_self=True)]), "--output", tmp_path / "out")
    assert result.code == 1
    assert "none of the 2 submissions was kept (low_score 1, self_post 1)" in result.err


def test_a_submission_that_dumps_share_counts_once(run, dump, tmp_path):
    dump([row(id="a", score=4), row("http://b.org/", id="b")], "RS_2012-06.jsonl")
    dump([row(id="a", score=6), row(id="c", score=3)], "RS_v2_2012-06.jsonl")
    summary, found = run(tmp_path / "dumps")
    assert found["http://example.org/"]["reddit_score"] == 9
    assert summary["dropped"] == {"repeated_submission": 1, "duplicate_url": 1}


def test_links_into_reddit_are_left_to_the_blacklist(run, webtext, dump, tmp_path):
    inside = ["/r/news/comments/1/a/", "https://i.redd.it/a", "https://v.redd.it/a", "https://www.reddit.com/gallery/a"]
    summary, found = run(dump([row(url) for url in [*inside, "http://example.org/"]]))
    assert summary["out"] == 5
    assert "https://www.reddit.com/r/news/comments/1/a/" in found
    judged = webtext("blacklist", "--input", tmp_path / "out", "--output", tmp_path / "clean", "--json").json
    assert judged["dropped"] == {"blocked_domain": 4}


def test_subreddits_and_times_are_chosen(run, dump, tmp_path):
    (tmp_path / "mine.txt").write_text("Science\n")
    rows = [
        row("http://a.org/", subreddit="Science", created_utc=0),
        row("http://b.org/", subreddit="science", created_utc="1420070400"),
        row("http://c.org/", subreddit="news", created_utc=1420070399),
        row("http://d.org/", subreddit="pics", created_utc=1420070399),
    ]
    path, listed = dump(rows), str(tmp_path / "mine.txt")
    assert set(run(path, "--subreddits", listed, "r/NEWS", output="a")[1]) == {
        "http://a.org/",
        "http://b.org/",
        "http://c.org/",
    }
    assert set(run(path, "--exclude-subreddits", listed, "news", output="b")[1]) == {"http://d.org/"}
    summary, found = run(path, "--after", "2014", "--before", "2015-01", output="c")
    assert set(found) == {"http://c.org/", "http://d.org/"}
    assert summary["dropped"] == {"other_time": 2}


def test_a_changed_list_of_subreddits_is_applied_anew(run, dump, tmp_path):
    path, mine = dump([row("http://a.org/"), row("http://b.org/", subreddit="pics")]), tmp_path / "mine.txt"
    mine.write_text("news\n")
    assert set(run(path, "--subreddits", mine)[1]) == {"http://a.org/"}
    mine.write_text("news\npics\n")
    assert set(run(path, "--subreddits", mine)[1]) == {"http://a.org/", "http://b.org/"}


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--after", "yesterday"], "--after yesterday is not a date"),
        (["--after", "2016", "--before", "2015"], "--after 2016 is not before --before 2015"),
        (["--subreddits", "absent.txt"], "can't read absent.txt"),
    ],
)
def test_settings_that_make_no_sense_are_one_sentence(webtext, dump, tmp_path, flags, sentence):
    result = webtext("urls", "--input", dump([row()]), "--output", tmp_path / "out", *flags)
    assert result.code == 2
    assert sentence in result.sentence


# What can't be read


def test_damaged_rows_are_counted_and_named(run, dump):
    rows = [row(f"http://example.org/{number}") for number in range(30)]
    path = dump([*rows[:7], b'{"url": "http://example.org/', b"", *rows[7:]])
    summary, found = run(path)
    assert summary["dropped"] == {"unreadable": 1}
    assert len(found) == 30
    assert summary["problems"] == [f"{path}, line 8: not valid JSON."]


def test_a_file_of_something_else_is_an_error(webtext, run, dump, tmp_path):
    comments = [{"body": "c", "link_id": "t3_1", "score": 3, "subreddit": "news"}] * 5
    path = dump([*comments, row()], "RS_2012-06.jsonl")
    result = webtext("urls", "--input", path, "--output", tmp_path / "out")
    assert result.code == 2
    assert "5 of 6 rows could not be read: " in result.sentence
    assert "not a submission (its keys are body, link_id, score, subreddit)" in result.sentence
    assert not list((tmp_path / "out").glob("part-*"))
    assert run(path, "--allow-unreadable")[0]["out"] == 1


def test_comments_are_left_out_of_a_folder(run, dump, tmp_path):
    dump([row()], "RS_2012-06.jsonl")
    dump([{"body": "c"}], "RC_2012-06.jsonl")
    summary, _ = run(tmp_path / "dumps")
    assert summary["in"] == 1
    assert summary["problems"] == ["not read, by suffix: 1 .jsonl."]


def test_a_file_that_is_no_dump_by_its_name_is_refused(webtext, dump, tmp_path):
    for name in ("RC_2012-06.jsonl", "dump.csv"):
        result = webtext("urls", "--input", dump([row()], name), "--output", tmp_path / "out")
        assert result.code == 2
        assert "here dumps of Reddit submissions, not comments (RS_2015-01.zst" in result.sentence
        assert result.sentence.endswith("convert it to one of these first.")


COMPRESSED = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(window_log=28, enable_ldm=True)
    ).compress,
}


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_dumps_are_read_however_they_are_compressed(run, tmp_path, suffix):
    path = tmp_path / f"RS_2005-07{suffix}"
    path.write_bytes(COMPRESSED[suffix](REAL.read_bytes()))
    plain = shutil.copy(REAL, tmp_path / "RS_2005-07")
    packed = run(path, output="packed")
    assert packed[1] == run(plain, output="plain")[1]


# However it is run


@pytest.fixture
def many(dump, tmp_path) -> Path:
    """A folder of three dumps with some 3,000 rows of all kinds, many of them of the same pages."""
    source, fields = random.Random(1), [{}, {"score": 1}, {"is_self": True}, {"over_18": True}, {"url": None}]
    for month in range(3):
        rows: list[dict | bytes] = []
        for number in range(1000):
            where = source.choice(["http://", "https://www.", "http://m."]) + f"h{source.randrange(90)}.org"
            url = f"{where}/{source.randrange(9)}{source.choice(['', '#a', '?utm_source=x', '?id=2&a=1', '?a=1&id=2'])}"
            rows.append(
                row(url, id=f"{month}-{number}", created_utc=10**9 + number, subreddit=f"s{number % 7}")
                | {"score": source.randrange(9)}
                | (source.choice(fields) if source.random() < 0.3 else {})
            )
        rows[500] = b"{"
        dump(rows, f"RS_2012-{month + 1:02}.jsonl")
    return tmp_path / "dumps"


FLAGS = ("--shards", 4)


@pytest.fixture
def expected(webtext, contents, many, tmp_path) -> dict[str, bytes]:
    assert webtext("urls", "--input", many, "--output", tmp_path / "expected", "--workers", 1, *FLAGS).code == 0
    return contents(tmp_path / "expected")


def test_the_bytes_are_the_same_in_ranges(webtext, contents, many, expected, tmp_path, monkeypatch):
    """Ranges change by which line messages name a row, but no page."""
    monkeypatch.setattr(urls, "BYTES_PER_RANGE", 10_000)
    assert webtext("urls", "--input", many, "--output", tmp_path / "out", "--workers", 1, *FLAGS).code == 0
    found = contents(tmp_path / "out")
    assert {name: data for name, data in found.items() if name.startswith("part")} == {
        name: data for name, data in expected.items() if name.startswith("part")
    }


def test_every_submission_is_in_the_list_or_counted(read_shards, expected, tmp_path):
    record = json.loads((tmp_path / "expected" / "stage.json").read_bytes())
    assert record["in"] == 3000 == record["out"] + sum(record["dropped"].values())
    assert not (tmp_path / "expected" / "dropped").exists()
    listed = read_shards(tmp_path / "expected")
    assert len({found.metadata["reddit_id"] for found in listed}) == len(listed) == record["out"]
    twins = sum(found.metadata["reddit_submissions"] - 1 for found in listed)
    assert twins == record["dropped"]["duplicate_url"]


@pytest.mark.parametrize("sum_scores", [False, True])
def test_pages_are_what_a_plain_loop_over_all_rows_finds(run, many, sum_scores):
    rows = [
        json.loads(line) for path in sorted(many.iterdir()) for line in path.read_bytes().splitlines() if len(line) > 1
    ]
    pages: dict[str, list[dict]] = {}
    for entry in rows:
        if not entry["is_self"] and not entry["over_18"] and entry["url"] and (sum_scores or entry["score"] >= 3):
            pages.setdefault(page_key_by_rules(entry["url"]), []).append(entry)
    expected = {}
    for entries in pages.values():
        best = min(entries, key=lambda entry: (-entry["score"], entry["created_utc"], entry["id"]))
        if (score := sum(entry["score"] for entry in entries)) >= 3:
            expected[best["url"]] = score, len(entries), best["id"]
    _, found = run(many, *(["--sum-scores"] if sum_scores else []))
    names = ("reddit_score", "reddit_submissions", "reddit_id")
    assert {url: tuple(metadata[name] for name in names) for url, metadata in found.items()} == expected
    assert len(expected) > 400


def test_pages_do_not_depend_on_the_order_of_the_dumps(webtext, many, read_shards, expected, tmp_path):
    files = sorted(many.iterdir(), reverse=True)
    webtext("urls", "--input", *files, "--output", tmp_path / "out", "--workers", 1, *FLAGS)

    def pages(folder: Path) -> set[tuple[str, str]]:
        return {(found.url, json.dumps(found.metadata)) for found in read_shards(folder)}

    assert pages(tmp_path / "out") == pages(tmp_path / "expected")


def test_the_number_of_buckets_changes_no_page(webtext, many, read_shards, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(urls, "BYTES_PER_BUCKET", 10_000)
    webtext("urls", "--input", many, "--output", tmp_path / "out", "--workers", 1, *FLAGS)
    for number in range(4):
        name = f"part-{number:05}.jsonl.zst"
        one, other = (list(read_documents(tmp_path / folder / name)) for folder in ("out", "expected"))
        assert sorted(map(repr, one)) == sorted(map(repr, other))
        assert one != other  # there were several buckets


def test_a_compressed_dump_may_need_a_large_window():
    packed = Sample(size=10**10, text=10**11, written=10**10, documents=10**8)
    assert urls.Urls().needs(packed, workers=4).memory > 4 * 2 << 30
    assert urls.Urls().needs(replace(packed, size=10**11), workers=4).memory < 2 << 30


def test_a_small_dump_needs_no_large_window(run, webtext, tmp_path):
    run(REAL)
    estimate = json.loads((tmp_path / "out" / ".state" / "run.json").read_bytes())["estimate"]
    assert 0 < estimate["memory"] < 300 << 20
    assert estimate["documents"] == 24


# To the documents


@pytest.fixture
def site():
    """A web server on loopback where every path is a page."""

    def page(path):
        text = f"This is a sentence of page {path}, long enough for anybody to see that it is text. " * 9
        return (
            None
            if path == "/robots.txt"
            else f"<html><head><title>Page</title></head><body><p>{text}</p></body></html>"
        )

    with serve_pages(page) as address:
        yield address


def test_what_reddit_knows_of_a_page_reaches_its_document(webtext, dump, site, read_shards, tmp_path):
    rows = [
        row(f"{site}/a?utm_source=x", score=3, id="1", created_utc=1338508800),
        row(f"{site}/a", score=8, id="2", title="Best &amp; only", subreddit="science", created_utc=1338508900),
        row(f"{site}/b?c=1&amp;d=2", score=4, id="3"),
        row(f"{site}/c.pdf", id="4"),
    ]
    steps = {
        "urls": (dump(rows),),
        "blacklist": (tmp_path / "urls",),
        "download": (tmp_path / "blacklist", "--allow-private-addresses", "loopback", "--delay", 0),
        "merge": (tmp_path / "download",),
    }
    for stage, (source, *flags) in steps.items():
        result = webtext(stage, "--input", source, "--output", tmp_path / stage, "--workers", 1, *flags)
        assert result.code == 0, result.err
    found = {document.url: document for document in read_shards(tmp_path / "merge")}
    assert set(found) == {f"{site}/a", f"{site}/b?c=1&d=2"}
    document: Document = found[f"{site}/a"]
    assert "sentence of page /a" in document.text
    assert document.metadata["title"] == "Page"
    assert {name: value for name, value in document.metadata.items() if name.startswith("reddit_")} == {
        "reddit_score": 11,
        "reddit_submissions": 2,
        "reddit_title": "Best & only",
        "reddit_subreddits": ["science", "news"],
        "reddit_id": "2",
        "reddit_first_submitted": "2012-06-01T00:00:00Z",
    }
