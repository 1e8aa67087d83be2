"""Objects in buckets, by obstore: Amazon S3 and what speaks its protocol (MinIO, Ceph, R2, ...), Google Cloud, Azure.

obstore makes requests again that fail by what may pass, goes on at the byte where an answer was cut, and uploads large
files in parts, which appear together. Here is what it leaves open: reading ahead, of the version that was opened
(If-Match); who signs in; and the parts of killed uploads, which nobody sees and which are paid for.

A file is read by ranges, the next of which is fetched while this one is read. A range of an object costs a request,
whose answer takes some ten milliseconds to begin: each is larger than the one before it, up to `MOST_BYTES`, as long as
the file is read from one end to the other. A reader that jumps (Parquet, whose directory is at the end) begins again
with a small one.
"""

from __future__ import annotations

import contextlib
import email.utils
import errno
import functools
import io
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, cast

from command_kit import hide_credentials
from command_kit.atomic import UnfinishedFile, remove_leftovers_of
from webtext_prep.errors import StorageBusyError, StorageError
from webtext_prep.storage.locations import Location, Url
from webtext_prep.storage.requests import AGAIN, EXTRAS, Value, ask, in_background, no_path, words_of
from webtext_prep.storage.stores.base import Note, Store

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import RetryConfig


FIRST_BYTES = 1 << 20
"""The first range, and that after a jump."""
MOST_BYTES = 8 << 20
"""The largest range; two of them are held at once."""
BUFFER_BYTES = 1 << 17
"""The buffer that answers small reads."""


class ReadAhead(io.RawIOBase):
    """The bytes of a file.

    Args:
        fetch: gives the bytes from one offset up to another, as a buffer. Is called in threads of this reader.
        size: bytes of the file.
        first: its first bytes.
    """

    def __init__(self, fetch: Callable[[int, int], Any], size: int, first: Any) -> None:
        self._fetch, self._size = fetch, size
        self._at = self._begin = 0
        self._block = memoryview(first)  # the range at hand
        self._next: Future[Any] | None = None  # the range after it
        self._step = FIRST_BYTES

    def readable(self) -> bool:
        """Whether it can be read: always."""
        return True

    def seekable(self) -> bool:
        """Whether it can be read from any place: always."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """As of any file; nothing is fetched before something is read."""
        target = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if target < 0:
            raise ValueError(f"negative position {target}")
        self._at = target
        return target

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` from the range at hand, or the one that follows. Raises OSError as `fetch` does."""
        wanted = min(len(buffer), self._size - self._at)
        if wanted <= 0:
            return 0
        if not self._begin <= self._at < self._begin + len(self._block):
            self._move(wanted)
        found = self._block[self._at - self._begin :][:wanted]
        buffer[: len(found)] = found
        self._at += len(found)
        end = self._begin + len(self._block)
        if self._next is None and self._at - self._begin >= len(self._block) // 2 and end < self._size:
            self._step = min(MOST_BYTES, 2 * self._step)
            self._next = in_background(functools.partial(self._fetch, end, min(self._size, end + self._step)))
        return len(found)

    def readall(self) -> bytes:
        """All that follows."""
        found = bytearray(max(0, self._size - self._at))
        view, filled = memoryview(found), 0
        while filled < len(found):
            filled += self.readinto(view[filled:])
        return bytes(found)

    def _move(self, wanted: int) -> None:
        """Make the range that begins here the one at hand."""
        if self._next is not None and self._at == self._begin + len(self._block):
            block = self._next.result()
        else:
            self._step = FIRST_BYTES
            block = self._fetch(self._at, min(self._size, self._at + max(FIRST_BYTES, min(MOST_BYTES, wanted))))
        self._begin, self._block, self._next = self._at, memoryview(block), None

    def close(self) -> None:
        """Forget what was fetched."""
        self._next, self._block = None, memoryview(b"")
        super().close()


PART_BYTES = 16 << 20
"""The size of a part of an upload. A file of up to twice as much is uploaded whole."""
MOST_PARTS = 10_000
"""S3's limit: larger files have larger parts."""
PARTS_AT_ONCE = 3
"""Parts of an upload that are on their way, and in memory."""
RETRIES: RetryConfig = {
    "max_retries": 8,
    "retry_timeout": timedelta(seconds=45),
    "backoff": {"init_backoff": timedelta(seconds=0.2), "max_backoff": timedelta(seconds=20), "base": 4},
}
"""Retries of a request that fails by what may pass: pauses are random, and grow to twice on average."""
_TIMEOUTS = {"connect_timeout": "10s", "read_timeout": "60s", "timeout": "10min"}
_SETTINGS = {
    "anon": "skip_signature",
    "endpoint_url": "endpoint",
    "key": "access_key_id",
    "requester_pays": "request_payer",
    "secret": "secret_access_key",
    "token": "session_token",
}
"""obstore's names of settings that fsspec's variables (FSSPEC_S3_ANON) and files call otherwise."""
_unconditional: set[str] = set()
"""Buckets of systems that know no conditions."""


class ObjectStore(Store):
    """The objects of a bucket, whose folders are what their keys begin with."""

    protocols: ClassVar[tuple[str, ...]] = tuple(EXTRAS)
    preload: ClassVar[tuple[str, ...]] = ("obstore",)

    def check(self, url: Url) -> None:
        """See `Store`."""
        super().check(url)
        if not url.parts:
            raise ValueError("it names no bucket")

    def open(self, location: Location) -> BinaryIO:
        """See `Store`. One request finds out what there is, and fetches its first bytes."""

        def fetch(begin: int, end: int, version: str | None = None) -> tuple[ObjectMeta, Any]:
            def get(client: Any, key: str) -> tuple[ObjectMeta, Any]:
                condition: Any = {"if_match": version} if version else {}
                answer = client.get(key, options={"range": (begin, end), **condition})
                return answer.meta, answer.bytes()

            try:
                return _ask(location, get)
            except FileExistsError as error:
                raise _failed(location, "was changed while it was read: wait until it is finished") from error

        try:
            meta, first = fetch(0, FIRST_BYTES)
        except OSError as error:
            if "416" not in words_of(error):
                raise
            return io.BytesIO()  # an empty object has no first byte
        reader = ReadAhead(lambda begin, end: fetch(begin, end, meta["e_tag"])[1], meta["size"], first)
        return cast(BinaryIO, io.BufferedReader(reader, BUFFER_BYTES))

    @contextlib.contextmanager
    def create(self, location: Location, *, durable: bool = True) -> Iterator[BinaryIO]:
        """See `Store`. Until it is whole it lies in this machine's temporary folder: a writer that dies leaves none."""
        draft = UnfinishedFile(_drafts())
        try:
            yield draft.file
            draft.file.flush()
            self._put(draft.name, location)
        finally:
            draft.discard()

    def publish(self, file: Path, location: Location) -> None:
        """See `Store`."""
        self._put(file, location)
        file.unlink(missing_ok=True)

    def _put(self, file: Path, location: Location) -> None:
        """Upload a file. Parts follow from the size alone: equal files have equal entity tags."""
        size = file.stat().st_size
        if size <= 2 * PART_BYTES:
            _ask(location, lambda client, key: client.put(key, file.read_bytes(), use_multipart=False))
            return
        part = max(PART_BYTES, -(-size // MOST_PARTS))

        def put(client: Any, key: str) -> None:
            client.put(key, file, use_multipart=True, chunk_size=part, max_concurrency=PARTS_AT_ONCE)

        try:
            _ask(location, put)
        except FileNotFoundError as error:  # a job of a cluster that outlives the command that began it
            raise _failed(location, "could not be uploaded, which a later command has ended", busy=True) from error

    def _head(self, location: Location) -> ObjectMeta:
        def head(client: Any, key: str) -> ObjectMeta:
            if not key:
                raise IsADirectoryError(errno.EISDIR, "Is a bucket", str(location))
            try:
                return cast("ObjectMeta", client.head(key))
            except Exception as error:
                if {"400", "403"} & {*words_of(error)}:  # the answer has no body that would say why
                    client.get(key)
                raise

        return _ask(location, head)

    def stamp(self, location: Location) -> list[Any]:
        """Name, size in bytes, and entity tag: a digest of the content, in buckets without keys of one's own."""
        found = self._head(location)
        return [location.name, found["size"], found["e_tag"]]

    def is_file(self, location: Location) -> bool:
        """See `Store`."""
        try:
            self._head(location)
        except (FileNotFoundError, IsADirectoryError):
            return False
        return True

    def is_folder(self, location: Location) -> bool:
        """See `Store`."""
        return _ask(location, lambda client, key: any(client.list(key or None, chunk_size=1)) or not key)

    def list_folder(self, folder: Location) -> list[tuple[Location, bool]]:
        """See `Store`. A key may also be the name of a folder: then both are there."""

        def names(client: Any, key: str) -> set[tuple[str, bool]]:
            found = client.list_with_delimiter(key or None)
            # Some tools make an empty object for a folder.
            files = {(entry["path"], False) for entry in found["objects"] if entry["path"] != key}
            return files | {(path, True) for path in found["common_prefixes"]}

        entries = {(path.rpartition("/")[2], is_folder) for path, is_folder in _ask(folder, names)}
        if ("", True) in entries:  # keys that begin with a slash
            raise no_path(cast(Url, folder), "/")
        return [(folder / name, is_folder) for name, is_folder in sorted(entries)]

    def remove(self, location: Location) -> None:
        """See `Store`."""
        with contextlib.suppress(FileNotFoundError):
            _ask(location, lambda client, key: client.delete(key))

    def remove_leftovers(self, folder: Location) -> None:
        """See `Store`. Ends uploads to S3 of files of this folder that were not finished, which obstore can't."""
        with contextlib.suppress(PermissionError):  # another user's
            remove_leftovers_of(_drafts())
        url = cast(Url, folder)
        if EXTRAS[url.protocol] == "s3":
            _end_uploads(url.parts[0], "".join(f"{part}/" for part in url.parts[1:]))

    def read_note(self, location: Location) -> Note:
        """See `Store`."""

        def read(client: Any, key: str) -> Note:
            answer = client.get(key)
            age = _time_of_server(location, client, key) - answer.meta["last_modified"]
            return Note(bytes(answer.bytes()), _tag(location, answer.meta), max(0.0, age.total_seconds()))

        return _ask(location, read)

    def write_note(self, location: Location, data: bytes, version: str = "") -> None:
        """See `Store`. The storage decides between writers; systems that don't know how take the last one."""
        bucket = cast(Url, location).parts[0]
        mode: Any = {_tag_name(location): version} if version else "create"

        def write(client: Any, key: str) -> None:
            try:
                client.put(key, data, mode="overwrite" if bucket in _unconditional else mode)
            except Exception as error:
                if not {"501", "NotSupportedError", "NotImplementedError"} & {*words_of(error)}:
                    raise
                _unconditional.add(bucket)
                client.put(key, data)

        _ask(location, write)


def _drafts() -> Path:
    """What files that are to be uploaded are named after, in this machine's temporary folder."""
    return Path(tempfile.gettempdir()) / "webtext-upload"


def _ask(location: Location, call: Callable[[Any, str], Value]) -> Value:
    """What `call(client, key)` returns. Raises OSError."""
    url = cast(Url, location)
    return ask(url, lambda: call(_client(url.protocol, url.parts[0]), "/".join(url.parts[1:])))


def _failed(location: Location, what: str, *, busy: bool = False) -> StorageError:
    sentence = f"{hide_credentials(str(location))} {what}, then run this again."
    return StorageBusyError(sentence) if busy else StorageError(sentence)


def _tag_name(location: Location) -> str:
    """What a condition for writing names: Google's generation, or the entity tag."""
    return "version" if EXTRAS[cast(Url, location).protocol] == "gcs" else "e_tag"


def _tag(location: Location, meta: ObjectMeta) -> str:
    return str(cast(dict[str, Any], meta)[_tag_name(location)])


def _time_of_server(location: Location, client: Any, key: str) -> datetime:
    """The time by the server's clock; by ours, where these credentials sign no request of our own."""
    import obstore

    try:
        url = obstore.sign(client, "HEAD", key, timedelta(minutes=5))
    except Exception:
        return datetime.now(UTC)
    for _ in range(AGAIN):
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=10) as answer:  # noqa: S310
                said = answer.headers["Date"]
        except urllib.error.HTTPError as error:  # tells the time, too
            said = error.headers["Date"]
        except OSError:
            continue
        if said:
            return email.utils.parsedate_to_datetime(said)
    raise _failed(location, "does not tell the time: wait a while", busy=True)


@functools.cache
def _client(protocol: str, bucket: str) -> Any:
    """obstore's client for a bucket, with the settings of this process's environment and files."""
    import obstore.store

    kind, connection = EXTRAS[protocol], {"allow_http": True, **_TIMEOUTS}
    settings = {"client_options": connection, "retry_config": RETRIES, **_settings(kind)}
    if kind == "gcs":
        return obstore.store.GCSStore(bucket, **settings)
    if kind == "azure":
        container, _, host = bucket.partition("@")
        account = {"account_name": host.partition(".")[0]} if host else {}
        return obstore.store.AzureStore(container, **{**_of_connection_string(), **settings, **account})
    if bundle := os.environ.get("AWS_CA_BUNDLE"):
        connection["root_certificate"] = Path(bundle).read_bytes()
    is_anonymous = str(settings.get("skip_signature", os.environ.get("AWS_SKIP_SIGNATURE"))).lower() in ("true", "1")
    is_enough = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"} <= os.environ.keys()
    profile = settings.pop("profile", None)
    if not is_anonymous and (profile or not is_enough) and "access_key_id" not in settings:
        settings = {**_of_profile(profile), **settings}
    return obstore.store.S3Store(bucket, disable_bulk_delete=True, **settings)


def _settings(kind: str) -> dict[str, Any]:
    """What fsspec's variables and files say of a kind of storage."""
    from fsspec.config import conf

    sections = [conf.get(protocol, {}) for protocol, extra in EXTRAS.items() if extra == kind]
    return {_SETTINGS.get(name, name): value for section in sections for name, value in section.items()}


def _of_profile(profile: str | None) -> dict[str, Any]:
    """Region, endpoint and credentials from `~/.aws`, or from the role of this machine, by botocore."""
    import botocore.exceptions
    import botocore.session

    session = botocore.session.Session(profile=profile)
    if (credentials := session.get_credentials()) is None:
        raise botocore.exceptions.NoCredentialsError

    def provide() -> dict[str, Any]:
        now, until = credentials.get_frozen_credentials(), datetime.now(UTC) + timedelta(minutes=10)
        keys = {"access_key_id": now.access_key, "secret_access_key": now.secret_key, "token": now.token}
        return {**keys, "expires_at": until}

    found = {"region": session.get_config_variable("region"), "credential_provider": provide}
    if "AWS_ENDPOINT_URL" not in os.environ:
        found["endpoint"] = session.get_scoped_config().get("endpoint_url")
    return {name: value for name, value in found.items() if value}


def _of_connection_string() -> dict[str, str]:
    """Azure's account and its key from the one variable that holds them both."""
    names = {"AccountName": "account_name", "AccountKey": "account_key", "BlobEndpoint": "endpoint",
             "SharedAccessSignature": "sas_key"}  # fmt: skip
    pairs = (pair.partition("=") for pair in os.environ.get("AZURE_STORAGE_CONNECTION_STRING", "").split(";"))
    return {names[name]: value for name, _, value in pairs if name in names}


@functools.cache
def _botocore_client() -> Any:
    import botocore.session

    settings = _settings("s3")
    return botocore.session.Session(profile=settings.get("profile")).create_client(
        "s3",
        endpoint_url=settings.get("endpoint"),
        aws_access_key_id=settings.get("access_key_id"),
        aws_secret_access_key=settings.get("secret_access_key"),
        aws_session_token=settings.get("session_token"),
    )


def _end_uploads(bucket: str, prefix: str) -> None:
    """End the uploads to a folder in S3 that were not finished, by botocore; nobody else writes there."""
    import botocore.exceptions

    with contextlib.suppress(botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError):
        client = _botocore_client()
        pages = client.get_paginator("list_multipart_uploads")
        for page in pages.paginate(Bucket=bucket, Prefix=prefix, Delimiter="/"):
            for upload in page.get("Uploads", []):
                if "/" not in upload["Key"].removeprefix(prefix):  # some servers take no Delimiter here
                    client.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
