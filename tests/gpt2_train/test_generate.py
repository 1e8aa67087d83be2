"""`gpt2 generate`: the choice of tokens, the cache, batches, and the command as a user meets it."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import pty
import re
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from tests.gpt2_train import forks
from tests.gpt2_train.small_models import (
    BYTES,
    END,
    byte_tokenizer,
    constant_model,
    random_model,
    save,
    without_tokenizer,
)

from gpt2_train.cli import main
from gpt2_train.config.errors import Gpt2Error, Gpt2UsageError
from gpt2_train.inference import prompts
from gpt2_train.inference.command import GenerateSettings, converse, make_generator, requests_for
from gpt2_train.inference.engine import PREFILL, Engine, GenerationRequest
from gpt2_train.inference.generator import Encoder, TextGenerator
from gpt2_train.inference.kv_cache import CachedModel
from gpt2_train.inference.model import open_model
from gpt2_train.inference.prompts import prompts_of_lines
from gpt2_train.inference.sampling import Sampling, choose_tokens
from gpt2_train.model.gpt2 import GPT2
from indexed_tokens import Tokenizer

GREEDY = Sampling(temperature=0)


@pytest.fixture(scope="module")
def run_of_letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a, b and c at random, and nothing else."""
    return save(tmp_path_factory.mktemp("letters"), constant_model({97: 0.0, 98: 0.0, 99: 0.0}, others=-60.0))


def token_request(prompt: list[int], tokens: int, sampling: Sampling = GREEDY, **more: Any) -> GenerationRequest:
    """A request with the random numbers of seed 5."""
    return GenerationRequest("", tokens=tokens, sampling=sampling, seed=5, prompt_tokens=tuple(prompt), **more)


def write_ids(
    model: GPT2,
    prompts: list[list[int]],
    tokens: int,
    sampling: Sampling = GREEDY,
    *,
    end: int | None = None,
    ignore_end: bool = False,
) -> list[list[int]]:
    """The ids that follow each prompt."""
    return written(model, [token_request(p, tokens, sampling, ignore_end=ignore_end) for p in prompts], end)


def written(model: GPT2, requests: list[GenerationRequest], end: int | None = None) -> list[list[int]]:
    """The ids that follow the prompt of each request."""
    engine = Engine(CachedModel(model, len(requests)), vocabulary_size=257, end=end)
    found: dict[int, list[int]] = {engine.add(request): [] for request in requests}
    while engine.writing or engine.waiting:
        for sequence, new in engine.step():
            found[sequence.number].append(new.token)
    return list(found.values())


@torch.no_grad()
def naive_greedy(model: GPT2, prompt: list[int], tokens: int) -> list[int]:
    """The most likely token, by a full pass over the window for each."""
    limit = model.config.sequence_length
    ids, begin = list(prompt[-limit:]), 0
    for _ in range(tokens):
        if len(ids) - begin > limit:
            begin = len(ids) - max(1, limit // 2)
        ids.append(int(model(torch.tensor([ids[begin:]]))[0, -1, :257].argmax()))
    return ids[len(prompt[-limit:]) :]


# --- the choice of a token -------------------------------------------------------------------------------------------

LOGITS = torch.tensor([1.0, 3.0, -torch.inf, 2.0, 0.0])
SHARES = torch.tensor([1.0, 3.0, -torch.inf, 2.0, 0.0]).double().softmax(0).numpy()


def shares_of(sampling: Sampling, rows: int = 20_000) -> np.ndarray:
    """The share of each token among choices at evenly spaced numbers: exact to one in `rows`."""
    uniform = (torch.arange(rows, dtype=torch.float64) + 0.5) / rows
    chosen = choose_tokens(LOGITS.expand(rows, -1), uniform, sampling)
    return np.bincount(chosen.numpy(), minlength=5) / rows


def test_plain_sampling_follows_the_softmax() -> None:
    np.testing.assert_allclose(shares_of(Sampling()), SHARES, atol=1e-4)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_temperature_divides_the_logits(temperature: float) -> None:
    expected = (LOGITS.double() / temperature).softmax(0).numpy()
    np.testing.assert_allclose(shares_of(Sampling(temperature)), expected, atol=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 1e-30])
def test_no_temperature_takes_the_most_likely(temperature: float) -> None:
    assert shares_of(Sampling(temperature), 100).tolist() == [0, 1, 0, 0, 0]


def test_top_k_keeps_the_most_likely_in_their_proportion() -> None:
    expected = np.where([False, True, False, True, False], SHARES, 0)
    np.testing.assert_allclose(shares_of(Sampling(top_k=2)), expected / expected.sum(), atol=1e-4)
    np.testing.assert_allclose(shares_of(Sampling(top_k=99)), SHARES, atol=1e-4)


def test_top_p_keeps_the_fewest_that_reach_it() -> None:
    """Shares are .644, .237, .087, .032: up to .644 one is enough, for .65 it takes two."""
    kept = {0.3: 1, 0.64: 1, 0.65: 2, 0.88: 2, 0.9: 3, 0.97: 4}
    for top_p, number in kept.items():
        expected = np.where(np.sort(SHARES)[-number] <= SHARES, SHARES, 0)
        np.testing.assert_allclose(shares_of(Sampling(top_p=top_p)), expected / expected.sum(), atol=1e-4)


def test_top_p_counts_what_top_k_left() -> None:
    """Of the two most likely the first has .73: .7 is reached by it alone, though it has .644 of all."""
    assert shares_of(Sampling(top_k=2, top_p=0.7), 1000).tolist() == [0, 1, 0, 0, 0]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(top_k=3), Sampling(top_p=0.99), Sampling(1e-3)])
def test_the_extreme_random_numbers_choose_possible_tokens(sampling: Sampling) -> None:
    uniform = torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64)
    logits = torch.tensor([[-torch.inf, 1.0, 0.5, -torch.inf]]).expand(2, -1)
    assert set(choose_tokens(logits, uniform, sampling).tolist()) <= {1, 2}


# --- continuing sequences --------------------------------------------------------------------------------------------


def test_greedy_with_the_cache_is_the_most_likely_token_of_full_passes(model: GPT2) -> None:
    """Pitfall 32: there is a greedy mode."""
    for prompt in ([1], [5, 6, 7], list(range(40, 50))):
        found = write_ids(model, [prompt], 6)[0]
        assert found == naive_greedy(model, prompt, 6)
    assert len(set(found)) > 1


def test_writing_goes_on_past_the_sequence_length(model: GPT2) -> None:
    """Pitfall 32: positions never run past the model's; the last half of them becomes the past."""
    for prompt in ([1], list(range(16)), list(range(100))):
        assert write_ids(model, [prompt], 45)[0] == naive_greedy(model, prompt, 45)


def test_a_model_of_one_position_writes_too() -> None:
    model = random_model(BYTES.__class__(**{**BYTES.as_table(), "sequence_length": 1}))
    assert write_ids(model, [[3, 4]], 5)[0] == naive_greedy(model, [3, 4], 5)


def test_a_long_prompt_is_fed_in_pieces_with_the_same_result() -> None:
    config = BYTES.__class__(**{**BYTES.as_table(), "sequence_length": PREFILL})
    model = random_model(config)
    prompt = torch.randint(0, 257, (900,), generator=torch.Generator().manual_seed(2)).tolist()
    assert write_ids(model, [prompt, [5], prompt[:500]], 3)[0] == naive_greedy(model, prompt, 3)


def test_the_vocabulary_is_scored_at_the_last_position_only(model: GPT2) -> None:
    """Feeding a prompt computed the logits of all of its positions, of which only the last ones were looked at."""
    scored: list[int] = []
    hook = model.output.register_forward_hook(lambda module, arguments, logits: scored.append(logits.size(1)))
    try:
        write_ids(model, [list(range(12)), list(range(14))], 3)
    finally:
        hook.remove()
    assert set(scored) == {2}  # rows


def test_padding_is_never_written() -> None:
    """Pitfall 32: ids behind the vocabulary have no text; here they have nearly all of the probability."""
    model = constant_model(dict.fromkeys(range(257, 384), 20.0), others=0.0)
    for sampling in (GREEDY, Sampling(), Sampling(top_k=5), Sampling(top_p=0.5)):
        assert max(write_ids(model, [[1], [2, 3]], 40, sampling)[1]) < 257


def test_only_a_chosen_end_of_text_ends_a_sequence() -> None:
    """Pitfall 32: end-of-text in the prompt is not taken for padding, nor for the end."""
    letters = constant_model({97: 30.0})
    assert write_ids(letters, [[END], [END, END, 5]], 9, end=END) == [[97] * 9] * 2
    ending = constant_model({END: 30.0, 97: 20.0})
    assert write_ids(ending, [[1], [2]], 9, end=END) == [[END]] * 2
    assert write_ids(ending, [[1]], 4, end=END, ignore_end=True) == [[97] * 4]


def test_output_that_is_not_finite_is_an_error(model: GPT2) -> None:
    broken = random_model()
    with torch.no_grad():
        broken.final_norm.bias[3] = torch.nan
    with pytest.raises(Gpt2Error, match="not finite"):
        write_ids(broken, [[1]], 3)


# --- text ------------------------------------------------------------------------------------------------------------


def test_prompts_come_one_a_line() -> None:
    data = "\ufeffOne \r\n\n  two\n\nstop\n<|endoftext|>".encode()
    assert prompts_of_lines(data, "x") == ["One ", "  two", "stop", "<|endoftext|>"]
    data = b'"a\\nb"\n{"prompt": "c", "id": 3}\n'
    assert prompts_of_lines(data, "x", as_json=True) == ["a\nb", "c"]


def test_a_lone_surrogate_is_replaced_wherever_a_prompt_came_from() -> None:
    request = GenerationRequest("a\ud83d", stop=("\udcff",))
    assert (request.prompt, request.stop) == ("a" + 3 * "\ufffd", (3 * "\ufffd",))


def test_prompts_that_become_the_same_text_get_different_samples() -> None:
    requests = requests_for(GenerateSettings(), ["\udcff", "\udcfe"])
    assert [(request.prompt, request.sample) for request in requests] == [(3 * "\ufffd", 0), (3 * "\ufffd", 1)]


@pytest.mark.parametrize(
    ("data", "as_json", "sentence"),
    [
        (b"good\nb\xffd", False, "x, line 2, is not valid UTF-8"),
        (b'"good"\n{"prompt": ', True, "x, line 2, is not valid JSON"),
        (b'{"text": "a"}', True, "x, line 1, should be a JSON string"),
    ],
)
def test_a_line_that_is_no_prompt_is_named(data: bytes, as_json: bool, sentence: str) -> None:
    with pytest.raises(Gpt2Error, match=sentence):
        prompts_of_lines(data, "x", as_json=as_json)


# --- the command -----------------------------------------------------------------------------------------------------


def report(capsys: pytest.CaptureFixture[str], *flags: object) -> dict[str, Any]:
    assert main(["generate", *map(str, flags), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_json_holds_every_sample(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = report(
        capsys, "--checkpoint", run_folder, "--prompt", "ab", "a much longer prompt", "--samples", 2, "--tokens", 9
    )
    assert [(sample["prompt"], sample["sample"]) for sample in found["samples"]] == [
        ("ab", 0), ("ab", 1), ("a much longer prompt", 0), ("a much longer prompt", 1),
    ]  # fmt: skip
    for sample in found["samples"]:
        assert sample["finished"] == "length" or sample["tokens"] <= 9
    assert found["tokens"] == sum(sample["tokens"] for sample in found["samples"])
    assert (found["step"], Path(found["checkpoint"])) == (7, run_folder / "checkpoints" / "step-0000007")
    assert found["tokens_per_second"] > 0


def test_the_same_seed_gives_the_same_text_alone_or_among_others(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["--checkpoint", run_folder, "--tokens", 30, "--ignore-end"]

    def texts(*flags: object) -> dict[tuple[str, int], str]:
        found = report(capsys, *base, *flags)["samples"]
        return {(sample["prompt"], sample["sample"]): sample["text"] for sample in found}

    many = texts("--prompt", "ab", "xyz", "--samples", 3)
    assert len(set(many.values())) == 6
    assert texts("--prompt", "xyz", "--samples", 3, "--batch-size", 1).items() <= many.items()
    assert texts("--prompt", "xyz", "xyz", "xyz", "ab").items() <= many.items()
    other = texts("--prompt", "ab", "xyz", "--samples", 3, "--seed", 5)
    assert not set(other.values()) & set(many.values())


def test_text_output_is_prompt_and_continuation(run_of_letters: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["generate", "--checkpoint", str(run_of_letters), "--tokens", "4"]
    assert main([*base, "--prompt", "Q: "]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Q: ")
    assert len(out) == len("Q: abca\n")
    assert set(out[3:-1]) <= set("abc")
    assert main([*base, "--prompt", "x", "y"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0], lines[2]) == ("--- 1 of 2 ---", "--- 2 of 2 ---")
    assert (lines[1][0], lines[3][0]) == ("x", "y")


def test_an_empty_prompt_begins_a_document(run_of_letters: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Pitfall 32: the <|endoftext|> that it begins with ends nothing."""
    found = report(capsys, "--checkpoint", run_of_letters, "--prompt", "", "--tokens", 12)["samples"][0]
    assert (found["prompt"], found["tokens"], found["finished"]) == ("", 12, "length")
    assert set(found["text"]) <= set("abc")


def test_json_has_log_probabilities_where_asked(run_of_letters: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["--checkpoint", run_of_letters, "--prompt", "x", "--tokens", 4]
    assert "logprobs" not in report(capsys, *base)["samples"][0]
    sample = report(capsys, *base, "--logprobs", 3)["samples"][0]
    assert "".join(token["text"] for token in sample["logprobs"]) == sample["text"]
    for token in sample["logprobs"]:
        assert token["logprob"] == pytest.approx(np.log(1 / 3), abs=1e-6)
        assert {other["text"] for other in token["most_likely"]} == set("abc")


def test_texts_are_printed_in_the_order_of_their_prompts(
    run_of_letters: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """However long each takes, and however few are written at once."""
    base = ["generate", "--checkpoint", str(run_of_letters), "--tokens", "30", "--stop", "a", "--batch-size", "2"]
    prompts = [f"prompt {number}: " for number in range(7)]
    assert main([*base, "--prompt", *prompts]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[::2] == [f"--- {number} of 7 ---" for number in range(1, 8)]
    assert [line[: len(prompts[0])] for line in lines[1::2]] == prompts


def test_prompts_come_from_a_file_and_from_a_pipe(
    run_of_letters: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = ["--checkpoint", run_of_letters, "--tokens", 1]
    (tmp_path / "prompts.txt").write_text("one\ntwo\n")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "three\\nlines\\n"}\n"four"\n')
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"five\nstop\nsix")))
    given = [
        ["--prompt", "zero", "--prompts", tmp_path / "prompts.txt"],
        ["--prompts", tmp_path / "prompts.jsonl"],
        [],
    ]
    found = [[sample["prompt"] for sample in report(capsys, *base, *flags)["samples"]] for flags in given]
    assert found == [["zero", "one", "two"], ["three\nlines\n", "four"], ["five", "stop", "six"]]


def test_settings_come_from_a_file_and_flags_win(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "x.toml"
    config.write_text('[generate]\nprompt = ["ab"]\ntokens = 5\ntemperature = 0.5\ntop_k = 3\nignore_end = true\n')
    base = ["--checkpoint", run_folder, "--config", config]
    assert report(capsys, *base)["tokens"] == 5
    assert report(capsys, *base, "--tokens", 6)["tokens"] == 6
    most_likely = report(capsys, *base, "--greedy")["samples"][0]["text"]
    ids = write_ids(random_model(), [list(b"ab")], 5, end=END, ignore_end=True)[0]
    assert most_likely == byte_tokenizer().decode(ids)
    assert report(capsys, *base, "--temperature", 0)["samples"][0]["text"] == most_likely


def test_no_prompt_at_all_is_said(
    run_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\n \n")))
    assert main(["generate", "--checkpoint", str(run_folder)]) == 2
    assert "no prompts" in capsys.readouterr().err


def test_a_prompt_that_the_vocabulary_lacks_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = BYTES.__class__(**{**BYTES.as_table(), "vocabulary_size": 128})
    save(tmp_path, random_model(config))
    assert main(["generate", "--checkpoint", str(tmp_path), "--prompt", "ab é"]) == 2
    assert "the token id 195, but the model's vocabulary has 128 ids" in capsys.readouterr().err
    assert main(["generate", "--checkpoint", str(tmp_path), "--prompt", ""]) == 2
    assert "an empty prompt begins with <|endoftext|>" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("generate", "--prompt", "x"), ("evaluate", "text-loss", __file__)])
def test_without_its_weights_nothing_is_written_or_measured(
    words: tuple[str, ...], run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pitfall 29: a missing or broken checkpoint is an error, never a warning before text from random weights.

    Each way to be broken: test_checkpoint.py and test_hostile_models.py.
    """
    broken, textless = (shutil.copytree(run_folder, tmp_path / name) for name in ("broken", "textless"))
    next(broken.rglob("model.safetensors")).unlink()
    without_tokenizer(textless)
    cases = {tmp_path / "missing": "no checkpoint", broken: "is damaged", textless: "tokenizer", "": "no --checkpoint"}
    for folder, sentence in cases.items():
        assert main([*words, "--checkpoint", str(folder)]) == 2
        out, err = capsys.readouterr()
        assert sentence in err
        assert (out, err.count("\n")) == ("", 1)


# --- the generator, apart from commands ------------------------------------------------------------------------------


def test_a_generator_takes_requests_of_every_kind_at_once(run_folder: Path) -> None:
    """Length, sampling, seed and number are each request's own, and what is streamed is what is returned."""
    generator = TextGenerator(open_model(run_folder, device="cpu"))
    requests = [
        GenerationRequest("ab", tokens=5, sampling=GREEDY, ignore_end=True),
        GenerationRequest("ab", tokens=20, seed=1, ignore_end=True),
        GenerationRequest("ab", tokens=20, seed=1, sample=1, ignore_end=True),
        GenerationRequest("xyz", tokens=20, seed=2, sampling=Sampling(top_k=9), ignore_end=True),
    ]
    streamed = [""] * len(requests)
    counted: list[int] = []

    def show(number: int, piece: str) -> None:
        streamed[number] += piece

    found = generator.generate(requests, on_text=show, on_tokens=counted.append)
    assert [text.text for text in found] == streamed
    assert [text.tokens for text in found] == [5, 20, 20, 20]
    assert counted[-1] == 65
    assert found == [generator.generate([request])[0] for request in requests]
    assert found[1].text != found[2].text


def test_a_generator_writes_nothing_where_nothing_is_asked(run_folder: Path) -> None:
    """An empty list ended in a ValueError of max()."""
    assert TextGenerator(open_model(run_folder, device="cpu")).generate([]) == []


def test_a_generator_has_room_for_the_tokens_of_a_prompt_that_is_given_as_tokens(run_folder: Path) -> None:
    """Room was made for the prompt's text, encoded again: a request with more tokens than that was refused."""
    request = GenerationRequest("ab", tokens=3, sampling=GREEDY, ignore_end=True)
    given = GenerationRequest("ab", tokens=3, sampling=GREEDY, ignore_end=True, prompt_tokens=(97, 98, 99, 100, 101))
    generator = TextGenerator(open_model(run_folder, device="cpu"))
    (text,) = generator.generate([given])
    assert text.tokens == 3
    assert generator.generate([given, request])[0] == text


def test_a_prompt_is_encoded_once(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was encoded to check it, to size the cache and to write it."""
    encoded: list[str] = []
    plain = Encoder.encode
    monkeypatch.setattr(Encoder, "encode", lambda self, prompt: encoded.append(prompt) or plain(self, prompt))
    words = ["generate", "--checkpoint", str(run_folder), "--tokens", "1", "--prompt", "a", "--prompt", "b"]
    assert main([*words, "--device", "cpu", "--json"]) == 0
    assert encoded == ["a", "b"]


def test_weights_are_read_when_they_are_needed_only(run_folder: Path, tmp_path: Path) -> None:
    """A prompt that cannot be written is found before the weights are read."""
    folder = shutil.copytree(run_folder, tmp_path / "run")
    file = folder / "checkpoints" / "step-0000007" / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2] + bytes(len(content) - len(content) // 2))
    generator = TextGenerator(open_model(folder, device="cpu"))
    generator.encoder.encoded(GenerationRequest("ab"))
    with pytest.raises(Gpt2UsageError, match="is damaged"):
        generator.generate([GenerationRequest("ab")])


def test_another_tokenizer_may_be_given(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A checkpoint without a tokenizer could not be given one, nor could its own be replaced."""
    letters = byte_tokenizer()._vocabulary
    swapped = Tokenizer({**letters, "a": letters["b"], "b": letters["a"]}, [])
    swapped.save(tmp_path / "swapped")
    base = ["--checkpoint", run_folder, "--tokens", 1, "--prompt", "a", "--tokenizer"]
    assert main(["generate", *map(str, base), str(tmp_path / "swapped"), "--json"]) == 0
    assert "is not the one that" in capsys.readouterr().err
    assert Encoder(open_model(run_folder, tokenizer=str(tmp_path / "swapped")).stored).encode("ab") == [98, 97]
    byte_tokenizer().save_json(tmp_path / "tokenizer.json")
    textless = shutil.copytree(run_folder, tmp_path / "textless")
    without_tokenizer(textless)
    own = report(capsys, "--checkpoint", run_folder, "--prompt", "ab")
    given = report(capsys, "--checkpoint", textless, "--prompt", "ab", "--tokenizer", tmp_path / "tokenizer.json")
    assert given["samples"] == own["samples"]
    assert main(["generate", *map(str, base), str(tmp_path / "nothing")]) == 2
    assert "nothing" in capsys.readouterr().err


# --- the prompt loop -------------------------------------------------------------------------------------------------


ON_A_TERMINAL = """
import os, sys
from gpt2_train.cli import main
os.setsid()
terminal = os.open(sys.argv[1], os.O_RDWR)  # is then that of the process: what is typed there may be a signal
for number, name in enumerate(("stdin", "stdout", "stderr")):
    os.dup2(terminal, number)
    setattr(sys, name, open(number, "w" if number else "r", buffering=1, closefd=False))
sys.exit(main(["generate", *sys.argv[2:]]))
"""


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *words: str) -> None:
        self._screen, self._inside = pty.openpty()
        with mock.patch.dict(os.environ, {"TERM": "dumb"}):
            self.process = forks.Started([sys.executable, "-c", ON_A_TERMINAL, os.ttyname(self._inside), *words])
        self.shown = ""
        self._seen = 0

    def until(self, sign: str, patience: float = 120.0) -> str:
        """Read the screen until `sign` comes behind the last one; returns what is between, `sign` included."""
        deadline, before = time.monotonic() + patience, self._seen
        while (found := self.shown.find(sign, before)) < 0:
            ready, _, _ = select.select([self._screen], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{sign!r} never came: {self.shown}"
            self.shown += os.read(self._screen, 4096).decode()
        self._seen = found + len(sign)
        return self.shown[before : self._seen]

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def interrupt_until(self, sign: str) -> None:
        """Press Ctrl-C until `sign` comes: one that arrives just before readline waits is seen with the next only."""
        for _ in range(20):
            self.type("\x03")
            with contextlib.suppress(AssertionError):
                self.until(sign, patience=3.0)
                return
        raise AssertionError(f"{sign!r} never came: {self.shown}")

    def ends(self) -> int | None:
        """The exit code, once the program has ended."""
        _, errors = self.process.communicate()
        os.close(self._screen)
        os.close(self._inside)
        assert not errors, errors  # what there was before it had its terminal
        return self.process.returncode


@pytest.fixture
def terminal(run_of_letters: Path) -> Iterator[Any]:
    opened: list[Terminal] = []

    def start(*flags: str) -> Terminal:
        opened.append(Terminal("--checkpoint", str(run_of_letters), "--device", "cpu", *flags))
        return opened[-1]

    yield start
    for one in opened:
        one.process.kill()


def test_the_loop_streams_and_stop_on_a_line_of_its_own_ends_it(terminal: Any) -> None:
    """Pitfall 32: "stop" inside a prompt is text; Ctrl-C ends the text that is being written, not the program."""
    loop = terminal("--tokens", "100000000")
    assert "Ctrl-C ends the text being written; Ctrl-D" in loop.until("> ")
    loop.type("please stop here\n")
    loop.until("please stop here\r\nplease stop here")
    loop.until("a")
    loop.type("\x03")
    loop.until("(ended here)")
    loop.until("> ")
    loop.type(" stop \n")
    assert loop.ends() == 0


@pytest.mark.exhaustive
@pytest.mark.skipif(importlib.util.find_spec("readline") is None, reason="this Python has no readline")
def test_earlier_prompts_are_recalled_and_edited(terminal: Any) -> None:
    """The arrow keys wrote ^[[A and ^[[D into the prompt."""
    loop = terminal("--tokens", "3")
    loop.until("> ")
    loop.type("first\n")
    loop.until("\r\n\r\n> ")
    loop.type("\x1b[A\x1b[D!\n")  # Up, left, and a letter before the last.
    shown = loop.until("\r\n\r\n> ")
    assert re.search(r"\nfirs!t[abc]{3}\r", shown), shown
    loop.type("\x04")
    assert loop.ends() == 0


@pytest.mark.exhaustive
def test_ctrl_c_at_the_prompt_clears_the_line_and_does_not_quit(terminal: Any) -> None:
    """Ctrl-C ended the program where no text was being written, as it did when it arrived twice."""
    loop = terminal("--tokens", "3")
    loop.until("> ")
    loop.type("never mind")
    loop.until("never mind")
    loop.interrupt_until("Ctrl-D")
    loop.until("> ")
    loop.type("yes\n")
    assert "never" not in loop.until("\r\n\r\n> ")
    loop.type("\x04")
    assert loop.ends() == 0


def test_one_ctrl_c_may_arrive_as_several_signals() -> None:
    """The second signal of one Ctrl-C, which a wrapper passes on, ended the program."""
    interrupts = prompts.Interrupts()
    before = signal.getsignal(signal.SIGINT)  # a shell starts what runs in the background with it ignored

    def work() -> None:
        signal.raise_signal(signal.SIGINT)

    with interrupts.installed():
        for _ in range(2):
            try:
                interrupts.during(work)
            except KeyboardInterrupt:
                signal.raise_signal(signal.SIGINT)
            else:
                pytest.fail("the first signal was lost")
        assert interrupts.during(lambda: 5) == 5
    assert signal.getsignal(signal.SIGINT) == before


def test_the_loop_does_without_line_editing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "readline", None)
    prompts.use_line_editing()


def test_the_loop_survives_what_it_cannot_write(
    run_of_letters: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted text, an empty prompt, the same prompt twice, Ctrl-C at the prompt; then the input ends."""
    answers: list[Any] = ["one", "", "two", KeyboardInterrupt(), "two", EOFError()]

    def answer(_: str) -> str:
        following = answers.pop(0)
        if isinstance(following, BaseException):
            raise following
        return str(following)

    monkeypatch.setattr("builtins.input", answer)
    settings = GenerateSettings(checkpoint=str(run_of_letters), tokens=30, device="cpu")
    generator = make_generator(open_model(settings.checkpoint, device="cpu"), settings, 1)
    generate, calls = generator.generate, []

    def interrupted_once(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            options["on_begin"]()
            raise KeyboardInterrupt
        return generate(*arguments, **options)

    monkeypatch.setattr(generator, "generate", interrupted_once)
    converse(generator, settings)
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0], lines[1]) == ("one", "(ended here)")
    texts = [line for line in lines[2:] if line]
    assert [len(text) for text in texts] == [30, 33, 33]
    assert texts[1][:3] == texts[2][:3] == "two"
    assert texts[1] != texts[2]
