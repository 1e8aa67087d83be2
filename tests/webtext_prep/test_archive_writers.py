"""Web archives as real tools write them: pages are read whole, everything else is counted by name."""

import base64
import collections
import gzip
import hashlib
import itertools
import struct
import zlib
from pathlib import Path

import pytest
import zstandard
from archives import answer, members, page, raw_record
from jobs import job_of
from outputs import documents_of, outcomes_of

from webtext_prep.crawl.archives.html_files import said_urls
from webtext_prep.crawl.archives.warc import ArchiveReader, FoundPage
from webtext_prep.crawl.http.media_types import content_type_of
from webtext_prep.documents.folders.inputs import find_inputs
from webtext_prep.stages.extract import Extract

FIXTURES = Path(__file__).parent / "web_archives"
BY_WGET = {
    "http://example.org/story": "ok", "http://example.org/again": "ok", "http://example.org/latin": "ok",
    "http://example.org/plain": "ok", "http://example.org/packed": "ok", "http://example.org/pieces": "ok",
    "http://example.org/gone": "http_404", "http://example.org/picture": "not_html",
    "metadata://gnu.org/software/wget/warc/wget_arguments.txt": "not_a_page",
    "metadata://gnu.org/software/wget/warc/wget.log": "not_a_page",
}  # fmt: skip
OF_WGET = ("wget.warc.gz", "bgzip.warc.gz", "zstd-long-28.warc.zst", "zstd-long-31.warc.zst", "warcio.warc.gz")


def extract(inputs, output, **more):
    return job_of(Extract(extractor="resiliparse", **more), inputs, output).run()


def pages_of(path):
    """What a reader finds in a file, and the same read in ranges."""
    reader = ArchiveReader(path, path.name, max_bytes=5_000_000, keep_truncated=False)
    whole = list(reader.pages())
    for every in (1, 3):
        ends = itertools.pairwise([None, *reader.entrances(every, lambda size: None), None])
        assert [entry for pair in ends for entry in reader.pages(*pair)] == whole
    return [entry for entry, _ in whole]


def outcomes_in(path):
    return {entry.url: str(entry.outcome) if isinstance(entry, FoundPage) else entry for entry in pages_of(path)}


def written(folder, data, name="a.warc"):
    (folder / name).write_bytes(data)
    return folder / name


# What real tools wrote


@pytest.mark.parametrize("name", OF_WGET)
def test_an_archive_of_wget_gives_its_pages_however_it_was_packed_again(tmp_path, name):
    path = FIXTURES / name
    assert outcomes_in(path) == BY_WGET
    summary = extract([path], tmp_path / "out")
    assert summary.tally.problems == []
    assert summary.tally.read == 10 == summary.tally.kept + summary.tally.dropped.total()
    texts = {document.url.rpartition("/")[2]: document.text for document in documents_of(tmp_path / "out")}
    assert texts.keys() == {"story", "again", "latin", "plain", "packed", "pieces"}
    assert all("read it knew when the boats would leave." in text for text in texts.values())
    assert all(texts[name].endswith("Größe.") for name in texts.keys() - {"plain"})


def test_the_password_in_wgets_own_records_is_nowhere_in_the_output(tmp_path):
    extract([FIXTURES / "wget.warc.gz"], tmp_path / "out")
    for file in (tmp_path / "out").rglob("*.zst"):
        assert b"s3cret-word" not in zstandard.ZstdDecompressor().stream_reader(file.read_bytes()).read()


@pytest.mark.parametrize(
    ("name", "outcomes"),
    [
        ("wget-again.warc.gz", {"ok": 1, "revisit": 1, "not_a_page": 2}),
        ("warcio-js.warc.gz", {"ok": 2, "revisit": 1, "not_a_page": 3}),
        ("pywb.warc.gz", {"ok": 1, "not_a_page": 1}),
    ],
)
def test_what_other_tools_wrote_ends_by_name(name, outcomes):
    found = collections.Counter(str(entry.outcome) for entry in pages_of(FIXTURES / name))
    assert found == collections.Counter(outcomes)


# Records that are no pages, as their tools' documentation has them


NO_PAGES = {
    "urn:text:http://a.org/1": ("resource", "text/plain"),  # Browsertrix Crawler: the text as the browser rendered it
    "urn:pageinfo:http://a.org/1": ("resource", "application/json"),
    "urn:thumbnail:http://a.org/1": ("resource", "image/jpeg"),
    "urn:X-wpull:log": ("resource", "text/plain"),  # wpull, grab-site
    "screenshot:http://a.org/1": ("resource", "image/jpeg"),  # brozzler
    "thumbnail:http://a.org/1": ("resource", "image/jpeg"),
    "metadata://gnu.org/software/wget/warc/wget.log": ("resource", "text/plain"),
    "file:///provenance-summary.html": ("resource", "text/html"),  # Scoop
    "dns:a.org": ("response", "text/dns"),  # Heritrix
    "whois://whois.iana.org/a.org": ("response", "application/http; msgtype=response"),
    "ftp://a.org/readme.txt": ("resource", "text/plain"),
    "http://a.org/of-no-known-type": ("annotation", "text/html"),
}
PACKINGS = {
    "plain": ("a.warc", b"".join),
    "gzip": ("a.warc.gz", lambda records: members(*records)),
    "one member": ("a.warc.gz", lambda records: gzip.compress(b"".join(records), mtime=0)),
    "zstandard": ("a.warc.zst", lambda records: b"".join(map(zstandard.compress, records))),
}


@pytest.mark.parametrize("packing", PACKINGS)
def test_records_that_are_no_pages_end_as_that_and_are_counted(tmp_path, packing):
    name, pack = PACKINGS[packing]
    records = [
        raw_record(n, answer(page()), WARC_Type=kind, WARC_Target_URI=url, Content_Type=said)
        for n, (url, (kind, said)) in enumerate(NO_PAGES.items())
    ]
    about = [
        raw_record(70 + n, b"software: x\r\n", WARC_Type=kind, Content_Type="application/warc-fields")
        for n, kind in enumerate(("warcinfo", "metadata", "request", "continuation"))
    ]
    path = written(tmp_path, pack([*about, *records, raw_record(90, answer(page()))]), name)
    assert outcomes_in(path) == {**dict.fromkeys(NO_PAGES, "not_a_page"), "http://a.org/90": "ok"}
    summary = extract([path], tmp_path / "out")
    assert (summary.tally.read, summary.tally.dropped) == (len(NO_PAGES) + 1, {"not_a_page": len(NO_PAGES)})


def test_the_rendered_copy_of_a_page_whose_owner_says_no_is_not_read(tmp_path):
    refusing = answer(page(), "Content-Type: text/html", "X-Robots-Tag: noai")
    copy = raw_record(
        2,
        b"The same words.",
        WARC_Type="resource",
        WARC_Target_URI="urn:text:http://a.org/1",
        Content_Type="text/plain",
    )
    path = written(tmp_path, b"".join([raw_record(1, refusing), copy, raw_record(3, answer(page()))]))
    summary = extract([path], tmp_path / "out")
    assert summary.tally.dropped == {"opted_out": 1, "not_a_page": 1}
    assert [document.url for document in documents_of(tmp_path / "out")] == ["http://a.org/3"]


@pytest.mark.parametrize(
    ("url", "outcome"),
    [
        ("HTTPS://A.org/x", "ok"),
        ("<http://a.org/x>", "ok"),
        ("a.org/x", "malformed_url"),
        ("http:///x", "malformed_url"),
        ("", "malformed_url"),
        ("about:blank", "not_a_page"),
        ("data:text/html,x", "not_a_page"),
        ("blob:http://a.org/1", "not_a_page"),
    ],
)
def test_only_addresses_of_the_web_are_pages(tmp_path, url, outcome):
    path = written(tmp_path, raw_record(1, answer(page()), WARC_Target_URI=url))
    assert [str(entry.outcome) for entry in pages_of(path)] == [outcome]


# Spellings


def respelled(record, change=lambda name: name, ending=b"\r\n"):
    """A record with other names of its fields and other line ends."""
    head, block = record.split(b"\r\n\r\n", 1)
    first, *lines = head.split(b"\r\n")
    fields = [change(name) + b":" + value for name, _, value in (line.partition(b":") for line in lines)]
    return ending.join([first, *fields, b"", b""]) + block.removesuffix(b"\r\n\r\n") + 2 * ending


SPELLINGS = {
    "usual": respelled,
    "Warc-Type": lambda record: respelled(record, bytes.title),
    "warc-type": lambda record: respelled(record, bytes.lower),
    "WARC-TYPE": lambda record: respelled(record, bytes.upper),
    "lines of LF": lambda record: respelled(record, ending=b"\n"),
    "small, lines of LF": lambda record: respelled(record, bytes.lower, b"\n"),
    "header alone of LF": lambda record: header_of_lf(record),
    "content-type": lambda record: record.replace(b"Content-Type: app", b"content-type: app", 1),
    "content-length": lambda record: record.replace(b"Content-Length", b"content-length", 1),
    "0.18": lambda record: record.replace(b"WARC/1.0", b"WARC/0.18", 1),
    "folded": lambda record: record.replace(b"WARC-Target-URI: ", b"WARC-Target-URI:\r\n ", 1),
    "value in capitals": lambda record: record.replace(b"WARC-Type: response", b"WARC-Type: RESPONSE", 1),
}


def header_of_lf(record):
    """A record with lines of LF around a block that is as it was sent."""
    header, block = record.removesuffix(b"\r\n\r\n").split(b"\r\n\r\n", 1)
    return header.replace(b"\r\n", b"\n") + b"\n\n" + block + b"\n\n"


def bgzf(data, size):
    """Blocks of BGZF (SAM/BAM specification, 4.1): gzip members with their length in an extra field, the last empty."""

    def block(piece):
        packer = zlib.compressobj(wbits=-15)
        body = packer.compress(piece) + packer.flush()
        head = b"\x1f\x8b\x08\x04" + bytes(6) + b"\x06\0BC\x02\0" + struct.pack("<H", len(body) + 25)
        return head.replace(bytes(6), b"\0\0\0\0\0\xff", 1) + body + struct.pack("<II", zlib.crc32(piece), len(piece))

    return b"".join(block(data[at : at + size]) for at in range(0, len(data), size)) + block(b"")


ALL_PACKINGS = {
    **PACKINGS,
    "bgzf": ("a.warc.gz", lambda records: bgzf(b"".join(records), 700)),
    "two bgzf": ("a.warc.gz", lambda records: bgzf(b"".join(records[:3]), 1 << 16) + bgzf(b"".join(records[3:]), 900)),
    "empty members": ("a.warc.gz", lambda records: b"".join(members(record, b"") for record in records)),
    "frames that are skipped": (
        "a.warc.zst",
        lambda records: b"".join(b"\x50\x2a\x4d\x18\x03\0\0\0abc" + zstandard.compress(record) for record in records),
    ),
}


@pytest.mark.parametrize("packing", ALL_PACKINGS)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_an_archive_is_read_in_every_spelling_and_packing(tmp_path, spelling, packing):
    name, pack = ALL_PACKINGS[packing]
    bodies = {f"http://a.org/{n}": page(f"Page {n} is here. " * (1 + 40 * (n % 2))).encode() for n in range(5)}
    records = [raw_record(n, answer(body)) for n, body in enumerate(bodies.values())]
    found = pages_of(written(tmp_path, pack([SPELLINGS[spelling](record) for record in records]), name))
    assert {entry.url: entry.page.body for entry in found} == bodies
    half = [SPELLINGS[spelling](record) if n > 2 else record for n, record in enumerate(records)]
    for mixed in (half, half[::-1]):
        found = pages_of(written(tmp_path, pack(mixed), name))
        assert {entry.url: entry.page.body for entry in found} == bodies and len(found) == 5


def test_frames_with_a_dictionary_are_read(tmp_path):
    """As ArchiveTeam's archives, by the IIPC's "Use of Zstandard compression in WARC files" 1.0."""
    records = [raw_record(n, answer(page(f"Page {n} is here. "))) for n in range(200)]
    dictionary = zstandard.train_dictionary(4_000, records)
    packer = zstandard.ZstdCompressor(dict_data=dictionary)
    for content in (dictionary.as_bytes(), zstandard.compress(dictionary.as_bytes())):
        frame = b"\x5d\x2a\x4d\x18" + len(content).to_bytes(4, "little") + content
        path = written(tmp_path, frame + b"".join(map(packer.compress, records[:4])), "a.warc.zst")
        assert outcomes_in(path) == {f"http://a.org/{n}": "ok" for n in range(4)}


# Digests


DIGESTS = {
    "hex": lambda digest: digest.hex(),
    "HEX": lambda digest: digest.hex().upper(),
    "Base32": lambda digest: base64.b32encode(digest).decode(),
    "Base32 without padding": lambda digest: base64.b32encode(digest).decode().rstrip("="),
    "base32": lambda digest: base64.b32encode(digest).decode().lower().rstrip("="),
    "Base64": lambda digest: base64.b64encode(digest).decode(),
    "Base64 of URLs": lambda digest: base64.urlsafe_b64encode(digest).decode().rstrip("="),
}


@pytest.mark.parametrize("spelling", DIGESTS)
@pytest.mark.parametrize("algorithm", ["md5", "sha1", "sha256", "sha512", "SHA-256", "sha384"])
def test_a_right_digest_is_right_in_every_spelling_and_a_wrong_one_is_damage(tmp_path, algorithm, spelling):
    block = answer(page())
    name = algorithm.lower().replace("-", "")
    digests = [hashlib.new(name, data).digest() for data in (block, b"another block")]
    records = [
        raw_record(n, block, WARC_Block_Digest=f"{algorithm}:{DIGESTS[spelling](d)}") for n, d in enumerate(digests)
    ]
    wrong = "damaged" if name != "sha384" else "ok"  # of an algorithm that nobody uses nothing is known
    assert list(outcomes_in(written(tmp_path, members(*records), "a.warc.gz")).values()) == ["ok", wrong]


@pytest.mark.parametrize("digest", [b"Du\xe9\x01U", b"sha1:", b"sha1:????", b"sha1:ABCD", b"blake3:0011", b"-"])
def test_what_is_no_digest_says_nothing(tmp_path, digest):
    """wget 1.21.3 with --no-warc-digests and no compression writes bytes that are none."""
    record = raw_record(1, answer(page()), WARC_Block_Digest="DIGEST").replace(b"DIGEST", digest)
    assert list(outcomes_in(written(tmp_path, record)).values()) == ["ok"]


# Answers


@pytest.mark.parametrize(
    ("lines", "known"),
    [
        (["text/html; charset=utf-8", "text/plain; charset=latin1"], ("text/plain", "latin1")),
        (["application/pdf", "text/html; charset=utf-8"], ("text/html", "utf-8")),
        (["text/html; charset=koi8-r", "text/html"], ("text/html", "koi8-r")),
        (["text/plain; charset=koi8-r", "text/html"], ("text/html", None)),
        (["text/html; charset=koi8-r", "*/*"], ("text/html", "koi8-r")),
        (["text/html; charset=koi8-r", "nonsense"], ("text/html", "koi8-r")),
        (['text/html; a="x,text/plain"; charset=koi8-r'], ("text/html", "koi8-r")),
        (["text/html;charset=utf-8, text/html;charset=koi8-r"], ("text/html", "koi8-r")),
    ],
)
def test_the_last_of_several_content_types_holds(tmp_path, lines, known):
    """By the standard Fetch ("extract a MIME type"), as Chromium 156 does."""
    assert content_type_of(",".join(lines)) == known
    block = answer(page(), *(f"Content-Type: {line}" for line in lines))
    (found,) = pages_of(written(tmp_path, raw_record(1, block)))
    assert (found.page.is_html, found.page.charset) == (known[0] == "text/html", known[1])


XHTML = (
    '<?xml version="1.0"?>\n<!-- x --><!DOCTYPE html [<!ENTITY a "b">]>\n<html xmlns="http://www.w3.org/1999/xhtml">'
)


@pytest.mark.parametrize("kind", ["application/xml", "text/xml; charset=utf-8"])
@pytest.mark.parametrize(
    ("start", "outcome"),
    [
        (XHTML, "ok"),
        ("<html lang='en' xmlns='http://www.w3.org/1999/xhtml'>", "ok"),
        ("<html>", "not_html"),
        ("<rss><channel>", "not_html"),
        ('<feed xmlns="http://www.w3.org/2005/Atom"><html xmlns="http://www.w3.org/1999/xhtml">', "not_html"),
    ],
)
def test_xml_is_a_page_if_its_root_is_that_of_xhtml(tmp_path, kind, start, outcome):
    """So it is for browsers: elements without XHTML's namespace are unknown ones."""
    record = raw_record(1, answer(page().replace("<html>", start), f"Content-Type: {kind}"))
    assert list(outcomes_in(written(tmp_path, record)).values()) == [outcome]


@pytest.mark.parametrize(
    "said", ["gzip,UTF-8", "UTF-8, gzip", "gzip\r\nContent-Encoding: none", "GZIP", "x-gzip;q=1,gzip"]
)
def test_names_that_are_no_codings_are_passed_over(tmp_path, said):
    packed = gzip.compress(page().encode(), mtime=0)
    blocks = [
        answer("", "Content-Type: text/html", f"Content-Encoding: {said}") + body for body in (packed, page().encode())
    ]
    found = pages_of(written(tmp_path, b"".join(raw_record(n, block) for n, block in enumerate(blocks))))
    assert [entry.page.body for entry in found] == [page().encode()] * 2


def test_what_lies_in_an_unknown_coding_is_no_page(tmp_path):
    block = answer("", "Content-Type: text/html", "Content-Encoding: compress") + b"\x1f\x9d\x90\0\x01\x02" * 50
    assert list(outcomes_in(written(tmp_path, raw_record(1, block))).values()) == ["malformed_response"]


def test_a_conversion_is_what_it_says(tmp_path):
    """WET files hold text; other conversions, such as the pictures of a film, are no text for that."""
    records = [
        raw_record(n, b"Words of a text.", WARC_Type="conversion", Content_Type=kind)
        for n, kind in enumerate(("text/plain", "image/jpeg"))
    ]
    assert list(outcomes_in(written(tmp_path, members(*records), "a.warc.wet.gz")).values()) == ["ok", "not_html"]


# Files of HTML


@pytest.mark.parametrize(
    ("saved", "url"),
    [
        ("<!-- saved from url=(0020)https://b.org/saved -->", "https://b.org/saved"),
        (
            "<html><!--\n Page saved with SingleFile \n url: https://b.org/a?b=c \n saved date: Fri\n-->",
            "https://b.org/a?b=c",
        ),
        ("<!-- Saved from https://b.org/a at 2024-03-01T12:00:00Z using monolith v2.8.1 -->", "https://b.org/a"),
        (
            "<!-- Mirrored from b.org/a.html by HTTrack Website Copier/3.x [XR&CO'2014], Fri, 01 Mar 2024 -->",
            "http://b.org/a.html",
        ),
        ("<html><!--\n Archive processed by SingleFile \n url: https://b.org/a \n-->", "https://b.org/a"),
        ('<html><head><meta name="savepage-url" content="https://b.org/a?b&amp;c">', "https://b.org/a?b&c"),
        (
            f"<head><style>{'a{b:c}' * 20_000}</style><meta name=savepage-url content=https://b.org/a>",
            "https://b.org/a",
        ),
        ('<html lang="en" data-scrapbook-source="https://b.org/a">', "https://b.org/a"),
        ("<!-- saved from url=(0014)about:internet -->", ""),
        ("<!-- A comment about https://b.org/a -->", ""),
        ("<script>'<!-- saved from url=(0015)https://b.org/a -->'</script>", ""),
    ],
)
def test_the_url_from_which_a_program_saved_a_page_is_the_pages(saved, url):
    text = f"<!DOCTYPE html>{saved}{page()}"
    assert said_urls(text.encode()).saved == url
    assert said_urls(b"\xff\xfe" + text.encode("utf-16-le")).saved == url


def test_a_canonical_url_that_several_files_claim_names_none_of_them(tmp_path):
    """Boards name the first page of a thread on all of its pages, and some sites their home page on every page."""
    site = tmp_path / "site"
    site.mkdir()
    claims = {
        "one": "http://a.org/t",
        "two": "http://A.org/t#p2",
        "three": "http://a.org/own",
        "four": "http://a.org/sure",
    }
    for name, url in claims.items():
        body = page(f"Words of page {name}. ").replace("<head>", f'<head><link rel="canonical" href="{url}">')
        (site / f"{name}.html").write_text(body)
    sure = "<!-- saved from url=(0017)http://a.org/sure -->"
    (site / "five.html").write_text(sure + page())
    files = sorted(site.iterdir())
    summary = extract(files, tmp_path / "out")
    assert {row["url"] for row in outcomes_of(tmp_path / "out")} == {
        "file:one.html", "file:two.html", "http://a.org/own", "file:four.html", "http://a.org/sure"
    }  # fmt: skip
    (sentence,) = summary.tally.problems
    assert "canonical URL" in sentence and "four.html" in sentence and "one.html" in sentence
    extract([site / "one.html"], tmp_path / "alone")
    assert [row["url"] for row in outcomes_of(tmp_path / "alone")] == ["http://a.org/t"]


def test_of_an_earlier_output_below_a_folder_no_shard_becomes_a_page(tmp_path):
    (tmp_path / "in" / "earlier").mkdir(parents=True)
    (tmp_path / "pages").mkdir()
    written(tmp_path / "pages", members(raw_record(1, answer(page()))), "a.warc.gz")
    extract([tmp_path / "pages" / "a.warc.gz"], tmp_path / "in" / "earlier")
    (tmp_path / "in" / "page.html").write_text(page())
    found = find_inputs([str(tmp_path / "in")], accepts=Extract.reads.accepts, kinds="pages")
    assert [file.name for file in found.files] == ["page.html"]
    assert found.notes() == ["not read, by suffix: 1 .jsonl.zst."]
