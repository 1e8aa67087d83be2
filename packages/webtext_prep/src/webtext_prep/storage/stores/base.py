"""The interface of a storage system: opening files, creating them atomically, listing and removing them.

A location is a `pathlib.Path` for a local file, or a `Url`, which names things as a path does. Stages, formats and the
job know only this interface; nothing else opens or writes a shard.

Asking a storage system: waiting for the answer so that Ctrl-C is heard, and sentences about what goes wrong. Clients of
storage systems have errors of their own. They are recognised by what they have in common, so that no client needs to be
imported: the code in the answer (S3's `SlowDown`), its HTTP status, and the names of the exceptions.
"""

from __future__ import annotations

import abc
import contextlib
import errno
import importlib
import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, ClassVar, TypeAlias, TypeVar

from command_kit import hide_credentials
from command_kit.atomic import LEFTOVER_SUFFIX, UnfinishedFile, remove_leftovers_of
from webtext_prep.errors import StorageBusyError, StorageError


@dataclass(frozen=True, order=True)
class Url:
    """A file or folder at a URL, with the names and parents of `pathlib.PurePath`.

    Attributes:
        scheme: what stands before `://`: a protocol, or several of fsspec's (`simplecache::sftp`).
        path: what stands after it: for an object its bucket and key.
    """

    scheme: str
    path: PurePosixPath

    @classmethod
    def parse(cls, text: str) -> Url:
        """The URL that `text` is."""
        scheme, _, path = text.partition("://")
        return cls(scheme.lower(), PurePosixPath(path))

    @property
    def protocol(self) -> str:
        """The first protocol of the scheme, by which a store is chosen."""
        return self.scheme.partition("::")[0]

    @property
    def parts(self) -> tuple[str, ...]:
        """The bucket, or what stands for it, and the names below it."""
        return self.path.parts

    @property
    def name(self) -> str:
        """The last part."""
        return self.path.name

    @property
    def suffix(self) -> str:
        """The end of the name, from its last dot on."""
        return self.path.suffix

    @property
    def parent(self) -> Url:
        """The folder that it lies in; of a bucket, the bucket."""
        return self if len(self.parts) < 2 else Url(self.scheme, self.path.parent)

    @property
    def parents(self) -> tuple[Url, ...]:
        """The folder that it lies in, its parent, and so on."""
        return () if self.parent == self else (self.parent, *self.parent.parents)

    def with_name(self, name: str) -> Url:
        """A neighbour."""
        return Url(self.scheme, self.path.with_name(name))

    def with_suffix(self, suffix: str) -> Url:
        """The neighbour that differs in the suffix."""
        return Url(self.scheme, self.path.with_suffix(suffix))

    def __truediv__(self, name: str) -> Url:
        return Url(self.scheme, self.path / name)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.path if self.parts else ''}"


Location: TypeAlias = Path | Url
"""A file or folder: a local path, or a URL."""


@dataclass(frozen=True)
class Note:
    """A small file as it was found, for what several writers agree on.

    Attributes:
        data: its bytes.
        version: changes with it, for `Store.write_note`.
        age: seconds since it was written, by the clock of the storage where that tells the time.
    """

    data: bytes
    version: str
    age: float


class Store(abc.ABC):
    """One kind of storage. All methods raise OSError (FileNotFoundError, PermissionError, ...) as `open` does."""

    protocols: ClassVar[tuple[str, ...]] = ()
    """URL schemes that it serves, such as `s3`. A store that names none serves all schemes that no other one names."""
    preload: ClassVar[tuple[str, ...]] = ()
    """Modules that take long to import: processes of an engine may be forked with them."""

    def check(self, url: Url) -> None:
        """Raise ImportError or ValueError where a URL can't be served here: a package for it is missing."""
        for name in self.preload:
            importlib.import_module(name)

    @abc.abstractmethod
    def open(self, location: Location) -> BinaryIO:
        """Open a file for reading bytes."""

    @abc.abstractmethod
    def create(self, location: Location, *, durable: bool = True) -> AbstractContextManager[BinaryIO]:
        """Open a file for writing bytes: it appears complete when the block ends well, and not at all when it raises.

        `durable` asks that it survives a power cut, which costs milliseconds per file. Missing folders are made.
        """

    @abc.abstractmethod
    def publish(self, file: Path, location: Location) -> None:
        """Move a finished local file to its final place, where it appears complete."""

    @abc.abstractmethod
    def stamp(self, location: Location) -> list[Any]:
        """Name, size in bytes, and version (a modification time or an entity tag): changes when the file does."""

    @abc.abstractmethod
    def is_file(self, location: Location) -> bool:
        """Whether there is a file of that name."""

    @abc.abstractmethod
    def is_folder(self, location: Location) -> bool:
        """Whether there is a folder of that name; where folders are only prefixes, whether anything lies below it."""

    @abc.abstractmethod
    def list_folder(self, folder: Location) -> list[tuple[Location, bool]]:
        """The entries of a folder by name, each with whether it is a folder; none if there is no such folder."""

    @abc.abstractmethod
    def remove(self, location: Location) -> None:
        """Remove a file, if it is there."""

    def remove_folder(self, folder: Location) -> None:
        """Remove a folder and all that lies below it, if it is there."""
        for entry, is_folder in self.list_folder(folder):
            if is_folder:
                self.remove_folder(entry)
            else:
                self.remove(entry)

    @abc.abstractmethod
    def remove_leftovers(self, folder: Location) -> None:
        """Remove temporary files that killed writers left in `folder`."""

    def read_note(self, location: Location) -> Note:
        """A small file with its version and age."""
        raise NotImplementedError

    def write_note(self, location: Location, data: bytes, version: str = "") -> None:
        """Write a small file on a condition. Raises FileExistsError if that does not hold.

        The condition is that the file has this version, or, without one, that it is not there yet. A storage that
        can't decide between writers does what it can: two of them at the same moment may both succeed. An answer that
        was lost may have FileExistsError raised, though this writer has written it.
        """
        raise NotImplementedError


class DraftStore(Store):
    """A store to which a file is copied when it is finished: until then it lies in this machine's temporary folder.

    So nothing is visible before it is whole, even if a writer dies.
    """

    @abc.abstractmethod
    def put(self, file: Path, location: Location) -> None:
        """Copy a local file to its final place, where it appears complete."""

    @contextlib.contextmanager
    def create(self, location: Location, *, durable: bool = True) -> Iterator[BinaryIO]:
        """See `Store`."""
        draft = UnfinishedFile(_drafts())
        try:
            yield draft.file
            draft.file.flush()
            self.put(draft.name, location)
        finally:
            draft.discard()

    def publish(self, file: Path, location: Location) -> None:
        """See `Store`."""
        self.put(file, location)
        file.unlink(missing_ok=True)

    def remove_leftovers(self, folder: Location) -> None:
        """See `Store`."""
        for entry, is_folder in self.list_folder(folder):
            if not is_folder and entry.name.startswith(".") and entry.name.endswith(LEFTOVER_SUFFIX):
                self.remove(entry)
        with contextlib.suppress(PermissionError):  # another user's
            remove_leftovers_of(_drafts())


def _drafts() -> Path:
    """What the drafts of files to be put elsewhere are named after, in this machine's temporary folder."""
    return Path(tempfile.gettempdir()) / "webtext-upload"


# Asking


Value = TypeVar("Value")

EXTRAS = {
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gcs"),
    **dict.fromkeys(("az", "abfs", "abfss"), "azure"),
}
"""The extra of this package with the client of an object store, by protocol."""
HOW_TO_SIGN_IN = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or run where a role gives them",
    "gcs": "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS",
    "azure": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or AZURE_STORAGE_CONNECTION_STRING",
}
"""What to do without credentials, by extra."""

AGAIN = 3
"""How often a request is made whose answer was cut in its body: obstore itself goes on with objects only."""

_SENTENCES: tuple[tuple[str, type[StorageError], str], ...] = (
    (
        "NoSuchBucket|ContainerNotFound",
        StorageError,
        "there is no bucket for {place}: check its name, or make it first.",
    ),
    (
        r"ExpiredToken\w*|RequestExpired|TokenRefreshRequired|InvalidToken|TokenRetrievalError|\w*SSOToken\w*"
        "|RefreshError|invalid_grant",
        StorageError,
        "the credentials for {place} have expired: renew them, and run the same command again, it resumes.",
    ),
    (
        r"\w*CredentialsError|CredentialRetrievalError|ProfileNotFound|CredentialsMissing",
        StorageError,
        "there are no credentials for {place}: {how}.",
    ),
    (
        "InvalidAccessKeyId|SignatureDoesNotMatch|InvalidSecurity|AuthenticationFailed",
        StorageError,
        "the credentials for {place} are not known there ({found}): {how}.",
    ),
    (
        "RequestTimeTooSkewed",
        StorageError,
        "this machine's clock is wrong, and {place} takes no request from it: set the clock.",
    ),
    (
        "PermanentRedirect|AuthorizationHeaderMalformed|IllegalLocationConstraintException|301",
        StorageError,
        "the bucket of {place} lies in another region ({found}): name it in AWS_DEFAULT_REGION, or in "
        "AWS_ENDPOINT_URL for a storage system of your own.",
    ),
    (
        "Connect|ConnectionRefusedError|gaierror",
        StorageBusyError,
        "no connection to the storage of {place}: check the network and the endpoint (AWS_ENDPOINT_URL for s3://), "
        "then run the same command again, it resumes.",
    ),
    (
        r"SlowDown|ServerBusy|InternalError|OperationTimedOut|RequestTimeout|OperationAborted|408|409|429|5\d\d|Timeout"
        "|ConditionalRequestConflict|BadDigest|IncompleteBody|Interrupted|Request|Decode|Body|ConnectionError"
        "|TimeoutError|FSTimeoutError|ClientPayloadError|ClientConnectionError",
        StorageBusyError,
        "the storage of {place} did not answer as it should ({found}), however often it was asked: wait a while, then "
        "run the same command again, it resumes.",
    ),
)
"""What users read about an error that has one of these words; the first that fits."""


def words_of(error: BaseException) -> list[str]:
    """What tells an error apart: S3's code, HTTP status, what a connection broke at, and the names of exceptions."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__
    text = "\n".join(map(str, chain))
    # What machines with a role are asked for.
    asked = re.search(r"Error performing \w+ http://(169\.254|metadata)|Account must be specified", text)
    words = ["CredentialsMissing"] if asked else []
    words += re.findall(r"<Code>(\w+)</Code>", text)[:1]
    words += ["301"] if "redirect without LOCATION" in text else re.findall(r"status code: (\d{3})", text)[:1]
    words += re.findall(r"HttpError \{\s+kind: (\w+)", text)[:1] + re.findall(r"\b\w+(?:Error|NotFound)(?=[:(])", text)
    return words + [kind.__name__ for found in chain for kind in type(found).__mro__]


def explained(error: Exception, url: Url) -> Exception:
    """What users read about `error`, which a request for `url` ended in: an OSError of the kind that `open` raises.

    A StorageBusyError may pass if one asks again.
    """
    if isinstance(error, StorageError | FileExistsError):
        return error
    place, words = hide_credentials(str(url)), words_of(error)
    if {"PreconditionError", "AlreadyExistsError"} & {*words} and "OperationAborted" not in words:
        return FileExistsError(errno.EEXIST, "another version is there", place)
    how = HOW_TO_SIGN_IN.get(EXTRAS.get(url.protocol, ""), "see the documentation of its fsspec package")
    for pattern, kind, sentence in _SENTENCES:
        if found := next((word for word in words if re.fullmatch(pattern, word)), None):
            return kind(sentence.format(place=place, how=how, found=found))
    if isinstance(error, FileNotFoundError) or "404" in words:
        return FileNotFoundError(errno.ENOENT, "No such file or directory", place)
    if {"PermissionError", "PermissionDeniedError", "UnauthenticatedError", "401", "403"} & {*words}:
        return PermissionError(errno.EACCES, "Permission denied", place)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EISDIR, errno.ENOTDIR):
        return error
    reason = getattr(error, "strerror", None) or (str(error) or type(error).__name__).splitlines()[0]
    return OSError(errno.EIO, hide_credentials(reason.rstrip(".")), place)


def ask(url: Url, call: Callable[[], Value]) -> Value:
    """What `call()`, a request for `url`, returns. Raises OSError as `explained` says.

    Clients written in Rust hear no Ctrl-C while they try again: this process's first thread waits for another one.
    """
    is_first = threading.current_thread() is threading.main_thread()
    for _ in range(AGAIN):
        try:
            return in_background(call).result() if is_first else call()
        except Exception as error:
            caught = error
            if not {"Interrupted", "RequestTimeout"} & {*words_of(error)}:
                break
    raise explained(caught, url) from caught


def in_background(call: Callable[[], Value]) -> Future[Value]:
    """What a call returns or raises; a process that ends does not wait for it."""
    future: Future[Value] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name="storage", daemon=True).start()
    return future
