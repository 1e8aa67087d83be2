"""Asking a storage system: waiting for the answer so that Ctrl-C is heard, and sentences about what goes wrong.

Clients of storage systems have errors of their own. They are recognised by what they have in common, so that no client
needs to be imported: the code in the answer (S3's `SlowDown`), its HTTP status, and the names of the exceptions.
"""

from __future__ import annotations

import errno
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from command_kit import hide_credentials
from webtext_prep.errors import StorageBusyError, StorageError
from webtext_prep.storage.locations import Url

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
"""Attempts at a request whose answer was cut in its body: obstore itself goes on with objects only."""

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
    words += re.findall(r"^(\d{3}), message=", text, re.MULTILINE)[:1]  # aiohttp's, below fsspec's FileNotFoundError
    words += re.findall(r"HttpError \{\s+kind: (\w+)", text)[:1] + re.findall(r"\b\w+(?:Error|NotFound)(?=[:(])", text)
    return words + [kind.__name__ for found in chain for kind in type(found).__mro__]


def no_path(url: Url, key: str) -> StorageError:
    """The error of a folder with a key that can't be the name of a file."""
    return StorageError(
        f"{hide_credentials(str(url))} holds a key with an empty part, '.', '..' or a control character in it "
        f"({key!a}), which is no path: rename it, or give the other files by name."
    )


def explained(error: Exception, url: Url) -> Exception:
    """What users read about `error`, which a request for `url` ended in: an OSError of the kind that `open` raises.

    A StorageBusyError may pass if one asks again.
    """
    if isinstance(error, StorageError | FileExistsError):
        return error
    place, words = hide_credentials(str(url)), words_of(error)
    if {"PreconditionError", "AlreadyExistsError"} & {*words} and "OperationAborted" not in words:
        return FileExistsError(errno.EEXIST, "another version is there", place)
    if odd := re.search(
        r'with invalid path: .*?"([^"]*)"', str(error), re.DOTALL
    ):  # obstore 0.12 lists no folder of such a key
        return no_path(url, odd[1])
    how = HOW_TO_SIGN_IN.get(EXTRAS.get(url.protocol, ""), "see the documentation of its fsspec package")
    for pattern, kind, sentence in _SENTENCES:
        if found := next((word for word in words if re.fullmatch(pattern, word)), None):
            return kind(sentence.format(place=place, how=how, found=found))
    if {"PermissionError", "PermissionDeniedError", "UnauthenticatedError", "401", "403"} & {*words}:
        return PermissionError(errno.EACCES, "Permission denied", place)
    if isinstance(error, FileNotFoundError) or "404" in words:
        return FileNotFoundError(errno.ENOENT, "No such file or directory", place)
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
