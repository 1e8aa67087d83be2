"""User names and passwords in URLs reach no document, no outcome, no record and no message."""

import json
from pathlib import Path
from urllib.parse import quote

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from command_kit import hide_credentials
from webtext_prep.crawl.http.redirects import next_url
from webtext_prep.documents.document import Document, decode_document
from webtext_prep.documents.folders.shards import read_documents, write_documents
from webtext_prep.stages.blacklist import Blacklist
from webtext_prep.urls.urls import clean_metadata, host_of, without_any_credentials, without_credentials

SECRET = "hunter2"
WITH = f"user:{SECRET}@"
TEXT = "A sentence that is long enough to be a document, and another one to make sure of it. " * 20

ODD_LINES = [
    f"http://user:{SECRET}/x@a.org/",
    f"http://user:{SECRET}#x@a.org/",
    f"http://user:a?{SECRET}@a.org/p@q",
    f"http://user:{SECRET}%40a.org/",
    f"http://user:{SECRET}\uff20a.org/",
    f'"http://{WITH}a.org/"',
    f"<http://{WITH}a.org/>",
    f"- http://{WITH}a.org/",
    f"{WITH}a.org/page",
    f"http://a b:{SECRET}@c d",
    f'{{"url": "http://{WITH}a.org/"',
    f'{{"link": "http://{WITH}a.org/"}}',
    f"ftp://{WITH}a.org/",
    f"http:{WITH}[",
]


def secrets_in(folder: Path) -> list[str]:
    """The files below a folder that hold the secret, compressed or not."""
    found = []
    for path in folder.rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        if path.name.endswith(".zst"):
            data = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
        if SECRET.encode() in data or SECRET in path.name:
            found.append(path.name)
    return found


@pytest.mark.parametrize("line", ODD_LINES)
def test_what_is_no_web_address_keeps_no_credentials_and_stays_none(line):
    found = without_any_credentials(line)
    assert SECRET not in found
    assert without_any_credentials(found) == found
    if Blacklist().judge(line) == "malformed" and not line.startswith("http://a b"):
        assert Blacklist().judge(found) == "malformed"


@pytest.mark.parametrize(
    "url",
    [
        "http://a.org/~a@b?c:d@e#f:g@h",
        "http://a.org:80/x:y@z",
        "http://[::1]/a:b@c",
        "http://[::1]:80/a@b",
        "https://medium.com/@someone/a:b",
        "http://web.archive.org/web/2010/http://b.org/a@b",
    ],
)
def test_what_only_looks_like_credentials_stays(url):
    assert host_of(url)
    assert without_any_credentials(url) == without_credentials(url) == url


@pytest.mark.parametrize("name", ["mid:abc@example.org", "id:5", "file:a%40b/c:3", "urn:x:y@z"])
def test_names_of_documents_that_are_no_web_addresses_stay(name):
    assert without_credentials(name) == name


@given(st.text("htp:/@%[]#?\\ a.\uff20\n", max_size=30))
def test_a_web_address_has_no_user_and_loses_nothing_else(text):
    found = without_any_credentials("http:" + text)
    assert without_any_credentials(found) == found
    if Blacklist().judge(found) is None and "(hidden)" not in found:
        assert "@" not in found.partition("//")[2].partition("/")[0].partition("?")[0].partition("#")[0]


def test_a_line_of_colons_takes_linear_time():
    for sign in (":", ":@", "@:", "/", "http:", ":1"):
        line = "http://" + sign * 200_000
        assert len(without_any_credentials(line)) <= len(line) + 9
        clean_metadata({"a": line})
        hide_credentials(line)


def test_values_that_are_urls_are_cleaned_at_any_depth():
    metadata = {
        "link": f"https://{WITH}a.org/x",
        "list": [f"ftp://{WITH}b.org", {"deep": f"  postgres://{WITH}c/d"}],
        "by": "user@example.com",
        "quote": "http: the protocol @ work",
        "path": "http://a.org/@me",
        "n": 5,
    }
    assert clean_metadata(metadata) == {
        "link": "https://a.org/x",
        "list": ["ftp://b.org", {"deep": "  postgres://c/d"}],
        "by": "user@example.com",
        "quote": "http: the protocol @ work",
        "path": "http://a.org/@me",
        "n": 5,
    }
    assert decode_document(json.dumps({"url": f"http://{WITH}a.org/", "source": f"http://{WITH}a.org/"}).encode()) == (
        Document("http://a.org/", "", {"source": "http://a.org/"})
    )


def test_blacklist_leaves_no_credentials_in_any_file(tmp_path, webtext):
    rows = [json.dumps({"url": f"http://a.org/{n}", "source": f"http://{WITH}b.org/"}) for n in range(3)]
    plain = [f"http://{WITH}a.org/{name}" for name in ("1", "2.pdf", "1", "@x")]
    (tmp_path / "a.txt").write_text("\n".join([*ODD_LINES, *rows, *plain]) + "\n")
    (tmp_path / "b.csv").write_text(f"url,via\nhttp://{WITH}b.org/,http://{WITH}c.org/\n,\n{WITH}d,x\n")
    result = webtext("blacklist", "--input", tmp_path, "--output", tmp_path / "out", "--json")
    assert result.json["dropped"]["malformed"] > 5
    assert SECRET not in result.out + result.err
    assert secrets_in(tmp_path / "out") == []


def test_merge_leaves_no_credentials_in_any_file(tmp_path, webtext):
    source = tmp_path / "in"
    source.mkdir()
    (source / f"{quote(f'http://{WITH}a.org/1', safe='')}.txt").write_text(TEXT)
    (source / f"{quote(f'http://{WITH}a.org/2', safe='')}.txt").write_bytes(b"\xff\xfe\x00\xd8")
    (source / f"{quote(f'ftp://{WITH}a.org/7', safe='')}.txt").write_text(TEXT)
    (source / "page.txt").write_text(TEXT)
    (source / "page.json").write_text(json.dumps({"url": f"http://{WITH}a.org/3", "via": f"http://{WITH}b.org/"}))
    rows = [{"url": f"http://{WITH}a.org/4", "text": TEXT, "via": [f"http://{WITH}b.org/"]}, {"url": f"http://{WITH}x"}]
    rows += [rows[0], {"url": f"http://user:{SECRET}/x@a.org/", "text": TEXT}]
    (source / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (source / "rows.csv").write_text(
        f'url,text,via\nhttp://{WITH}a.org/5,"{TEXT}",http://{WITH}c.org/\nhttp://{WITH}y,\n'
    )
    with write_documents(source / "rows.parquet") as writer:
        writer.write(Document(f"http://{WITH}a.org/6", TEXT, {"via": f"http://{WITH}b.org/"}))
    arguments = ("--input", source, "--output", tmp_path / "out", "--allow-unreadable", "--json")
    result = webtext("merge", *arguments)
    assert result.json["dropped"]["unreadable"] >= 2
    assert SECRET not in result.out + result.err
    assert secrets_in(tmp_path / "out") == []
    urls = [document.url for shard in (tmp_path / "out").glob("part-*") for document in read_documents(shard)]
    assert sorted(urls) == [
        "(hidden)@a.org/",
        "file:ftp%253A%252F%252Fa.org%252F7.txt",
        *(f"http://a.org/{number}" for number in range(1, 7) if number != 2),
    ]


@pytest.mark.parametrize("format", ["jsonl.zst", "parquet"])
def test_documents_given_to_a_later_stage_lose_their_credentials(tmp_path, webtext, format):
    (tmp_path / "in").mkdir()
    with write_documents(tmp_path / "in" / f"part-00000.{format}") as writer:
        for number in range(3):
            writer.write(Document(f"http://{WITH}a.org/{number}", TEXT, {"via": f"http://{WITH}b.org/"}))
    result = webtext("dedup", "--input", tmp_path / "in", "--output", tmp_path / "out", "--json")
    assert result.json["out"] == 1
    assert SECRET not in result.out + result.err
    assert secrets_in(tmp_path / "out") == []


locations = st.sampled_from(["http://", "https:", "//", "\\\\", "/", "http:\\\\", "ftp://", "http:/", "HTTP://", ""])


@given(
    locations,
    st.sampled_from([WITH, f"user:{SECRET}%40", f":{SECRET}@", f"{SECRET}@"]),
    st.sampled_from(["", "b.org", "b.org:80/c@d", "[::1]"]),
)
def test_where_a_redirect_leads_is_without_credentials(start, user, rest):
    target = next_url("http://a.org/x", f"{start}{user}{rest}") or ""
    # With one slash or none it is a path of the same server.
    authority = target.partition("//")[2].partition("/")[0]
    assert SECRET not in authority


@pytest.mark.parametrize("debug", [[], ["--debug"]])
def test_credentials_of_a_storage_are_in_no_message(tmp_path, webtext, debug):
    place = f"ftp://{WITH}127.0.0.1:1/folder"
    for arguments in (
        ["clean", "--input", place, "--output", tmp_path / "out"],
        ["clean", "--input", tmp_path, "--output", place],
        ["inspect", place],
    ):
        result = webtext(*arguments, *debug)
        assert result.code != 0
        assert SECRET not in result.out + result.err


def test_messages_name_urls_without_credentials():
    assert (
        hide_credentials(f"can't read s3://{WITH}b/c (via http://{WITH}proxy:80).")
        == "can't read s3://b/c (via http://proxy:80)."
    )
    assert hide_credentials(f"http%3a%2F%2F{quote(WITH)}a%2Fb%40c") == "http%3a%2F%2Fa%2Fb%40c"
    assert hide_credentials("a@b.org, http://a.org/@b") == "a@b.org, http://a.org/@b"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"--wayback-address {WITH}a.org is no web address.", "--wayback-address a.org is no web address."),
        (f"--wayback-address https://user:x/{SECRET}@a.org is", "--wayback-address https://a.org is"),
        (f"--host '{WITH}a.org' is", "--host 'a.org' is"),
        (f"//{WITH}a.org/b", "//a.org/b"),
        (f"https:user:{SECRET}@a.org", "a.org"),
        (f"https://a.org/b?X-Amz-Credential={SECRET}&X-Amz-Signature={SECRET}&c=1",
         "https://a.org/b?X-Amz-Credential=(hidden)&X-Amz-Signature=(hidden)&c=1"),
        (f"az://b/c?sv=1&sig={SECRET}: denied", "az://b/c?sv=1&sig=(hidden): denied"),
        (f"https://a.org/?access_token={SECRET}#d", "https://a.org/?access_token=(hidden)#d"),
        ("http://a.org:80/x@y, 12:30 a@b.org", "http://a.org:80/x@y, 12:30 a@b.org"),
        ("http://[::1]:80/a@b and /w/a:b/c@d", "http://[::1]:80/a@b and /w/a:b/c@d"),
        ("http://a.org/?page=2&tokens=many words", "http://a.org/?page=2&tokens=(hidden) words"),
    ],
)  # fmt: skip
def test_messages_show_no_more_of_an_address_than_they_should(text, shown):
    """A host without a protocol, a password with a slash, and signed URLs were shown whole."""
    assert hide_credentials(text) == shown
