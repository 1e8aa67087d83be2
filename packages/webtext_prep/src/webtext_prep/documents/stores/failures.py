"""What goes wrong between here and a storage system: which errors may pass if one asks again, and sentences for users.

Each system's client has exceptions of its own. They are told apart by what they have in common, names and codes, so
that no client needs to be imported: the answer's code (S3's `SlowDown`), the HTTP status, the exception's class.
"""

from __future__ import annotations

import errno
import itertools
import random
import time
from collections.abc import Callable
from typing import Any, TypeVar

from command_kit import hide_credentials
from webtext_prep.errors import StorageBusyError, StorageError

Value = TypeVar("Value")

ATTEMPTS = 9
"""How often a request is tried that fails by what may pass: for some 45 seconds at most."""
CONNECT_ATTEMPTS = 5
"""And one for which there is no connection at all: for some three seconds."""
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 20.0

_PASSING_CODES = {
    *("SlowDown", "ServiceUnavailable", "InternalError", "InternalServerError", "ServerBusy", "OperationTimedOut"),
    *("RequestTimeout", "RequestTimeoutException", "RequestLimitExceeded", "BandwidthLimitExceeded"),
    *("Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled", "TooManyRequestsException"),
    *("OperationAborted", "ConditionalRequestConflict", "XAmzContentSHA256Mismatch", "BadDigest", "IncompleteBody"),
}
_PASSING_STATUS = {408, 429, 500, 502, 503, 504}
_PASSING_CLASSES = {
    *("HTTPClientError", "IncompleteRead", "IncompleteReadError", "ResponseStreamingError", "ResponseParserError"),
    *("FSTimeoutError", "ClientPayloadError", "ClientConnectionError", "FlexibleChecksumError", "ChecksumError"),
    *("ConnectionClosedError", "ServiceRequestError", "ServiceResponseError", "TransportError"),
}
_NO_CONNECTION = {"EndpointConnectionError", "ConnectTimeoutError", "ConnectionRefusedError", "gaierror"}
_NO_CREDENTIALS = {
    *("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound"),
    *("DefaultCredentialsError", "CredentialUnavailableError"),
}
_REFUSED = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidSecurity"}
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired", "InvalidToken"}
_EXPIRED_CLASSES = {
    *("TokenRetrievalError", "UnauthorizedSSOTokenError", "SSOTokenLoadError"),
    *("RefreshError", "ClientAuthenticationError"),
}
_ELSEWHERE = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "301"}

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


def code_of(error: BaseException) -> str:
    """The code of a storage system's answer, such as `NoSuchBucket`, or its HTTP status; empty if there was none."""
    for found in _chain(error):
        response = getattr(found, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
        code = getattr(found, "error_code", None) or getattr(found, "code", None)
        if isinstance(code, str | int):
            return str(getattr(code, "value", code))
    return ""


def condition_failed(error: BaseException) -> bool:
    """Whether a request was refused since the file there is not the one that it names."""
    return isinstance(error, FileExistsError) or code_of(error) in ("PreconditionFailed", "412", "ConditionNotMet")


def _chain(error: BaseException | None) -> list[BaseException]:
    """The error, and those that it was made of."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or (error.__context__ if isinstance(error, OSError) else None)
    return found


def _classes(error: BaseException) -> set[str]:
    """The names of its classes, and of those that it was made of."""
    return {kind.__name__ for found in _chain(error) for kind in type(found).__mro__}


def _status(error: BaseException) -> int:
    for found in _chain(error):
        response = getattr(found, "response", None)
        if isinstance(response, dict):
            return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        for status in (getattr(found, "status_code", None), getattr(found, "code", None)):
            if isinstance(status, int):
                return status
    return 0


def explained(error: Exception, url: str, protocol: str) -> Exception:
    """What users are told of `error`, which a request for `url` ended in: an OSError of the kind that `open` raises.

    A StorageBusyError may pass if one asks again.
    """
    if isinstance(error, StorageError):
        return error
    place = hide_credentials(url)
    code, classes = code_of(error), _classes(error)
    if code == "NoSuchBucket" or "ContainerNotFound" in code:
        return StorageError(f"there is no bucket for {place}: check its name, or make it first.")
    if condition_failed(error):
        return FileExistsError(errno.EEXIST, "another version is there", place)
    if code in _EXPIRED or classes & _EXPIRED_CLASSES:
        return StorageError(
            f"the credentials for {place} have expired: renew them, and run the same command again, it resumes."
        )
    how = HOW_TO_SIGN_IN.get(EXTRAS.get(protocol, ""), "see the documentation of its fsspec package")
    if classes & _NO_CREDENTIALS:
        return StorageError(f"there are no credentials for {place}: {how}.")
    if code in _REFUSED:
        return StorageError(f"the credentials for {place} are not known there ({code}): {how}.")
    if code == "RequestTimeTooSkewed":
        return StorageError(f"this machine's clock is wrong, and {place} takes no request from it: set the clock.")
    if code in _ELSEWHERE:
        return StorageError(
            f"the bucket of {place} lies in another region ({code}): name it in AWS_DEFAULT_REGION, or in "
            "AWS_ENDPOINT_URL for a storage system of your own."
        )
    if classes & _NO_CONNECTION:
        return StorageBusyError(
            f"no connection to the storage of {place} ({_reason(error)}): check the network and the endpoint "
            "(AWS_ENDPOINT_URL for s3://), then run the same command again, it resumes."
        )
    if code in _PASSING_CODES or _status(error) in _PASSING_STATUS or classes & _PASSING_CLASSES or _is_cut(error):
        return StorageBusyError(
            f"the storage of {place} did not answer as it should ({code or _reason(error)}), however often it was "
            "asked: wait a while, then run the same command again, it resumes."
        )
    if isinstance(error, FileNotFoundError) or code in ("404", "NoSuchKey", "BlobNotFound"):
        return FileNotFoundError(errno.ENOENT, "No such file or directory", place)
    if isinstance(error, PermissionError) or code in ("403", "AccessDenied", "AuthorizationPermissionMismatch"):
        return PermissionError(errno.EACCES, "Permission denied", place)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EISDIR, errno.ENOTDIR):
        return error
    return OSError(errno.EIO, hide_credentials(_reason(error)), place)


def _is_cut(error: BaseException) -> bool:
    return isinstance(error, ConnectionError | TimeoutError)


def _reason(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).splitlines()[0].rstrip(".")


def attempt(call: Callable[..., Value], *arguments: Any, url: str, protocol: str) -> Value:
    """What `call(*arguments)`, a request for `url`, returns. It is tried again, ever later, if what failed may pass.

    Raises OSError as `explained` says.
    """
    for tried in itertools.count(1):
        try:
            return call(*arguments)
        except Exception as error:
            found = explained(error, url, protocol)
            most = CONNECT_ATTEMPTS if _classes(error) & _NO_CONNECTION else ATTEMPTS
            if not isinstance(found, StorageBusyError) or tried >= most:
                raise found from error
        pause(tried)
    raise AssertionError


def pause(tried: int) -> None:
    """Wait before another attempt, at random between half of a time and all of it, which doubles each time."""
    time.sleep(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (tried - 1)) * random.uniform(0.5, 1))
