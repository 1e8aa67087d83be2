"""WACZ files: the archives in them are read as if they lay beside them, and what is wrong with one is said."""

import functools
import hashlib
import http.server
import io
import json
import re
import struct
import threading
import zipfile
from pathlib import Path

import pytest
from archives import Archive
from jobs import job_of
from outputs import documents_of, outcomes_of

from webtext_prep import storage
from webtext_prep.errors import InputError
from webtext_prep.stages import extract as extract_stage
from webtext_prep.stages.extract import Extract
from webtext_prep.storage.stores.wacz import MAX_DIRECTORY

SAID_BY_BROWSER = "Words of a page as its crawler saw it, which are no document."


def archive(host, pages=4, *, is_gzip=True):
    made = Archive(is_gzip=is_gzip)
    for number in range(pages):
        made.response(f"http://{host}/{number}")
    return made.data


TWO = {"a.warc.gz": archive("a.org"), "b.warc.gz": archive("b.org")}


class Stream(io.RawIOBase):
    """A file that can't be gone back in, as Browsertrix writes one: sizes stand behind members, not before them."""

    def __init__(self):
        self.data = b""

    def writable(self):
        return True

    def write(self, data):
        self.data += bytes(data)
        return len(data)


def packed(archives, *, by="py-wacz", method=zipfile.ZIP_STORED, digests=None, left_out=(), more=()):
    """A WACZ file as py-wacz 0.6.0 or Browsertrix Crawler lay it out, of archives or of the WACZ files of crawls."""
    pages = json.dumps({"url": "http://a.org/0", "ts": "2024-03-01T12:00:00Z", "text": SAID_BY_BROWSER})
    folder = "" if all(name.endswith(".wacz") for name in archives) else "archive/"
    files = {f"{folder}{name}": data for name, data in archives.items()}
    lists = {"pages/pages.jsonl": b'{"format": "json-pages-1.0", "id": "pages"}\n' + pages.encode()}
    index = {"indexes/index.cdx.gz": b"\x1f\x8b", "indexes/index.idx": b"org,a)/ 2024"}
    if by == "py-wacz":
        files = index | files | lists
    else:
        files |= {"indexes/index.cdxj": b"", "logs/crawl.log": b"{}\n", "pages/extraPages.jsonl": b"{}\n"} | lists
    resources = [
        {"name": name.rsplit("/")[-1], "path": name, "hash": f"sha256:{sha256(data)}", "bytes": len(data)}
        for name, data in files.items()
    ]
    described = {"profile": "data-package", "wacz_version": "1.1.1", "software": by, "resources": resources}
    for entry in resources:
        entry["hash"] = (digests or {}).get(entry["path"], entry["hash"])
    datapackage = json.dumps(described).encode()
    files["datapackage.json"] = datapackage
    files["datapackage-digest.json"] = json.dumps(
        {"path": "datapackage.json", "hash": (digests or {}).get("datapackage.json", f"sha256:{sha256(datapackage)}")}
    ).encode()
    stream = io.BytesIO() if by == "py-wacz" else Stream()
    with zipfile.ZipFile(stream, "w") as file:
        for name, data in [*files.items(), *more]:
            if name not in left_out:
                file.writestr(zipfile.ZipInfo(name), data, method)
    return stream.getvalue() if by == "py-wacz" else stream.data


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def extract(tmp_path, *inputs, workers=1, name="out"):
    output = tmp_path / name
    summary = job_of(Extract(extractor="resiliparse"), inputs, output, workers=workers).run()
    return documents_of(output), outcomes_of(output), summary.tally.problems


def from_archives(tmp_path, archives=None):
    folder = tmp_path / "archives"
    folder.mkdir()
    for name, data in (archives or TWO).items():
        (folder / name).write_bytes(data)
    return extract(tmp_path, folder, name="from-archives")


def wacz(tmp_path, data, name="crawl.wacz"):
    (tmp_path / name).write_bytes(data)
    return tmp_path / name


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("by", ["py-wacz", "browsertrix"])
def test_a_wacz_file_gives_the_documents_of_its_archives(tmp_path, by, method):
    archives = TWO | {"c.warc": archive("c.org", is_gzip=False)}
    place = wacz(tmp_path, packed(archives, by=by, method=method))
    found = extract(tmp_path, place)
    assert found == from_archives(tmp_path, archives)
    assert len(found[0]) == 12 and not found[2]
    for part in ("part-00000.jsonl.zst", "part-00002.jsonl.zst", "stage.json"):
        assert (tmp_path / "out" / part).read_bytes() == (tmp_path / "from-archives" / part).read_bytes()


def test_several_crawls_in_one_file_are_several_inputs(tmp_path):
    crawls = {f"{name[0]}.wacz": packed({name: data}, by="browsertrix") for name, data in TWO.items()}
    assert extract(tmp_path, wacz(tmp_path, packed(crawls, by="browsertrix"))) == from_archives(tmp_path)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_large_archive_in_a_wacz_file_is_read_in_ranges_by_all_workers(tmp_path, method, monkeypatch):
    monkeypatch.setattr(extract_stage, "BYTES_PER_RANGE", 100)
    monkeypatch.setattr(Extract, "pages_per_range", 5)
    archives = {"a.warc.gz": archive("a.org", pages=40)}
    found = extract(tmp_path, wacz(tmp_path, packed(archives, method=method)), workers=2)
    assert len(list((tmp_path / "out").glob("part-*"))) > 4
    assert found[:2] == from_archives(tmp_path, archives)[:2]


class Handler(http.server.SimpleHTTPRequestHandler):
    """A web server that sends ranges."""

    def send_head(self):
        ranges = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        file = super().send_head() if ranges is None else None
        if ranges is None:
            return file
        data = Path(self.translate_path(self.path)).read_bytes()
        begin, end = int(ranges[1]), min(int(ranges[2]) + 1, len(data))
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(data)}")
        self.send_header("Content-Length", str(end - begin))
        self.end_headers()
        return io.BytesIO(data[begin:end])

    def log_message(self, *arguments):
        pass


@pytest.fixture
def web(tmp_path):
    """The URL of a web server for the files of `tmp_path`."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=tmp_path))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_wacz_file_on_a_web_server_is_read_there(tmp_path, web):
    wacz(tmp_path, packed(TWO))
    assert extract(tmp_path, f"{web}/crawl.wacz") == from_archives(tmp_path)


def test_a_wacz_file_in_a_bucket_is_read_there(tmp_path, bucket):
    with storage.create(bucket / "crawl.wacz") as file:
        file.write(packed(TWO))
    assert extract(tmp_path, bucket / "crawl.wacz") == from_archives(tmp_path)


# What is wrong with one


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"digests": {"archive/a.warc.gz": f"sha256:{sha256(b'')}"}},
            "!/archive/a.warc.gz: it is not what its sha256 in datapackage.json says, and what can be read is kept: "
            "fetch it again.",
        ),
        (
            {"digests": {"archive/b.warc.gz": "crc9:1"}},
            "!/archive/b.warc.gz: datapackage.json has no digest of it that is known.",
        ),
        (
            {"digests": {"datapackage.json": f"sha256:{sha256(b'')}"}},
            ": its datapackage.json is not what datapackage-digest.json says: fetch it again.",
        ),
        ({"left_out": ["datapackage.json"]}, ": it has no datapackage.json, so that no digest is checked."),
        (
            {"more": [("../d.warc.gz", TWO["a.warc.gz"])]},
            "../d.warc.gz: not read: it names a place outside of it.",
        ),
        ({"more": [("/d.warc.gz", b"")]}, "crawl.wacz: /d.warc.gz: not read: it names a place outside of it."),
    ],
)
def test_what_is_wrong_with_a_wacz_file_is_a_sentence_and_the_rest_is_read(tmp_path, settings, sentence):
    place = wacz(tmp_path, packed(TWO, **settings))
    documents, _, problems = extract(tmp_path, place)
    assert len(documents) == 8
    assert len(problems) == 1 and problems[0].endswith(sentence) and "crawl.wacz" in problems[0]


def test_a_member_that_is_a_bomb_is_not_read(tmp_path):
    more = [("archive/zeros.warc", b"WARC/1.0\r\n" + bytes(4 << 20))]
    documents, _, problems = extract(tmp_path, wacz(tmp_path, packed(TWO, method=zipfile.ZIP_DEFLATED, more=more)))
    assert len(documents) == 8 and len(problems) == 1
    assert problems[0].endswith("zeros.warc: not read: it unpacks to over 200 times its size, as no archive does.")


def changed(data, offset, packed_value):
    """The entries of a zip file's list of members, each with other bytes at an offset."""
    for found in re.finditer(rb"PK\x01\x02", data):
        at = found.start() + offset
        data = data[:at] + packed_value + data[at + len(packed_value) :]
    return data


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (changed(packed(TWO), 8, struct.pack("<H", 1)), "not read: it is encrypted: decrypt it first."),
        (
            changed(packed(TWO), 10, struct.pack("<H", 93)),
            "not read: it is compressed by method 93: only deflate is read.",
        ),
        (packed(TWO)[:-40], "it can't be read as a zip file: fetch it again."),
        (packed({}), "it holds no web archives (archive/*.warc.gz)."),
        (changed(packed(TWO), 20, struct.pack("<I", 5_000)), "it can't be read as a zip file: fetch it again."),
        (packed(TWO, more=[("a" * 60_000 + str(n), b"") for n in range(MAX_DIRECTORY // 60_000 + 1)]), "zip file"),
        (packed({"a.wacz": packed({"b.wacz": packed(TWO)})}), "in another one: take it out of there."),
        (packed({"a.wacz": packed(TWO)}, method=zipfile.ZIP_DEFLATED), "in another one: take it out of there."),
    ],
    ids=["encrypted", "method", "cut", "empty", "overlapping", "large list", "deep", "compressed"],
)
def test_a_wacz_file_of_which_nothing_can_be_read_is_refused_in_a_sentence(tmp_path, data, sentence):
    with pytest.raises(InputError) as caught:
        extract(tmp_path, wacz(tmp_path, data))
    assert sentence in str(caught.value) and "crawl.wacz" in str(caught.value)
