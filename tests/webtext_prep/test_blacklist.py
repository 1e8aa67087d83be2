"""`webtext blacklist`: what it keeps, what it drops and why, and in which order."""

import csv
import gzip
import io
import json
import os
import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from webtext_prep.cli import main
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.shards import read_documents
from webtext_prep.documents.formats import compression
from webtext_prep.stages import blacklist
from webtext_prep.stages.blacklist import Blacklist, blocked_extension, read_rules
from webtext_prep.urls.urls import host_of


def run(capsys, *arguments: object) -> dict:
    assert main(["blacklist", *map(str, arguments), "--workers", "1", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def kept(folder: Path) -> list[str]:
    return [row.url for shard in sorted(folder.glob("part-*")) for row in read_documents(shard)]


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://example.org/story", None),
        ("https://example.org/story.html?file=paper.pdf", None),
        ("https://example.org/page#chapter.pdf", None),
        ("http://foo.app/page", None),
        ("http://foo.zip/page", None),
        ("http://my.ai/page", None),
        ("http://example.org/archive.7z", "blocked_extension"),
        ("http://example.org/logo.ai", "blocked_extension"),
        ("http://example.org/PAPER.PDF", "blocked_extension"),
        ("http://example.org/paper.pdf?download=1", "blocked_extension"),
        ("http://example.org/a%2Epdf", "blocked_extension"),
        ("http://example.org/code.tar.gz", "blocked_extension"),
        ("https://www.youtube.com/watch?v=1", "blocked_domain"),
        ("https://m.youtube.co.uk/watch", "blocked_domain"),
        ("https://news.x.com/a", "blocked_domain"),
        ("https://x.org/a", None),
        ("https://notyoutube.com/a", None),
        ("https://youtube.example.org/a", None),
        ("ftp://example.org/a", "malformed"),
        ("http://", "malformed"),
        ("http://[broken", "malformed"),
        ("http://example.org:port/", "malformed"),
        ("http://exa mple.org/", "malformed"),
        ("not a url", "malformed"),
        ("http://example.org/" + "a" * 3000, "too_long"),
        ("http://127.0.0.1:8000/page", None),
        ("http://[::1]/page", None),
        ("http://bücher.example/straße", None),
    ],
)
def test_each_rule_looks_at_its_own_part_of_the_url(url, reason):
    """Pitfall 6: `.7z` and `.ai` are blocked, hosts under `.app` and `.zip` are not: only the path has extensions."""
    assert Blacklist().judge(url) == reason


def test_the_shipped_lists_are_at_least_as_long_as_the_originals():
    domains = read_rules("", "blocked_domains.txt")
    extensions = read_rules("", "blocked_extensions.txt")
    assert len(domains) >= 111
    assert len(extensions) >= 60
    assert {"7z", "ai", "pdf", "jpg"} <= extensions
    assert not {"html", "htm", "php", "com"} & extensions


def test_a_file_extension_needs_a_dot_and_a_name():
    assert blocked_extension("/zip", frozenset({"zip"})) is None
    assert blocked_extension("/dir.zip/page", frozenset({"zip"})) is None


def test_own_lists_replace_the_shipped_ones(tmp_path, capsys):
    urls = write(tmp_path / "urls.txt", "http://a.org/x.html", "http://youtube.com/1", "http://b.org/x.pdf")
    domains = write(tmp_path / "domains.txt", "# mine", "a.org")
    extensions = write(tmp_path / "extensions.txt", ".nothing")
    arguments = ("--blocked-domains", domains, "--blocked-extensions", extensions)
    summary = run(capsys, "--input", urls, "--output", tmp_path / "out", *arguments)
    assert summary["dropped"] == {"blocked_domain": 1}
    assert kept(tmp_path / "out") == ["http://youtube.com/1", "http://b.org/x.pdf"]


def test_a_changed_list_of_rules_is_applied_anew(tmp_path, capsys):
    urls = write(tmp_path / "urls.txt", "http://a.org/1", "http://b.org/1")
    arguments = ("--input", urls, "--output", tmp_path / "out", "--blocked-domains", tmp_path / "domains.txt")
    write(tmp_path / "domains.txt", "c.org")
    assert run(capsys, *arguments)["out"] == 2
    write(tmp_path / "domains.txt", "c.org", "a.org")
    assert run(capsys, *arguments)["dropped"] == {"blocked_domain": 1}


def test_output_keeps_the_order_of_the_input(tmp_path, capsys):
    """Pitfall 6: the order of the output changed from run to run."""
    lines = [f"http://host{number * 7 % 13}.org/{number}" for number in range(200)]
    urls = write(tmp_path / "urls.txt", *lines)
    run(capsys, "--input", urls, "--output", tmp_path / "one", "--shards", 1)
    assert kept(tmp_path / "one") == lines
    run(capsys, "--input", urls, "--output", tmp_path / "many", "--shards", 5)
    for shard in (tmp_path / "many").glob("part-*"):
        rows = [row.url for row in read_documents(shard)]
        assert rows == [line for line in lines if line in set(rows)]


def test_one_host_is_always_in_one_shard(tmp_path, capsys):
    urls = write(tmp_path / "urls.txt", *(f"http://h{n % 20}.org:{8000 + n}/{n}" for n in range(400)))
    run(capsys, "--input", urls, "--output", tmp_path / "out", "--shards", 4)
    shards = [{host_of(row.url) for row in read_documents(shard)} for shard in (tmp_path / "out").glob("part-*")]
    assert sum(map(len, shards)) == len(set.union(*shards)) == 20
    assert all(shards)


def test_a_host_in_another_script_and_in_punycode_is_one(tmp_path, capsys):
    """`münchen.de` and `xn--mnchen-3ya.de` were two hosts: pages came twice, and a blocked site by its other name."""
    urls = write(
        tmp_path / "urls.txt",
        "http://münchen.org/a",
        "http://xn--mnchen-3ya.org/a",
        "http://XN--MNCHEN-3YA.org/b",
        "http://bücher.org/",
        "http://xn--bcher-kva.org/",
        "http://xn--caf-dma.org/",
    )
    sites = write(tmp_path / "sites.txt", "xn--bcher-kva.org", "café")
    run(capsys, "--input", urls, "--output", tmp_path / "out", "--shards", 1, "--blocked-domains", sites)
    assert kept(tmp_path / "out") == ["http://münchen.org/a", "http://XN--MNCHEN-3YA.org/b"]


def test_duplicates_are_found_past_fragments_ports_and_capitals(tmp_path, capsys):
    first = write(
        tmp_path / "a.txt",
        "http://Example.org",
        "http://example.org/#top",
        "https://example.org/",
        "http://example.org:8080/",
        "http://example.org/A",
    )
    second = write(tmp_path / "b.txt", "HTTP://example.org:80/", "https://example.org:443/", "http://example.org/a")
    summary = run(capsys, "--input", first, second, "--output", tmp_path / "out", "--shards", 3)
    assert summary["dropped"] == {"duplicate": 3}
    assert summary["in"] == summary["out"] + sum(summary["dropped"].values()) == 8


@pytest.mark.parametrize("content", [b"", b"\n\n# only a comment\n"])
def test_no_urls_is_an_error_not_an_empty_success(tmp_path, capsys, content):
    """Pitfall 5: no input wrote an empty output and said done."""
    (tmp_path / "urls.txt").write_bytes(content)
    assert main(["blacklist", "--input", str(tmp_path / "urls.txt"), "--output", str(tmp_path / "out")]) == 2
    assert "no URLs in the input" in capsys.readouterr().err


def test_lines_that_are_not_urls_are_counted(tmp_path, capsys):
    (tmp_path / "urls.txt").write_bytes(b'\x00\x01\nhttp://a.org/1\r\n{"url": 5}\n{"url": "http://a.org/2"}\n')
    summary = run(capsys, "--input", tmp_path / "urls.txt", "--output", tmp_path / "out")
    assert summary["dropped"] == {"malformed": 2}
    assert kept(tmp_path / "out") == ["http://a.org/1", "http://a.org/2"]


def test_bytes_that_are_not_utf8_have_a_reason_of_their_own(tmp_path, capsys):
    """Such bytes were replaced, and a URL that nobody gave was kept."""
    (tmp_path / "urls.txt").write_bytes("http://a.org/é\n".encode() + b"http://a.org/\xe9\n\xff\xff\n")
    summary = run(capsys, "--input", tmp_path / "urls.txt", "--output", tmp_path / "out")
    assert summary["dropped"] == {"not_utf8": 2}
    assert kept(tmp_path / "out") == ["http://a.org/é"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_a_list_is_read_in_the_encoding_that_it_declares(tmp_path, capsys, encoding):
    """A byte order mark lost the first URL of a list; a list in UTF-16 lost all of them."""
    (tmp_path / "urls.txt").write_bytes("http://a.org/ä\r\nhttp://b.org/\r\n".encode(encoding))
    (tmp_path / "domains.txt").write_bytes("b.org\n".encode(encoding))
    domains = ("--blocked-domains", tmp_path / "domains.txt")
    summary = run(capsys, "--input", tmp_path / "urls.txt", "--output", tmp_path / "out", *domains)
    assert kept(tmp_path / "out") == ["http://a.org/ä"]
    assert summary["dropped"] == {"blocked_domain": 1}


def test_a_table_with_a_column_of_urls_is_a_list(tmp_path, capsys):
    """The header and all columns of a .csv list were taken for URLs."""
    (tmp_path / "a.csv").write_text('title,URL,score\n"A, or\nB",http://a.org/1,7\n"x"y,,\n,"http://a.org/2,3",\n')
    (tmp_path / "b.tsv").write_text("http://b.org/1\t5\n# comment\nhttp://b.org/2\n")
    (tmp_path / "c.csv").write_text("http://c.org/1,2\nhttp://c.org/3\n")
    summary = run(capsys, "--input", tmp_path, "--output", tmp_path / "out")
    urls = ["http://a.org/1", "http://a.org/2,3", "http://b.org/1", "http://b.org/2"]
    assert kept(tmp_path / "out") == [*urls, "http://c.org/1,2", "http://c.org/3"]
    assert summary["dropped"] == {"malformed": 1}
    (row, *_) = read_documents(tmp_path / "out" / "part-00000.jsonl.zst")
    assert row.metadata == {"title": "A, or\nB", "score": "7"}


def test_columns_that_only_the_folders_of_a_list_tell_are_metadata(tmp_path, capsys):
    """`merge` took them from the folders, a list of the same layout lost them."""
    rows = [{"url": f"http://{name}.org/{name}", "language": name} for name in ("en", "de")]
    pq.write_to_dataset(pa.Table.from_pylist(rows), tmp_path / "table", partition_cols=["language"])
    (tmp_path / "table/language=sv").mkdir()
    write(tmp_path / "table/language=sv/a.csv", "url,language", "http://a.org/1,its own", "http://a.org/2,")
    write(tmp_path / "table/language=sv/b.txt", "http://b.org/1", '{"url": "http://b.org/2", "n": 1}')
    run(capsys, "--input", tmp_path / "table", "--output", tmp_path / "of=out")
    (shard,) = (tmp_path / "of=out").glob("part-*")
    found = {row.url: row.metadata for row in read_documents(shard)}
    assert {url: row.pop("language") for url, row in found.items()} == {
        **{row["url"]: row["language"] for row in rows},
        "http://a.org/1": "its own",
        **dict.fromkeys(("http://a.org/2", "http://b.org/1", "http://b.org/2"), "sv"),
    }
    assert [row for row in found.values() if row] == [{"n": 1}]
    run(capsys, "--input", tmp_path / "of=out", "--output", tmp_path / "again")
    assert [row.metadata.get("of") for row in read_documents(tmp_path / "again" / shard.name)] == [None] * len(found)


def test_columns_of_one_name_in_a_list_are_told_apart(tmp_path, capsys):
    """The last of them won: of two columns `url` the second was taken, and the first lost."""
    (tmp_path / "a.csv").write_text("url,score,URL,,score\nhttp://a.org/1,7,http://b.org/2,x,8\n")
    run(capsys, "--input", tmp_path, "--output", tmp_path / "out")
    (row,) = read_documents(tmp_path / "out" / "part-00000.jsonl.zst")
    assert row == Document("http://a.org/1", "", {"score": "7", "url_3": "http://b.org/2", "score_5": "8"})


def test_rules_are_loaded_once_in_a_process_and_do_not_travel_with_tasks(tmp_path):
    """200,000 rules made 4.9 MB and half a second of every task."""
    domains = write(tmp_path / "domains.txt", *(f"{number}.org" for number in range(10_000)))
    stage = Blacklist(blocked_domains=str(domains))
    assert len(stage.rules[0]) == 10_000
    sent = pickle.dumps(stage)
    assert len(sent) < 1000
    assert pickle.loads(sent).rules[0] is stage.rules[0]
    write(domains, "a.org")
    os.utime(domains, ns=(1, 1))
    assert pickle.loads(sent).rules[0] == {"a.org"}


def test_what_a_list_knows_of_a_url_travels_with_it(tmp_path, capsys):
    line = json.dumps({"url": "http://a.org/1", "score": 7, "title": "T"})
    run(capsys, "--input", write(tmp_path / "urls.jsonl", line), "--output", tmp_path / "out")
    (row,) = read_documents(tmp_path / "out" / "part-00000.jsonl.zst")
    assert row.metadata == {"score": 7, "title": "T"}


def test_each_dropped_url_has_a_receipt_with_the_rule_that_it_meets(tmp_path, capsys):
    urls = write(tmp_path / "urls.txt", "http://a.org/1", "http://a.org/2.pdf")
    run(capsys, "--input", urls, "--output", tmp_path / "out")
    (row,) = read_documents(tmp_path / "out" / "dropped" / "part-00000.jsonl.zst")
    assert (row.url, row.metadata) == ("http://a.org/2.pdf", {"reason": "blocked_extension", "rule": "pdf"})


def many_urls(path: Path) -> Path:
    """Plain URLs, others, and rows of JSON; some repeated."""
    plain = [f"http://h{n % 23}.org/{n % 170}" for n in range(600)]
    others = [f"http://b\u00fccher{n % 9}.de:{n % 3}/{n % 40}" for n in range(200)]
    rows = [json.dumps({"url": f"http://h{n % 23}.org/{n}", "score": n}) for n in range(200)]
    lines = [*plain, *others, *rows]
    return write(path, *(lines[n * 7 % len(lines)] for n in range(len(lines) - 1)))


@pytest.fixture
def small_tasks(monkeypatch):
    """Lists of some kilobytes are large ones."""
    monkeypatch.setattr(blacklist, "BYTES_PER_TASK", 2000)
    monkeypatch.setattr(blacklist, "BYTES_PER_STREAM", 500)
    monkeypatch.setattr(blacklist, "ROWS_PER_TASK", 99)
    monkeypatch.setattr(blacklist, "RUN_BYTES", 1500)
    monkeypatch.setattr(blacklist, "BLOCK_BYTES", 300)
    monkeypatch.setattr(compression, "CHUNK_BYTES", 700)


@pytest.mark.parametrize("kind", ["plain", "gz", "utf-16", "mark"])
def test_a_large_list_is_many_tasks_and_gives_the_same_shards(tmp_path, capsys, contents, request, kind):
    """One list was one task, however large."""
    urls = many_urls(tmp_path / "urls.txt")
    options = ("--shards", 3)
    run(capsys, "--input", urls, "--output", tmp_path / "whole", *options)
    request.getfixturevalue("small_tasks")
    (tmp_path / "in").mkdir()
    given = tmp_path / "in" / ("urls.txt.gz" if kind == "gz" else "urls.txt")
    encode = {"gz": gzip.compress, "utf-16": lambda data: data.decode().encode("utf-16"), "plain": bytes}
    given.write_bytes(encode.get(kind, lambda data: b"\xef\xbb\xbf" + data)(urls.read_bytes()))
    run(capsys, "--input", given, "--output", tmp_path / "parts", *options)
    assert len(list((tmp_path / "parts/.state/markers/split").iterdir())) > 10
    assert contents(tmp_path / "whole") == contents(tmp_path / "parts")


def url_table(path: Path) -> Path:
    """A table of URLs of the kind that the name says, with notes of several lines, and rows that are none."""
    name = path.name.removesuffix(".gz")
    rows = [{"note": f"note {n}", "url": f"http://h{n % 20}.org/{n % 170}"} for n in range(700)]
    if name.endswith("parquet"):
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=90)
        return path
    found = io.StringIO()
    table = csv.DictWriter(found, ["note", "url"], delimiter="\t" if "tsv" in name else ",", lineterminator="\n")
    if name.startswith("headless"):
        table = csv.DictWriter(found, ["url", "note"], delimiter="\t", lineterminator="\n")
    elif not name.startswith("list"):
        table.writeheader()
    for number, row in enumerate(rows):
        if name.startswith("list"):
            found.write(f"{row['url']}?a,b\n")
            continue
        table.writerow({**row, "note": 'with "quotes"\nand\n\nlines' if number % 3 else row["note"]})
        if number % 50 == 7:
            found.write('"closed" and more\n\n')
    data = found.getvalue().encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


TABLES = ["a.csv.gz", "headless.tsv", "list.csv", "a.parquet"]
TABLES += [pytest.param(name, marks=pytest.mark.exhaustive) for name in ("a.csv", "a.tsv", "list.csv.gz")]


@pytest.mark.parametrize("name", TABLES)
def test_a_large_table_is_many_tasks_and_gives_the_same_shards(tmp_path, capsys, contents, request, name):
    (tmp_path / "kind=large").mkdir()
    given = url_table(tmp_path / "kind=large" / name)
    options = ("--input", given, "--shards", 3)
    summary = run(capsys, *options, "--output", tmp_path / "whole")
    assert summary["dropped"]["duplicate"] > 100
    assert ("malformed" in summary["dropped"]) == (name in ("a.csv", "a.csv.gz", "headless.tsv"))
    request.getfixturevalue("small_tasks")
    run(capsys, *options, "--output", tmp_path / "parts")
    assert len(list((tmp_path / "parts/.state/markers/split").iterdir())) > 6
    assert contents(tmp_path / "whole") == contents(tmp_path / "parts")


@pytest.mark.parametrize(("urls", "code"), [(0, 1), (8, 0), (19, 0)])
def test_a_text_in_place_of_a_list_is_noticed(webtext, tmp_path, urls, code):
    """Prose was answered with the advice to check the input, and prose among URLs dropped without a word."""
    lines = ["This is a line of prose."] * 2 + [f"http://example{number}.org/" for number in range(urls)]
    (tmp_path / "list.txt").write_text("\n".join(lines))
    found = webtext("blacklist", tmp_path / "list.txt", "--output", tmp_path / "out", "--workers", 1)
    assert found.code == code
    is_noticed = len(lines) < 20  # a few bad lines are in every list
    assert (
        "these are not URLs; give lists with one on each line (a table with tabs as .tsv)" in found.err
    ) == is_noticed


CRAWL = '"Address","Content Type","Canonical Link Element 1"\n'
EXPORTS = {
    "commas.csv": "link,score\nhttp://a.org/1,7\nhttp://a.org/2,14\n",
    "semicolons.csv": "\ufeffTitel;Seite\nA, B;http://a.org/1\nC;http://a.org/2\n",
    "bars.csv": "link|score\nhttp://a.org/1|7\nhttp://a.org/2|14\n",
    "excel.csv": "sep=;\r\nlink;score\r\nhttp://a.org/1;7\r\nhttp://a.org/2;14\r\n",
    "tabs.csv": "Title, and more\tPage\nA\thttp://a.org/1\nB\thttp://a.org/2\n",
    "tabs.tsv": "score\tlink\n7\thttp://a.org/1\n8\thttp://a.org/2\n",
    "crawl.csv": CRAWL + '"http://a.org/1","text/html","http://b.org/"\n"http://a.org/2","text/html","http://b.org/"\n',
    "no_header.csv": "1,http://a.org/1\n2,http://a.org/2\n",
    "quotes.csv": '"http://a.org/1","7"\n"http://a.org/2","8"\n',
    "titles.csv": "http://a.org/1,A title\nhttp://a.org/2,Another\n",
    "html.txt": "http://a.org/1\nhttp://a.org/2\n",
}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("name", EXPORTS)
def test_the_column_whose_cells_are_urls_is_the_list(tmp_path, capsys, name, encoding):
    """Of `link,score` each line was a URL, `http://a.org/1,7`, without a word."""
    (tmp_path / name).write_text(EXPORTS[name], encoding=encoding)
    summary = run(capsys, "--input", tmp_path / name, "--output", tmp_path / "out")
    assert kept(tmp_path / "out") == ["http://a.org/1", "http://a.org/2"]
    assert summary["dropped"] == {}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("from,to\nhttp://a.org/1,http://b.org/1\n", "has several columns of URLs, from, to: call the right one url."),
        ("name,score\na,7\nb,8\n", "has no column url, but name, score, and none of them holds URLs"),
    ],
)
def test_a_table_without_a_plain_column_of_urls_is_refused(webtext, tmp_path, table, message):
    (tmp_path / "a.csv").write_text(table)
    done = webtext("blacklist", "--input", tmp_path / "a.csv", "--output", tmp_path / "out", "--workers", 1)
    assert (done.code, message in done.err) == (2, True)


def test_numbers_behind_the_urls_of_a_table_without_a_header_are_none_of_them(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("https://a.org/1,5\nhttps://a.org/2,6\n")
    run(capsys, "--input", tmp_path / "a.csv", "--output", tmp_path / "out")
    assert kept(tmp_path / "out") == ["https://a.org/1", "https://a.org/2"]
    (tmp_path / "b.csv").write_text("https://a.org/a,1,b\nhttps://a.org/2,6\n")
    run(capsys, "--input", tmp_path / "b.csv", "--output", tmp_path / "lines")
    assert kept(tmp_path / "lines") == ["https://a.org/a,1,b", "https://a.org/2,6"]


def test_an_ampersand_copied_out_of_html_is_one(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("http://a.org/?a=1&amp;b=2\n")
    run(capsys, "--input", tmp_path / "a.txt", "--output", tmp_path / "out")
    assert kept(tmp_path / "out") == ["http://a.org/?a=1&b=2"]
