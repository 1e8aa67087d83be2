"""Errors as OpenAI's API has them: an HTTP status, and JSON that says what is wrong, and with which parameter."""

from __future__ import annotations

import msgspec
from starlette.responses import Response


class ApiError(Exception):
    """What a client is answered instead of a text.

    Attributes:
        status: the HTTP status.
        message: one sentence: what was found, and what to do.
        param: the parameter that is wrong, if one is.
        code: a word that programs can compare.
        headers: further headers of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = headers or {}

    @property
    def kind(self) -> str:
        """OpenAI's `type` of the error."""
        if self.status == 429:
            return "rate_limit_error"
        return "invalid_request_error" if self.status < 500 else "server_error"

    def as_json(self) -> bytes:
        """The body of the answer."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})

    def response(self) -> Response:
        """The answer."""
        return Response(self.as_json(), self.status, self.headers, "application/json")


def wrong(param: str, message: str, code: str | None = None) -> ApiError:
    """A 400 for a parameter that can't be used."""
    return ApiError(400, message, param=param, code=code)
