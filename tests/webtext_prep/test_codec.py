"""Calls, tasks, results and errors as JSON: what comes back is what was sent, and files can't name anything else."""

import json
import re
from pathlib import Path

import practice_calls
import practice_stages
import pytest

from webtext_prep.errors import InputError, WebtextError
from webtext_prep.running import codec
from webtext_prep.running.tasks import Files, Task
from webtext_prep.storage import location


def there_and_back(value):
    return codec.decode(json.loads(json.dumps(codec.encode(value))))


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, 2.5, float("inf"), "text \u00e9\ud800", [1, [2]], (1, (2, [3])), {"a": {"b": (1,)}},
        {1: "one", (2, 3): "two"}, {"@": "path", "value": 3}, Path("a/b"), [Path("/c")],
        Task("one", Files(a=Path("in")), Files(b=Path("out")), {"range": (1, 2)}, {"tasks": [Task("two")]}, key="key"),
        practice_stages.Shout(mark="?"),
    ],
)  # fmt: skip
def test_what_comes_back_is_what_was_sent(value):
    found = there_and_back(value)
    assert found == value
    assert type(found) is type(value)


def test_a_url_comes_back_as_one():
    assert there_and_back(location("memory://bucket/file")) == location("memory://bucket/file")


def test_calls_are_functions_or_methods_with_the_settings_of_their_stage():
    assert there_and_back(practice_calls.square) is practice_calls.square
    call = there_and_back(practice_stages.Shout(mark="?").process_shard)
    assert call.__func__ is practice_stages.Shout.process_shard
    assert call.__self__ == practice_stages.Shout(mark="?")


@pytest.mark.parametrize("value", [lambda: None, object(), b"bytes", {1, 2}, Path, len, "text".upper])
def test_what_cannot_travel_is_refused(value):
    with pytest.raises(TypeError, match="can't be"):
        codec.encode({"value": value})


@pytest.mark.parametrize(
    "value",
    [
        {"@": "function", "value": "os:system"},  # built in
        {"@": "function", "value": "subprocess:Popen"},
        {"@": "object", "class": "subprocess:Popen", "value": {"args": ["true"]}},
        {"@": "object", "class": "practice_calls:square", "value": {}},
        {"@": "method", "name": "__class__", "value": codec.encode(practice_stages.Shout())},
        {"@": "method", "name": "write_text", "value": {"@": "path", "value": "x"}},
        {"@": "pickle", "value": "x"},
        {"@": "path"},
        {"@": "function", "value": "practice_calls:none"},
        {"@": ["path"], "value": "x"},
    ],
)
def test_a_file_names_nothing_but_functions_methods_and_dataclasses(value):
    with pytest.raises(ValueError, match="not"):
        codec.decode([value])


@pytest.mark.parametrize(
    "error",
    [InputError("the file is bad."), KeyError("bug"), OSError(28, "No space left"), OSError(2, "No file", "a/b")],
)
def test_an_exception_comes_back_as_it_is_with_its_traceback(error):
    def fail():
        raise error

    with pytest.raises(type(error)) as caught:
        fail()
    found = codec.decode_error(json.loads(json.dumps(codec.encode_error(caught.value))))
    assert type(found) is type(error)
    assert found.args == error.args
    assert str(found) == str(error)
    assert "Traceback" in found.__notes__[-1]
    assert "in fail" in found.__notes__[-1]


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (practice_calls.Unpicklable(1, 2), "internal error: Unpicklable: just one (run again"),
        (practice_calls.Speechless(), "internal error: Speechless (run again"),
        (SystemExit(3), "internal error: a task ended its process with exit code 3."),
    ],
)
def test_an_exception_that_cannot_travel_is_named(error, sentence):
    found = codec.decode_error(json.loads(json.dumps(codec.encode_error(error))))
    assert type(found) is WebtextError
    assert re.match(re.escape(sentence), str(found))


def test_an_error_file_names_nothing_but_exceptions():
    with pytest.raises(ValueError, match="not an exception"):
        codec.decode_error({"class": "subprocess:Popen", "arguments": codec.encode((["true"],)), "notes": []})
