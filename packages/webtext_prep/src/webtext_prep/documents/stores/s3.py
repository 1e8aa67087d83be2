"""Amazon S3, and every storage system that speaks its protocol (MinIO, Ceph, R2, ...), by s3fs.

s3fs signs in, by the usual settings (AWS_* variables, `~/.aws`, roles; FSSPEC_S3_* variables), and makes single
requests; here they are put together, since what s3fs does by itself shows a bucket as it was, uploads 500 MB at once,
and reads on in whatever object has the name now. A reader asks for the version that it began with (If-Match), and goes
on at the byte where a connection was cut. A large file is uploaded in parts, and appears when all of them are there.

A killed upload leaves parts that nobody sees and that are paid for: `remove_leftovers` ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import errno
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, cast

from webtext_prep.documents.stores.base import Location, Note
from webtext_prep.documents.stores.failures import code_of, condition_failed
from webtext_prep.documents.stores.read_ahead import BUFFER_BYTES, FIRST_BYTES, ReadAhead
from webtext_prep.documents.stores.remote import RemoteStore, changed, ended

if TYPE_CHECKING:
    from upath import UPath

PART_BYTES = 16 << 20
"""Of an upload in parts. A file of up to twice as much is uploaded whole."""
MOST_PARTS = 10_000
"""S3's limit: larger files have larger parts."""
PARTS_AT_ONCE = 3
"""In flight, and in memory."""
PIECE_BYTES = 1 << 20
"""Of an answer, as it is taken from the connection."""


class S3Store(RemoteStore):
    """Objects in the buckets of S3."""

    protocols: ClassVar[tuple[str, ...]] = ("s3", "s3a")
    preload: ClassVar[tuple[str, ...]] = ("upath", "s3fs")

    def open(self, location: Location) -> BinaryIO:
        """See `Store`. One request finds out what there is, and fetches its first bytes."""
        url = _url(location)
        first = bytearray()
        try:
            answer = self._fetch(url, first, 0, FIRST_BYTES)
        except OSError as error:
            if first or code_of(error) not in ("InvalidRange", "416"):
                raise
            return io.BytesIO()  # an empty object has no first byte
        # Some systems give all of an object, of an empty one at least.
        size, version = int(answer.get("ContentRange", "").rpartition("/")[2] or len(first)), answer["ETag"]

        def fetch(begin: int, end: int) -> bytes:
            data = bytearray()
            self._fetch(url, data, begin, end, version)
            return cast(bytes, data)

        return cast(BinaryIO, io.BufferedReader(ReadAhead(fetch, size, bytes(first)), BUFFER_BYTES))

    def _fetch(self, url: UPath, data: bytearray, begin: int, end: int, version: str = "") -> dict[str, Any]:
        """Add the bytes from `begin` to `end` to `data`, from where they were cut off if they are; the first answer."""
        fs, (bucket, key) = _client(url), _parts(url)
        found: dict[str, Any] = {}

        async def more() -> None:
            at = begin + len(data)
            if found and at >= end:
                return  # it was cut behind its last byte
            match = version or found.get("ETag", "")
            answer = await fs._call_s3(
                "get_object",
                Bucket=bucket,
                Key=key,
                Range=f"bytes={at}-{end - 1}",
                **({"IfMatch": match} if match else {}),
            )
            if at and not answer.get("ContentRange", "").startswith(f"bytes {at}-"):
                raise OSError(errno.EIO, "the storage system does not give ranges of objects")
            found.update(answer if not found else {})
            async with answer["Body"] as body:
                left = int(answer["ContentLength"])
                while piece := await body.read(min(left, PIECE_BYTES)):
                    data.extend(piece)
                    left -= len(piece)
            if left:
                raise ConnectionError(f"{left} bytes are missing")

        try:
            self._try(url, lambda: _wait(fs, more))
        except OSError as error:
            if condition_failed(error):
                raise changed(url) from error
            raise
        return found

    def _call(self, url: UPath, method: str, **settings: Any) -> dict[str, Any]:
        """One request. Raises OSError."""
        fs, bucket = _client(url), _parts(url)[0]
        return self._try(url, lambda: cast(dict[str, Any], fs.call_s3(method, Bucket=bucket, **settings)))

    def _head(self, url: UPath) -> dict[str, Any]:
        """What S3 says of an object. Raises FileNotFoundError."""
        key = _parts(url)[1]
        if not key:
            raise IsADirectoryError(errno.EISDIR, "Is a bucket", str(url))
        try:
            return self._call(url, "head_object", Key=key)
        except OSError as error:
            if code_of(error) in ("400", "403"):  # the answer has no body that would say why
                self._call(url, "list_objects_v2", Prefix=key, MaxKeys=1)
            raise

    def stamp(self, location: Location) -> list[Any]:
        """Name, size in bytes, and entity tag: a digest of the content, in buckets without keys of one's own."""
        found = self._head(_url(location))
        return [location.name, found["ContentLength"], found["ETag"]]

    def size(self, location: Location) -> int:
        """See `Store`."""
        return int(self._head(_url(location))["ContentLength"])

    def is_file(self, location: Location) -> bool:
        """See `Store`."""
        try:
            self._head(_url(location))
        except (FileNotFoundError, IsADirectoryError):
            return False
        return True

    def is_folder(self, location: Location) -> bool:
        """See `Store`."""
        url = _url(location)
        found = self._call(url, "list_objects_v2", Prefix=_prefix(url), MaxKeys=1)
        return bool(found.get("KeyCount")) or not _prefix(url)

    def list_folder(self, folder: Location) -> list[tuple[Location, bool]]:
        """See `Store`."""
        url = _url(folder)
        prefix = _prefix(url)
        entries: dict[str, bool] = {}
        for page in self._pages(url, "list_objects_v2", "ContinuationToken"):
            entries |= {entry["Key"].removeprefix(prefix): False for entry in page.get("Contents", [])}
            for entry in page.get("CommonPrefixes", []):
                entries.setdefault(entry["Prefix"].removeprefix(prefix).rstrip("/"), True)
        # Some tools make an empty object for a folder; and a name that is only slashes can't be said in a path.
        return [(url / name, is_folder) for name, is_folder in sorted(entries.items()) if name]

    def _pages(self, url: UPath, method: str, *markers: str) -> Iterator[dict[str, Any]]:
        """The answers to a request for the entries of a folder, 1,000 in each."""
        begin: dict[str, Any] = {}
        while True:
            page = self._call(url, method, Prefix=_prefix(url), Delimiter="/", **begin)
            yield page
            if not page.get("IsTruncated"):
                return
            begin = {marker: page[f"Next{marker}"] for marker in markers}

    def remove(self, location: Location) -> None:
        """See `Store`."""
        url = _url(location)
        self._call(url, "delete_object", Key=_parts(url)[1])

    def remove_leftovers(self, folder: Location) -> None:
        """See `Store`. Also ends uploads of files of this folder that were not finished; nobody else writes there."""
        super().remove_leftovers(folder)
        url = _url(folder)
        with contextlib.suppress(PermissionError, FileNotFoundError, NotImplementedError):
            for page in self._pages(url, "list_multipart_uploads", "KeyMarker", "UploadIdMarker"):
                for upload in page.get("Uploads", []):
                    if "/" in upload["Key"].removeprefix(_prefix(url)):
                        continue  # of a folder below, where a server takes no Delimiter here
                    with contextlib.suppress(FileNotFoundError):
                        self._call(url, "abort_multipart_upload", Key=upload["Key"], UploadId=upload["UploadId"])

    def _put(self, file: Path, url: UPath) -> None:
        key, size = _parts(url)[1], file.stat().st_size
        if size <= 2 * PART_BYTES:
            self._call(url, "put_object", Key=key, Body=file.read_bytes())
            return
        upload = self._call(url, "create_multipart_upload", Key=key)["UploadId"]
        try:
            parts = self._put_parts(file, size, url, upload)
            self._complete(url, upload, parts, size)
        except BaseException as error:
            with contextlib.suppress(OSError):
                self._call(url, "abort_multipart_upload", Key=key, UploadId=upload)
            if isinstance(error, FileNotFoundError):  # a job of a cluster that outlives the command that began it
                raise ended(url) from error
            raise

    def _put_parts(self, file: Path, size: int, url: UPath, upload: str) -> list[dict[str, Any]]:
        """Upload a file in parts, a few at a time; what the request that puts them together has to name."""
        length = max(PART_BYTES, -(-size // MOST_PARTS))
        names = range(1, -(-size // length) + 1)
        fs, (bucket, key) = _client(url), _parts(url)
        tags: dict[int, str] = {}

        async def put(number: int) -> None:
            with file.open("rb") as source:
                source.seek((number - 1) * length)
                body = source.read(length)
            answer = await fs._call_s3(
                "upload_part", Bucket=bucket, Key=key, UploadId=upload, PartNumber=number, Body=body
            )
            tags[number] = answer["ETag"]

        async def put_missing(numbers: list[int]) -> None:
            results = await asyncio.gather(*(put(n) for n in numbers if n not in tags), return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result

        for begin in range(0, len(names), PARTS_AT_ONCE):
            some = list(names[begin : begin + PARTS_AT_ONCE])
            self._try(url, lambda some=some: _wait(fs, put_missing, some))  # type: ignore[misc]
        return [{"PartNumber": number, "ETag": tags[number]} for number in names]

    def _complete(self, url: UPath, upload: str, parts: list[dict[str, Any]], size: int) -> None:
        try:
            what = {"Key": _parts(url)[1], "UploadId": upload, "MultipartUpload": {"Parts": parts}}
            self._call(url, "complete_multipart_upload", **what)
        except FileNotFoundError:
            # A request whose answer was lost has done it already: now there is no such upload any more.
            found = self._head(url)
            if found["ContentLength"] != size or not found["ETag"].strip('"').endswith(f"-{len(parts)}"):
                raise

    def read_note(self, location: Location) -> Note:
        """See `Store`. Its age is by the clock of the server alone."""
        url = _url(location)
        data, fs, (bucket, key) = bytearray(), _client(url), _parts(url)

        async def read() -> dict[str, Any]:
            data.clear()
            answer = await fs._call_s3("get_object", Bucket=bucket, Key=key)
            async with answer["Body"] as body:
                data.extend(await body.read())
            return cast(dict[str, Any], answer)

        answer = self._try(url, lambda: cast(dict[str, Any], _wait(fs, read)))
        now = email.utils.parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
        return Note(bytes(data), answer["ETag"], max(0.0, (now - answer["LastModified"]).total_seconds()))

    def create_note(self, location: Location, data: bytes) -> None:
        """See `Store`. S3 decides (If-None-Match); systems that don't know that take the last writer."""
        self._write_note(location, data, IfNoneMatch="*")

    def replace_note(self, location: Location, data: bytes, version: str) -> str:
        """See `Store`. S3 decides (If-Match); systems that don't know that take the last writer."""
        return self._write_note(location, data, IfMatch=version)

    def _write_note(self, location: Location, data: bytes, **condition: str) -> str:
        url = _url(location)
        try:
            return str(self._call(url, "put_object", Key=_parts(url)[1], Body=data, **condition)["ETag"])
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                raise FileExistsError(errno.EEXIST, "it was removed", str(url)) from error
            if code_of(error) in ("NotImplemented", "501"):
                return str(self._call(url, "put_object", Key=_parts(url)[1], Body=data)["ETag"])
            if not condition_failed(error) or self.read_note(location).data != data:
                raise
            return self.read_note(location).version  # a request whose answer was lost has written it


def _client(url: UPath) -> Any:
    """s3fs's file system, which leaves trying again to us."""
    fs = url.fs
    fs.retries = 1
    fs.config_kwargs.setdefault("retries", {"total_max_attempts": 1})
    return fs


def _wait(fs: Any, call: Callable[..., Any], *arguments: Any) -> Any:
    from fsspec.asyn import sync

    return sync(fs.loop, call, *arguments)


def _url(location: Location) -> UPath:
    return cast("UPath", location)


def _parts(url: UPath) -> tuple[str, str]:
    """Bucket and key."""
    bucket, _, key = url.path.lstrip("/").partition("/")
    return bucket, key.rstrip("/")


def _prefix(url: UPath) -> str:
    """What the keys of a folder's entries begin with."""
    key = _parts(url)[1]
    return f"{key}/" if key else ""
