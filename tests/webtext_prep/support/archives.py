"""Small archives for tests, as crawlers write them: by warcio, or byte by byte where they are to be wrong."""

import gzip
import io
from collections.abc import Iterable

from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

DATE = "2024-03-01T12:00:00Z"


def page(words: str = "Some words of a page, long enough for anybody to see that they are its text. ") -> str:
    return f"<html><head><title>A page</title></head><body><article><p>{words * 5}</p></article></body></html>"


class Archive:
    """An archive that grows record by record; `data` is its bytes so far."""

    def __init__(self, *, is_gzip: bool = True) -> None:
        self._stream = io.BytesIO()
        self.writer = WARCWriter(self._stream, gzip=is_gzip, warc_version="1.0")
        self.offsets: list[int] = []

    @property
    def data(self) -> bytes:
        return self._stream.getvalue()

    def add(self, kind: str, url: str, payload: bytes = b"", http: StatusAndHeaders | None = None, **headers: str):
        """A record of any kind; `content_type` and other `headers` are those of the record."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        content_type = named.pop("content-type", None)
        record = self.writer.create_warc_record(
            url,
            kind,
            payload=io.BytesIO(payload),
            http_headers=http,
            warc_content_type=content_type or "",
            warc_headers_dict={"WARC-Date": DATE, **named},
        )
        self.offsets.append(self._stream.tell())
        self.writer.write_record(record)
        return self

    def response(self, url: str, body: bytes | str = "", status: str = "200 OK", *, more: Iterable = (), **http: str):
        """An answer of a server; `http` are its headers (`Content_Type`), `more` those of the record."""
        headers = {"Content-Type": "text/html; charset=utf-8"}
        headers |= {name.replace("_", "-"): value for name, value in http.items()}
        body = body.encode() if isinstance(body, str) else body
        answer = StatusAndHeaders(status, list(headers.items()), protocol="HTTP/1.1")
        return self.add("response", url, body or page(f"The text of {url} is here. ").encode(), answer, **dict(more))


def raw_record(number: int, block: bytes, length: int | None = None, **headers: str) -> bytes:
    """A response record, uncompressed, with any block."""
    named = {
        "WARC-Type": "response",
        "WARC-Record-ID": f"<urn:uuid:{number:032x}>",
        "WARC-Date": DATE,
        "WARC-Target-URI": f"http://a.org/{number}",
        "Content-Type": "application/http; msgtype=response",
        "Content-Length": str(len(block) if length is None else length),
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return f"WARC/1.0\r\n{head}\r\n".encode() + block + b"\r\n\r\n"


def answer(body: bytes | str, *headers: str, status: str = "200 OK") -> bytes:
    """The block of a response record."""
    lines = [f"HTTP/1.1 {status}", *(headers or ["Content-Type: text/html"]), "", ""]
    return "\r\n".join(lines).encode() + (body.encode() if isinstance(body, str) else body)


def members(*records: bytes) -> bytes:
    """Records as gzip members, one each."""
    return b"".join(gzip.compress(record, mtime=0) for record in records)
