"""Decoding apart from commands: rows of a cache, sequences that come and go, stop strings, log-probabilities."""

from __future__ import annotations

import dataclasses
import platform
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gpt2_train.small_models import BYTES, END, in_memory, random_model, save

from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.inference.engine import Engine, GenerationRequest, Token
from gpt2_train.inference.generator import StopStrings, TextGenerator, TextPiece, TextSession
from gpt2_train.inference.kv_cache import CachedModel, PackedLinear, arrange_weights
from gpt2_train.inference.model import open_model
from gpt2_train.inference.sampling import Sampling
from gpt2_train.model.gpt2 import GPT2

GREEDY = Sampling(temperature=0)


@torch.no_grad()
def full_pass(model: GPT2, tokens: list[int]) -> torch.Tensor:
    """The logits of what follows `tokens`."""
    return model(torch.tensor([tokens]))[0, -1, : model.config.vocabulary_size]


# --- rows of a cache -------------------------------------------------------------------------------------------------


def test_all_steps_there_are_may_be_made_before_the_first(model: GPT2) -> None:
    """A server captures its graphs before its clients come."""
    cached = CachedModel(model, 3, static=True)
    cached.prepare()
    steps = cached._static
    assert steps is not None
    assert set(steps._made) == {(rows, cached.length + 1) for rows in (1, 2, 3)}
    made = dict(steps._made)
    for rows in ([0], [0, 1], [2], [0, 1, 2]):
        for _ in range(3):
            cached.feed(rows, [[1]] * len(rows))
    assert steps._made == made


@pytest.mark.parametrize("static", [False, True])
@given(data=st.data())
@settings(max_examples=30)
def test_every_row_gives_the_logits_of_a_full_pass(model: GPT2, static: bool, data: st.DataObject) -> None:
    """Whatever is fed to which rows in which order, at once or apart, copied or forgotten; as a GPU does it, too."""
    cached = CachedModel(model, 4, static=static)
    contents: list[list[int]] = [[], [], [], []]
    for _ in range(data.draw(st.integers(1, 8))):
        action = data.draw(st.sampled_from(["feed", "feed", "feed", "forget", "copy"]))
        row, other = data.draw(st.permutations(range(4)))[:2]
        if action == "forget":
            cached.clear(row)
            contents[row] = []
        elif action == "copy":
            cached.copy(row, other)
            contents[other] = list(contents[row])
        else:
            rows = [row for row in data.draw(st.permutations(range(4))) if len(contents[row]) < 16]
            rows = rows[: data.draw(st.integers(1, 4))]
            if not rows:
                continue
            new = [
                data.draw(st.lists(st.integers(0, 256), min_size=1, max_size=16 - len(contents[row]))) for row in rows
            ]
            logits = cached.feed(rows, new)
            expected = []
            for place, row in enumerate(rows):
                contents[row] += new[place]
                expected.append(full_pass(model, contents[row]))
            torch.testing.assert_close(logits, torch.stack(expected), atol=2e-4, rtol=1e-4)
    assert cached.lengths == [len(content) for content in contents]


def test_a_row_takes_no_more_than_it_has_room_for(model: GPT2) -> None:
    """Pitfall 32: nothing is written past the sequence length."""
    with pytest.raises(Gpt2UsageError, match="17 positions asked of a model that has 16"):
        CachedModel(model, 1, 17)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_is_near_full_precision(model: GPT2, precision: str) -> None:
    half, full = CachedModel(model, 2, precision=precision), CachedModel(model, 2)
    for new in ([[1, 2, 3], [9]], [[4], [5]], [[6], [7]]):
        found, expected = half.feed([0, 1], new), full.feed([0, 1], new)
    assert half.keys.dtype == {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    assert 0 < float((found - expected).abs().max()) < 0.1 * float(expected.std())


# --- sequences that come and go --------------------------------------------------------------------------------------


def request(prompt: list[int], tokens: int = 9, sampling: Sampling = GREEDY, **more: Any) -> GenerationRequest:
    return GenerationRequest("", tokens=tokens, sampling=sampling, prompt_tokens=tuple(prompt), **more)


def alone(model: GPT2, wanted: GenerationRequest, end: int | None = None) -> list[int]:
    """What becomes of a request that has the model for itself."""
    engine = Engine(CachedModel(model, 1), vocabulary_size=257, end=end)
    engine.add(wanted)
    found = []
    while engine.writing or engine.waiting:
        found += [new.token for _, new in engine.step()]
    return found


SAMPLINGS = [GREEDY, Sampling(0.7), Sampling(0.9, top_k=20), Sampling(top_p=0.8)]


def drawn_request(source: random.Random) -> dict[str, Any]:
    prompt = source.choice([[7, 8, 9], [source.randrange(257) for _ in range(source.choice([1, 2, 5, 16, 40]))]])
    return {
        "prompt": prompt, "tokens": source.choice([1, 3, 12, 30]), "sampling": source.choice(SAMPLINGS),
        "ignore_end": source.random() < 0.5,
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_sequences_join_and_leave_at_any_step(model: GPT2, seed: int) -> None:
    """What a sequence becomes follows from its request: neighbours that come, end or are removed change nothing."""
    source = random.Random(seed)
    prefill, beside = source.choice([1, 3, 7, 1000]), source.choice([1, 2, 5])
    cached = CachedModel(model, source.choice([1, 3, 5]), static=seed % 2 == 1)
    engine = Engine(cached, vocabulary_size=257, end=END, prefill=prefill, beside=beside)
    asked: dict[int, dict[str, Any]] = {}
    found: dict[int, list[int]] = {}
    running: set[int] = set()
    ended: set[int] = set()
    while len(asked) < 14 or running:
        if len(asked) < 14 and source.random() < 0.4:
            drawn = drawn_request(source)
            number = engine.add(request(**drawn))
            asked[number], found[number] = drawn, []
            running.add(number)
        if running and len(asked) < 14 and source.random() < 0.06:
            removed = source.choice(sorted(running))
            engine.remove(removed)
            running.discard(removed)
        for sequence, new in engine.step():
            assert sequence.number in running
            found[sequence.number].append(new.token)
            if sequence.finished:
                running.discard(sequence.number)
                ended.add(sequence.number)
        assert engine.writing + engine.waiting == len(running)
    assert len(ended) > 5
    for number, drawn in asked.items():
        expected = alone(model, request(**drawn), END)
        assert found[number] == expected[: len(found[number])]
        assert number not in ended or found[number] == expected


def test_a_long_prompt_holds_nobody_up(model: GPT2) -> None:
    """Those who write get a token in every step while a prompt is read piece by piece."""
    engine = Engine(CachedModel(model, 2), vocabulary_size=257, beside=4)
    first = engine.add(request([1], 10))
    engine.step()
    second = engine.add(request(list(range(14)), 10))
    steps = [[sequence.number for sequence, _ in engine.step()] for _ in range(5)]
    assert steps == [[first], [first], [first], [first, second], [first, second]]


def test_samples_of_a_prompt_read_it_once(model: GPT2, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = CachedModel(model, 4)
    fed: list[int] = []
    feed = cached.feed
    monkeypatch.setattr(cached, "feed", lambda rows, tokens: (fed.append(sum(map(len, tokens))), feed(rows, tokens))[1])
    engine = Engine(cached, vocabulary_size=257)
    for seed in range(3):
        engine.add(request([5] * 9, 3, Sampling(), seed=seed))
    found = engine.step()
    assert fed == [9]
    assert len(found) == 3
    engine.step()
    assert fed == [9, 3]


def test_whoever_reads_a_prompt_for_others_may_leave(model: GPT2) -> None:
    engine = Engine(CachedModel(model, 3), vocabulary_size=257, prefill=5)
    first, second, third = (engine.add(request([5, 6] * 6, 4)) for _ in range(3))
    assert engine.step() == []
    engine.remove(first)
    found: dict[int, list[int]] = {second: [], third: []}
    while engine.writing:
        for sequence, new in engine.step():
            found[sequence.number].append(new.token)
    expected = alone(model, request([5, 6] * 6, 4))
    assert found == {second: expected, third: expected}


def test_who_comes_first_is_written_first(model: GPT2) -> None:
    engine = Engine(CachedModel(model, 2), vocabulary_size=257)
    numbers = [engine.add(request([n], 3)) for n in range(5)]
    told = [sequence.number for _ in range(9) for sequence, _ in engine.step()]
    assert list(dict.fromkeys(told)) == numbers
    assert told == [*numbers[:2] * 3, *numbers[2:4] * 3, *numbers[4:] * 3]


def test_rows_that_are_too_short_for_a_text_are_refused(model: GPT2) -> None:
    engine = Engine(CachedModel(model, 1, 8), vocabulary_size=257)
    engine.add(request([1, 2], 7))
    with pytest.raises(Gpt2UsageError, match="9 positions asked of rows of 8"):
        engine.add(request([1, 2], 8))


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_log_probabilities_are_those_of_the_model(model: GPT2, sampling: Sampling) -> None:
    """Natural logarithms before temperature, top-k and top-p, also where the end may not be chosen."""
    engine = Engine(CachedModel(model, 3), vocabulary_size=257, end=END)
    wanted = {5: request([1, 2], 6, sampling, logprobs=5, ignore_end=True), 0: request([3], 6, sampling, logprobs=0)}
    numbers = {engine.add(one): (count, list(one.prompt_tokens or ())) for count, one in wanted.items()}
    plain = engine.add(request([4], 6, sampling))
    while engine.writing or engine.waiting:
        for sequence, new in engine.step():
            if sequence.number == plain:
                assert (new.logprob, new.most_likely) == (None, ())
                continue
            count, ids = numbers[sequence.number]
            expected = full_pass(model, ids).log_softmax(0)
            assert new.logprob == pytest.approx(float(expected[new.token]), abs=1e-4)
            values, likely = expected.topk(count)
            assert [token for token, _ in new.most_likely] == likely.tolist()
            assert [value for _, value in new.most_likely] == pytest.approx(values.tolist(), abs=1e-4)
            ids.append(new.token)


# --- stop strings ----------------------------------------------------------------------------------------------------


def part(text: str) -> Token:
    return Token(1, text)


def cut_at_stop(text: str, stops: list[str]) -> tuple[str, bool]:
    """The text before the stop string that is complete first, the longest of several; and whether there is one."""
    for end in range(1, len(text) + 1):
        begins = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if begins:
            return text[: min(begins)], True
    return text, False


@given(
    parts=st.lists(st.text("abc", max_size=4), max_size=12),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
)
def test_a_text_ends_before_the_first_stop_string_however_it_is_divided(parts: list[str], stops: list[str]) -> None:
    """And nothing is shown that later turns out to belong to one."""
    stream = StopStrings(stops)
    shown, has_stopped = "", False
    for text in parts:
        released, has_stopped = stream.add(part(text))
        shown += "".join(one.text for one in released)
        if has_stopped:
            break
    shown += "".join(one.text for one in stream.close())
    assert (shown, has_stopped) == cut_at_stop("".join(parts), stops)


def test_only_what_may_begin_a_stop_string_is_held_back() -> None:
    stream = StopStrings(["\n\nQ:"])
    assert stream.add(part("a")) == ([part("a")], False)
    assert stream.add(part("b\n")) == ([], False)
    assert stream.add(part("\n")) == ([], False)
    assert stream.add(part("A")) == ([part("b\n"), part("\n"), part("A")], False)
    assert stream.add(part("c\n\n")) == ([], False)
    assert stream.add(part("Q: what")) == ([part("c")], True)


# --- texts -----------------------------------------------------------------------------------------------------------


def reciting(text: str) -> GPT2:
    """A model that writes the bytes of `text` in order, whatever the prompt of one byte, and then ends."""
    ids = [*text.encode(), END]
    config = dataclasses.replace(BYTES, hidden=64, heads=1, layers=1, sequence_length=64)
    model = GPT2(config).initialise(torch.Generator().manual_seed(1)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        # Each position has a direction of its own, and the token that stands there next the same one.
        model.final_norm.weight.fill_(1.0)
        model.position_embedding.weight.copy_(torch.eye(64) * 50)
        for place, token in enumerate(ids):
            model.token_embedding.weight[token, place] += 4.0
    return model


def collected(session: TextSession) -> dict[int, list[TextPiece]]:
    found: dict[int, list[TextPiece]] = {}
    while session.engine.waiting or session.engine.writing:
        for piece in session.step():
            found.setdefault(piece.number, []).append(piece)
    return found


def test_a_stop_string_over_several_tokens_and_characters_ends_a_text() -> None:
    """Every token is a byte here, and the stop string begins with a character of three."""
    session = TextSession(in_memory(reciting("ab€c, d")), rows=2)
    stopped = session.submit(GenerationRequest("x", tokens=20, sampling=GREEDY, stop=("€c",)))
    whole = session.submit(GenerationRequest("y", tokens=20, sampling=GREEDY, stop=("€d", "?")))
    found = collected(session)
    assert [(piece.text, piece.finished) for piece in found[stopped]] == [("a", None), ("b", None), ("", "stop")]
    assert [piece.written for piece in found[stopped]] == [1, 2, 6]
    assert "".join(piece.text for piece in found[whole]) == "ab€c, d"
    assert (found[whole][-1].finished, found[whole][-1].written) == ("end_of_text", 10)
    for pieces in found.values():
        assert all(piece.finished is None for piece in pieces[:-1])


def test_the_tokens_of_a_text_are_its_text() -> None:
    """Half a character at its end becomes U+FFFD, and belongs to the last token."""
    session = TextSession(in_memory(reciting("a€b")), rows=1)
    session.submit(GenerationRequest("x", tokens=3, sampling=GREEDY, logprobs=1))
    (pieces,) = collected(session).values()
    tokens = [token for piece in pieces for token in piece.tokens]
    assert [(token.token, token.text) for token in tokens] == [(97, "a"), (0xE2, ""), (0x82, "\ufffd")]
    assert [token.most_likely[0] for token in tokens] == [(token.token, token.logprob) for token in tokens]


def test_a_cancelled_request_makes_room_for_the_next(model: GPT2) -> None:
    session = TextSession(in_memory(model), rows=1)
    first = session.submit(GenerationRequest("a", tokens=1000, ignore_end=True))
    second = session.submit(GenerationRequest("b", tokens=5, ignore_end=True))
    third = session.submit(GenerationRequest("c", tokens=5, ignore_end=True))
    session.step()
    assert (session.engine.writing, session.engine.waiting) == (1, 2)
    session.cancel(first)
    session.cancel(third)
    session.cancel(third)
    assert (session.engine.writing, session.engine.waiting) == (0, 1)
    assert set(collected(session)) == {second}


def test_a_session_and_a_generator_write_the_same(model: GPT2) -> None:
    """Requests that come one by one become what they become as a list, and again with other seeds something else."""
    source = in_memory(model)
    requests = [GenerationRequest("ab", tokens=20, seed=seed, sample=sample) for seed in (1, 2) for sample in (0, 1)]
    texts = [text.text for text in TextGenerator(source, rows=4).generate(requests)]
    assert len(set(texts)) == 4
    session = TextSession(source, rows=2)
    found: dict[int, str] = {}
    numbers = []
    for one in requests:
        numbers.append(session.submit(one))
        for piece in session.step():
            found[piece.number] = found.get(piece.number, "") + piece.text
    for number, pieces in collected(session).items():
        found[number] = found.get(number, "") + "".join(piece.text for piece in pieces)
    assert [found[number] for number in numbers] == texts


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        (GenerationRequest("a", tokens=-1), "-1 tokens asked for"),
        (GenerationRequest("a", stop=("b", "")), "an empty stop string"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(model: GPT2, wanted: GenerationRequest, sentence: str) -> None:
    with pytest.raises(Gpt2UsageError, match=sentence):
        TextSession(in_memory(model), rows=1).submit(wanted)


# --- weights arranged for writing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 3])
def test_arranged_weights_give_the_same_logits(rows: int) -> None:
    """In fp32 they lie in another order only; whatever it is on this machine."""
    plain, arranged = random_model(), arrange_weights(random_model(), "fp32", rows)
    left, right = CachedModel(plain, rows), CachedModel(arranged, rows)
    for new in ([1, 2, 3], [4], [5]):
        expected = left.feed(list(range(rows)), [new] * rows)
        torch.testing.assert_close(right.feed(list(range(rows)), [new] * rows), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("rows", [1, 3])
def test_arranged_weights_in_half_precision_are_near(rows: int) -> None:
    plain, arranged = random_model(), arrange_weights(random_model(), "bf16", rows)
    assert arranged.token_embedding.weight.dtype == torch.bfloat16
    assert arranged.position_embedding.weight.dtype == arranged.final_norm.weight.dtype == torch.float32
    left, right = CachedModel(plain, rows), CachedModel(arranged, rows, precision="bf16")
    expected, found = (cached.feed(list(range(rows)), [[1, 2, 3]] * rows) for cached in (left, right))
    assert 0 < float((found - expected).abs().max()) < 0.1 * float(expected.std())


@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="oneDNN's order is used on x86")
def test_several_rows_use_the_packed_order(model: GPT2) -> None:
    """A later torch without the two operators would silently be half as fast."""
    packed = [
        module for module in arrange_weights(random_model(), "fp32", 2).modules() if isinstance(module, PackedLinear)
    ]
    assert len(packed) == 4 * model.config.layers + 1
    assert model.is_tied


def test_a_model_opened_for_writing_writes_the_same(tmp_path: Path) -> None:
    source = open_model(save(tmp_path, random_model()), device="cpu")
    requests = [GenerationRequest("ab", tokens=12, sample=number) for number in range(3)]
    plain = TextGenerator(source).generate(requests)
    assert TextGenerator(source, 3, arranged=True).generate(requests) == plain
