"""`gpt2 serve` as OpenAI's client and other programs meet it: texts, errors, limits, load, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
from tests.gpt2_train import forks
from tests.gpt2_train.conftest import read_until
from tests.gpt2_train.served import NAME, PATIENCE, Served, openai, served
from tests.gpt2_train.small_models import BYTES, END, byte_tokenizer, constant_model, random_model, save

from gpt2_train.cli import main
from gpt2_train.config.errors import Gpt2Error, Gpt2UsageError
from gpt2_train.inference.engine import GenerationRequest
from gpt2_train.inference.generator import Encoder, TextGenerator, TextSession
from gpt2_train.inference.model import open_model
from gpt2_train.inference.sampling import Sampling
from gpt2_train.serving import app, command
from gpt2_train.serving import server as server_module
from gpt2_train.serving.command import ServeSettings, address, given_token, is_loopback, model_name
from gpt2_train.serving.completions import Limits, read_request
from gpt2_train.serving.middleware import MOST_BODY_BYTES, ApiError
from gpt2_train.serving.server import bound_socket

BYTES_OF = byte_tokenizer()
ENDLESS = {"max_tokens": 1_000_000, "extra_body": {"ignore_eos": True}}
"""For texts that last until the test ends them."""


@pytest.fixture(scope="module")
def api(run_folder: Path) -> Iterator[Served]:
    with served(run_folder, batch_size=16, queue=256, max_tokens=1_000_000) as found:
        yield found


@pytest.fixture(scope="module")
def client(api: Served) -> Iterator[openai.OpenAI]:
    with api.client() as client:
        yield client


def generated(run_folder: Path, requests: list[GenerationRequest]) -> list[str]:
    """What `gpt2 generate` writes."""
    return [text.text for text in TextGenerator(open_model(run_folder, device="cpu"), 16).generate(requests)]


def test_the_model_is_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).id == NAME
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_a_text_is_that_of_gpt2_generate(
    client: openai.OpenAI, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = "--tokens 20 --samples 2 --temperature 0.9 --top-k 50 --top-p 0.95 --seed 7 --device cpu --threads 1 --json"
    assert main(["generate", "--checkpoint", str(run_folder), "--prompt", "ab", "cd", *flags.split()]) == 0
    expected = [sample["text"] for sample in json.loads(capsys.readouterr().out)["samples"]]
    sampling: dict[str, Any] = {"temperature": 0.9, "top_p": 0.95, "seed": 7, "extra_body": {"top_k": 50}}
    found = client.completions.create(model=NAME, prompt=["ab", "cd"], n=2, max_tokens=20, **sampling)
    assert [choice.text for choice in found.choices] == expected
    assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
    assert found.usage is not None
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (4, 80)
    assert {choice.finish_reason for choice in found.choices} == {"length"}


def test_a_stream_is_the_text_in_pieces(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": NAME, "prompt": "ab", "n": 2, "max_tokens": 12, "seed": 3}
    whole = client.completions.create(**asked)
    chunks = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    pieces = [chunk.choices[0] for chunk in chunks[:-1]]
    assert len(pieces) > 2
    for choice in whole.choices:
        own = [piece for piece in pieces if piece.index == choice.index]
        assert "".join(piece.text for piece in own) == choice.text
        assert [piece.finish_reason for piece in own] == [None] * (len(own) - 1) + [choice.finish_reason]
    assert {chunk.id for chunk in chunks} == {chunks[0].id}


def test_without_a_seed_texts_differ_and_with_one_they_repeat(client: openai.OpenAI) -> None:
    def ask(**more: Any) -> str:
        return client.completions.create(model=NAME, prompt="ab", max_tokens=30, **more).choices[0].text

    assert ask(seed=5) == ask(seed=5)
    assert ask() != ask()


def test_defaults_are_those_of_openai(client: openai.OpenAI) -> None:
    found = client.completions.create(model=NAME, prompt="ab", extra_body={"ignore_eos": True})
    assert found.usage is not None
    assert found.usage.completion_tokens == 16
    assert found.choices[0].logprobs is None


def test_a_stop_sequence_ends_a_text_before_it(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": NAME, "prompt": "ab", "max_tokens": 30, "seed": 11, "logprobs": 0}
    whole = client.completions.create(**asked).choices[0].text
    stop = whole[8:10]
    cut = client.completions.create(**asked, stop=["never there", stop]).choices[0]
    assert (cut.text, cut.finish_reason) == (whole[: whole.index(stop)], "stop")
    assert cut.logprobs is not None and cut.logprobs.token_logprobs is not None
    assert len(cut.logprobs.token_logprobs) < 30
    streamed = client.completions.create(**asked, stop=stop, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == cut.text


def test_the_end_of_a_text_is_a_stop(tmp_path: Path) -> None:
    with served(save(tmp_path, constant_model({END: 0.0}))) as api, api.client() as client:
        found = client.completions.create(model=NAME, prompt="ab", logprobs=1)
        assert (found.choices[0].text, found.choices[0].finish_reason) == ("", "stop")
        assert found.choices[0].logprobs is not None
        assert found.choices[0].logprobs.tokens == ["<|endoftext|>"]
        assert found.usage is not None and found.usage.completion_tokens == 1


def test_logprobs_are_the_models_own(client: openai.OpenAI) -> None:
    choice = client.completions.create(model=NAME, prompt="ab", max_tokens=10, temperature=0, logprobs=3).choices[0]
    found = choice.logprobs
    assert found is not None and found.token_logprobs and found.top_logprobs and found.tokens and found.text_offset
    model, seen = random_model(), [97, 98]
    for token, logprob, top in zip(found.tokens, found.token_logprobs, found.top_logprobs, strict=True):
        with torch.inference_mode():
            expected = model(torch.tensor([seen]))[0, -1, : BYTES.vocabulary_size].log_softmax(0)
        assert len(top) == 3
        assert max(top, key=top.__getitem__) == token
        assert top[token] == logprob == pytest.approx(float(expected.max()), abs=1e-4)
        seen.append(int(expected.argmax()))
    assert found.text_offset[0] == 0
    assert all(0 <= offset <= len(choice.text) for offset in found.text_offset)
    # A byte that is no character has a name of its own.
    assert any(token.startswith("bytes:\\x") for token in found.tokens)
    assert len(set(found.tokens)) == len(set(seen[2:]))


def test_streamed_logprobs_are_those_of_the_whole(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": NAME, "prompt": "ab", "max_tokens": 10, "seed": 2, "logprobs": 2}
    whole = client.completions.create(**asked).choices[0].logprobs
    assert whole is not None
    parts = [chunk.choices[0].logprobs for chunk in client.completions.create(**asked, stream=True)]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [entry for part in parts if part for entry in getattr(part, name)] == getattr(whole, name)


def test_prompts_may_be_token_ids_or_nothing(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": NAME, "max_tokens": 8, "seed": 4, "temperature": 0.7}

    def ask(prompt: Any) -> list[str]:
        return [choice.text for choice in client.completions.create(prompt=prompt, **asked).choices]

    assert ask([97, 98]) == ask("ab") == ask(["ab"]) == ask([[97, 98]])
    assert ask([[97, 98], [99]]) == [*ask("ab"), *ask("c")]
    assert ask("") == ask([END])
    # The same prompt twice is two texts, as two samples of it are.
    twice = ask(["ab", "ab"])
    assert twice[0] != twice[1]


def test_echo_begins_a_text_with_its_prompt(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": NAME, "prompt": ["ab", "c"], "max_tokens": 4, "seed": 4}
    plain = [choice.text for choice in client.completions.create(**asked).choices]
    echoed = client.completions.create(**asked, echo=True).choices
    assert [choice.text for choice in echoed] == ["ab" + plain[0], "c" + plain[1]]
    streamed = ["", ""]
    for chunk in client.completions.create(**asked, echo=True, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == ["ab" + plain[0], "c" + plain[1]]


def test_top_p_0_takes_the_likeliest_token(client: openai.OpenAI) -> None:
    """OpenAI's API takes it so, and the server refused it."""
    asked: dict[str, Any] = {"model": NAME, "prompt": "ab", "max_tokens": 8}
    greedy = client.completions.create(**asked, temperature=0).choices[0].text
    assert client.completions.create(**asked, temperature=2, top_p=0).choices[0].text == greedy


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1_000_001}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 273}, "n"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": 1, "echo": True}, "echo"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"best_of": 3}, "best_of"),
        ({"suffix": "the end"}, "suffix"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [257]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": ["a"] * 273}, "prompt"),
        ({"prompt": "a" * 17}, "prompt"),
        ({"promt": "a"}, "promt"),
    ],
)
def test_what_cant_be_served_is_refused_by_name(api: Served, body: dict[str, Any], param: str) -> None:
    answer = api.post({"prompt": "a", **body})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["type"]) == (400, param, "invalid_request_error"), error
    assert error["message"].endswith(".")


def test_a_prompt_beyond_the_model_has_openais_code(client: openai.OpenAI) -> None:
    short = {"extra_body": {"truncate_prompt_tokens": 2}}
    asked: dict[str, Any] = {"model": NAME, "max_tokens": 4, "seed": 1}
    cut = client.completions.create(prompt="a" * 17 + "b", **asked, **short)
    assert cut.choices[0].text == client.completions.create(prompt="ab", **asked).choices[0].text
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(model=NAME, prompt="a" * 17)
    assert raised.value.code == "context_length_exceeded"
    assert "17 tokens" in raised.value.message


@pytest.mark.parametrize("more", [{}, {"truncate_prompt_tokens": 2}])
@pytest.mark.parametrize("prompt", ["a" * 3_900_000, [97] * 1_900_000])
def test_a_prompt_of_megabytes_is_refused_before_its_tokens_are_looked_for(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, prompt: Any, more: dict[str, int]
) -> None:
    """Its tokens took seconds, which all others waited for."""
    encoder = Encoder(open_model(run_folder, device="cpu").stored)
    for name in ("encode", "check_tokens"):
        monkeypatch.setattr(encoder, name, lambda given: pytest.fail("looked for tokens"))
    body = json.dumps({"prompt": prompt, **more}).encode()
    with pytest.raises(ApiError) as raised:
        read_request(body, encoder, NAME, Limits(tokens=16, request_tokens=16, positions=1024, texts=1))
    assert raised.value.code == "context_length_exceeded"
    size = "3,900,000 bytes" if isinstance(prompt, str) else "1,900,000 tokens"
    assert f"the prompt has {size}, but the model sees at most 1,024 tokens" in raised.value.message


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'"text"', b'{"prompt": "\\ud800"}', b"[" * 100_000, b"\xff"])
def test_a_body_that_is_no_json_object_is_refused(api: Served, content: bytes) -> None:
    answer = api.post(content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert "JSON" in answer.json()["error"]["message"]


def test_other_requests_get_errors_in_the_same_shape(api: Served) -> None:
    found = {
        "model": api.post({"model": "other", "prompt": "a"}),
        "form": api.post(data={"prompt": "a"}),
        "large": api.post(content=b" " * (MOST_BODY_BYTES + 1), headers={"Content-Type": "application/json"}),
        "chat": httpx2.post(f"{api.url}/v1/chat/completions", json={}),
        "method": httpx2.get(f"{api.url}/v1/completions"),
        "host": httpx2.get(f"{api.url}/v1/models", headers={"Host": "rebound.example:8000"}),
    }
    statuses = {name: answer.status_code for name, answer in found.items()}
    assert statuses == {"model": 404, "form": 415, "large": 413, "chat": 404, "method": 405, "host": 403}
    for answer in found.values():
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert "access-control-allow-origin" not in answer.headers


def test_hosts_of_this_machine_are_answered(run_folder: Path, api: Served) -> None:
    for host in ("localhost", "LOCALHOST:80", "127.0.0.1", "[::1]:8000"):
        assert httpx2.get(f"{api.url}/health", headers={"Host": host}).status_code == 200
    assert httpx2.get(api.url, headers={"Host": "writer.example"}).status_code == 403
    with served(run_folder, allow_host=("Writer.example",)) as other:
        assert httpx2.get(other.url, headers={"Host": "writer.example"}).status_code == 200


def test_a_token_is_needed_where_one_is_set(run_folder: Path) -> None:
    with served(run_folder, token="sesame") as api:
        with api.client() as client:
            assert client.completions.create(model=NAME, prompt="ab").choices[0].text
        for headers in ({}, {"Authorization": "Bearer sesam"}, {"Authorization": "Basic sesame"}):
            answer = api.post({"prompt": "a"}, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        with api.client().with_options(api_key="other") as client, pytest.raises(openai.AuthenticationError):
            client.models.list()
        # The page has nothing secret, and asks for the token itself.
        assert httpx2.get(api.url).status_code == api.health()["status"].count("ok") * 200 == 200


def test_a_token_is_made_where_others_can_ask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(command.TOKEN_VARIABLE, raising=False)
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "example.com")] == [
        True, True, True, False, False,
    ]  # fmt: skip
    assert given_token(ServeSettings()) is None
    assert given_token(ServeSettings(token="own")) == "own"
    monkeypatch.setenv(command.TOKEN_VARIABLE, "of the environment")
    with pytest.raises(Gpt2UsageError, match=command.TOKEN_VARIABLE):
        given_token(ServeSettings())
    with pytest.raises(Gpt2UsageError, match="--token"):
        ServeSettings(token="é")


def test_only_a_new_token_is_printed(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for given in (None, None, "sesame"):
        asked = ServeSettings(checkpoint=str(run_folder), host="0.0.0.0", token=given, device="cpu")
        with contextlib.closing(bound_socket("127.0.0.1", 0)) as listener:
            server = command.make_server(asked, listener, open_model(run_folder, device="cpu"))
            server.on_ready()
        printed += re.findall(r" at http://\S+/(\S*) \(", capsys.readouterr().err)
    assert printed[0] != printed[1] and all(re.fullmatch(r"#token=[\w-]{32}", part) for part in printed[:2])
    assert printed[2:] == [""]


def test_names_and_addresses(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "first"
    places = (run, run / "checkpoints", run / "checkpoints" / "step-0000007")
    assert {model_name(str(place)) for place in places} == {"first"}
    assert model_name(str(tmp_path / "quickstart" / "model" / "checkpoints" / "step-0000010")) == "quickstart"
    with bound_socket("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert address(ServeSettings(), listener, None) == f"http://127.0.0.1:{port}/"
        assert address(ServeSettings(host="::1"), listener, "a+/b") == f"http://[::1]:{port}/#token=a%2B%2Fb"
        with pytest.raises(Gpt2UsageError, match=f"port {port}"):
            bound_socket("127.0.0.1", port)


@pytest.mark.exhaustive
def test_two_hundred_requests_at_once(api: Served, run_folder: Path) -> None:
    """Half of them streams; each gets the text that it gets alone. Some leave before the end, and their rows go on."""
    count = 200

    async def ask(client: openai.AsyncOpenAI, number: int) -> str | None:
        asked: dict[str, Any] = {
            "model": NAME, "prompt": f"no {number}", "seed": number, "temperature": 0.8,
            "max_tokens": 5 + number % 7, "extra_body": {"ignore_eos": True},
        }  # fmt: skip
        if number % 20 == 5:
            async with await client.completions.create(**{**asked, "max_tokens": 1_000_000}, stream=True) as stream:
                await anext(aiter(stream))
            return None
        if number % 2:
            stream = await client.completions.create(**asked, stream=True)
            return "".join([chunk.choices[0].text async for chunk in stream])
        return (await client.completions.create(**asked)).choices[0].text

    async def ask_all() -> list[str | None]:
        limits = httpx2.Limits(max_connections=count)
        http = openai.DefaultAsyncHttpxClient(limits=limits, timeout=PATIENCE)
        async with openai.AsyncOpenAI(
            base_url=f"{api.url}/v1", api_key="none", max_retries=0, http_client=http
        ) as client:
            return await asyncio.gather(*(ask(client, number) for number in range(count)))

    found = asyncio.run(ask_all())
    same: dict[str, Any] = {"sampling": Sampling(0.8), "ignore_end": True}
    requests = [GenerationRequest(f"no {n}", tokens=5 + n % 7, seed=n, **same) for n in range(count)]
    expected = generated(run_folder, requests)
    assert [text for text in found if text is not None] == [text for n, text in enumerate(expected) if n % 20 != 5]
    assert found.count(None) == 10
    assert api.wait_for(lambda health: health["writing"] == health["waiting"] == 0)["status"] == "ok"


def test_a_cut_connection_frees_its_row(api: Served, client: openai.OpenAI) -> None:
    streams = [client.completions.create(model=NAME, prompt="ab", stream=True, **ENDLESS) for _ in range(3)]
    for stream in streams:
        next(iter(stream))
    assert api.health()["writing"] == 3
    streams[0].close()
    api.wait_for(lambda health: health["writing"] == 2)
    # A request that waits for its whole text is cut by its client, too.
    with pytest.raises(openai.APITimeoutError):
        client.completions.create(model=NAME, prompt="ab", timeout=0.3, **ENDLESS)
    api.wait_for(lambda health: health["writing"] == 2)
    for stream in streams[1:]:
        stream.close()
    api.wait_for(lambda health: health["writing"] == 0)


def test_more_texts_than_may_wait_are_refused(run_folder: Path) -> None:
    with served(run_folder, batch_size=1, queue=2, max_tokens=1_000_000) as api, api.client() as client:
        writing = client.completions.create(model=NAME, prompt="ab", stream=True, **ENDLESS)
        next(iter(writing))
        waiting = client.completions.create(model=NAME, prompt="ab", stream=True, **ENDLESS)
        health = api.wait_for(lambda health: health["waiting"] == 1)
        assert health == {"status": "ok", "writing": 1, "waiting": 1, "capacity": 3}
        # All texts of a request, or none.
        with pytest.raises(openai.RateLimitError) as raised:
            client.completions.create(model=NAME, prompt="ab", n=2)
        assert raised.value.code == "queue_full"
        assert int(raised.value.response.headers["retry-after"]) >= 1
        third = client.completions.create(model=NAME, prompt="ab", stream=True, max_tokens=1, seed=1)
        writing.close()
        waiting.close()
        assert [chunk.choices[0].finish_reason for chunk in third] == ["length"]


def test_a_request_that_waits_is_told_its_place(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In comments of its stream, which OpenAI's client skips; first in, first out."""
    monkeypatch.setattr(app, "PLACE_SECONDS", 0.01)
    asked = {"prompt": "ab", "stream": True}
    with (
        served(run_folder, batch_size=1, max_tokens=1_000_000) as api,
        api.client() as client,
        httpx2.Client(base_url=api.url, timeout=PATIENCE) as plain,
    ):
        first = client.completions.create(model=NAME, prompt="ab", stream=True, **ENDLESS)
        next(iter(first))
        second = client.completions.create(model=NAME, prompt="ab", stream=True, **ENDLESS)
        api.wait_for(lambda health: health["waiting"] == 1)
        with plain.stream("POST", "/v1/completions", json={**asked, "max_tokens": 2, "ignore_eos": True}) as third:
            lines = third.iter_lines()
            assert next(lines) == ": waiting in place 2"
            first.close()
            assert next(line for line in lines if line) == ": waiting in place 1"
            assert next(iter(second)).choices[0].text
            second.close()
            assert [line for line in lines if line][-1] == "data: [DONE]"


def test_one_request_asks_for_no_more_tokens_than_it_may(run_folder: Path) -> None:
    """A request might ask for as many of the longest texts as may wait: half a million tokens."""
    with served(run_folder, batch_size=2, queue=100, max_tokens=10) as api:
        assert api.post({"prompt": "a", "n": 2, "max_tokens": 10}).status_code == 200
        answer = api.post({"prompt": "a", "n": 3, "max_tokens": 10})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "max_tokens")
        assert "at most 20 tokens for one request" in answer.json()["error"]["message"]
    with served(run_folder, batch_size=2, max_tokens=10, max_request_tokens=50) as api:
        assert api.post({"prompt": "a", "n": 5, "max_tokens": 10}).status_code == 200


def test_a_failure_of_the_model_answers_all_and_ends_the_server(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = threading.Event()
    step = TextSession.step

    def fail(self: TextSession) -> Any:
        if failing.is_set():
            raise Gpt2Error("the model's output is not finite.")
        return step(self)

    monkeypatch.setattr(TextSession, "step", fail)
    with served(run_folder, max_tokens=1_000_000) as api, api.client() as client:
        stream = iter(client.completions.create(model=NAME, prompt="ab", stream=True, **ENDLESS))
        next(stream)
        failing.set()
        with pytest.raises(openai.APIError, match="the model failed"):
            list(stream)
    assert str(api.error) == "the model's output is not finite."


def test_a_whole_text_that_fails_is_a_500(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: TextSession) -> Any:
        raise RuntimeError("no memory")

    monkeypatch.setattr(TextSession, "step", fail)
    with served(run_folder) as api:
        answer = api.post({"prompt": "ab"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "model_failed")
    assert str(api.error) == "no memory"


def test_texts_being_written_may_end_before_the_server_does(run_folder: Path) -> None:
    with served(run_folder, stop_seconds=PATIENCE, max_tokens=1_000_000) as api, api.client() as client:
        stream = iter(client.completions.create(model=NAME, prompt="ab", stream=True, seed=1, max_tokens=300))
        next(stream)
        api.server.stop()
        assert [chunk.choices[0].finish_reason for chunk in stream][-1] in ("stop", "length")


@pytest.mark.exhaustive
def test_the_command_stops_in_the_middle_of_a_text(run_folder: Path) -> None:
    """From its start to SIGTERM: where it is, a line for each request and none of their words, exit code 0."""
    flags = "--port 0 --device cpu --threads 1 --max-tokens 10000000 --stop-seconds 0.2 --token sesame"
    words = [sys.executable, "-m", "gpt2_train", "serve", "--checkpoint", str(run_folder), *flags.split()]
    process = forks.Started(words)
    with contextlib.ExitStack() as stack:
        stack.callback(process.kill)
        lines = read_until(process, " at http")
        found = re.search(r"serving (\S+) \(.*\) at (http://127.0.0.1:(\d+)/) ", lines[-1])
        assert found and "sesame" not in "".join(lines), lines
        with openai.OpenAI(base_url=f"{found[2]}v1", api_key="sesame", max_retries=0) as client:
            asked: dict[str, Any] = {"model": found[1], "prompt": "secret", "seed": 5}
            text = client.completions.create(**asked, max_tokens=20).choices[0].text
            assert [text] == generated(run_folder, [GenerationRequest("secret", tokens=20, seed=5)])
            asked |= {"max_tokens": 10_000_000, "extra_body": {"ignore_eos": True}}
            stream = iter(client.completions.create(**asked, stream=True))
            next(stream)
            process.send_signal(signal.SIGTERM)
            with pytest.raises(openai.APIError, match="the server is stopping"):
                list(stream)
        _, rest = process.communicate()
        assert process.returncode == 0, rest
    assert re.search(r" POST /v1/completions 200 1 text, 6 tokens read, \d+ written, [\d.]+ tokens/s, ", rest), rest
    assert rest.endswith("gpt2: stopped\n")
    assert "secret" not in rest and "sesame" not in rest
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(found[3])))


FEW_FILES = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
from gpt2_train.cli import main
sys.exit(main(sys.argv[1:]))
"""
HALF_REQUESTS = (
    b"",
    b"POST /v1/completions HTTP/1.1\r\nHost: 127",
    b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{",
)


@pytest.mark.exhaustive
def test_connections_that_send_no_request_keep_nobody_out(run_folder: Path) -> None:
    """Some hundred connections without a whole request took all descriptors: the server answered nobody any more,
    logged tracebacks without end meanwhile, and took half a minute to stop."""
    flags = "--port 0 --device cpu --threads 1 --stop-seconds 0"
    words = [sys.executable, "-c", FEW_FILES, "serve", "--checkpoint", str(run_folder), *flags.split()]
    process = forks.Started(words)
    with ThreadPoolExecutor() as reader, contextlib.ExitStack() as stack:
        stack.callback(process.kill)
        lines = read_until(process, " at http")
        said = reader.submit(process.communicate)
        found = re.search(r" at http://127.0.0.1:(\d+)/ ", lines[-1])
        assert found, lines
        address = "127.0.0.1", int(found[1])
        half_open = [stack.enter_context(socket.create_connection(address)) for _ in range(300)]
        for number, connection in enumerate(half_open):
            with contextlib.suppress(ConnectionError):  # Of those that had to make room.
                connection.sendall(HALF_REQUESTS[number % 3])
        answer = httpx2.post(f"http://127.0.0.1:{found[1]}/v1/completions", json={"prompt": "ab"}, timeout=20)
        assert answer.status_code == 200
        process.send_signal(signal.SIGTERM)
        _, log = said.result(20)
        assert process.returncode == 0
    told = [line for line in log.splitlines() if not re.search(r" POST /v1/completions (200|499)", line)]
    assert len(told) == 2 and "can't serve a connection (Too many open files): the next ones wait." in told[0], told
    assert told[1] == "gpt2: stopped"


def test_a_request_whose_head_does_not_come_is_given_up(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that sent a part of a request, or a byte of it now and then, stayed open for good."""
    monkeypatch.setattr(server_module, "HEAD_SECONDS", 0.3)
    with served(run_folder) as api, socket.create_connection(("127.0.0.1", httpx2.URL(api.url).port)) as client:
        client.settimeout(PATIENCE)
        for byte in HALF_REQUESTS[1]:
            with contextlib.suppress(ConnectionError):
                client.send(bytes([byte]))
        with contextlib.suppress(ConnectionError):
            assert client.recv(1) == b""
        assert api.health()["status"] == "ok"


def test_a_signal_before_the_server_listens_to_them_ends_it(run_folder: Path) -> None:
    source = open_model(run_folder, device="cpu")
    with contextlib.closing(bound_socket("127.0.0.1", 0)) as listener:
        server = command.make_server(ServeSettings(checkpoint=str(run_folder)), listener, source)
        server.on_ready = lambda: signal.raise_signal(signal.SIGTERM)
        server.serve_until_stopped(listener)
        server.stop()
        server = command.make_server(ServeSettings(checkpoint=str(run_folder)), listener, source)
        server.stop()
        server.serve_until_stopped(listener)


def test_an_address_that_is_taken_is_one_sentence(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--checkpoint", str(run_folder), "--port", str(port)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"gpt2: error: can't listen on 127.0.0.1, port {port} (") and error.count("\n") == 1
