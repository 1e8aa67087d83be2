"""`gpt2 trace` and `generate --trace`: what of a text stands in the training data, and where."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gpt2_train.small_models import END, byte_tokenizer, random_model, save
from tests.indexed_tokens.naive_index import write_indexed

from gpt2_train.cli import main
from gpt2_train.inference.trace import Tracer, chance_length, described, marked
from indexed_tokens import Tokenizer, save_corpus_tokenizer

TEXTS = [
    "The lighthouse keeper counted seventeen ships before the storm came in.",
    "Nobody in the village remembered who had planted the old orchard, or why.",
    "A recipe for bread: flour, water, salt and time. Nobody in the village remembered it.",
    "Zürich, Genève and Łódź are cities. 東京も都市です。",
]


def make_corpus(prefix: Path, texts: list[str], **options: Any) -> str:
    """Indexed token files of texts by GPT-2's tokenizer, with URLs."""
    tokenizer = Tokenizer.gpt2()
    urls = [f"http://{prefix.name}.org/{number}" for number in range(len(texts))]
    documents = [[*tokenizer.encode(text), tokenizer.end_of_text] for text in texts]
    write_indexed(prefix, documents, urls=urls, **options)
    save_corpus_tokenizer(prefix, tokenizer)
    return str(prefix)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two documents in each part of the index, about."""
    return make_corpus(tmp_path_factory.mktemp("trace") / "corpus", TEXTS, part_tokens=40)


def test_a_text_of_the_corpus_is_found_whole_with_its_url(corpus: str) -> None:
    for number, text in enumerate(TEXTS):
        trace = Tracer([corpus]).trace(text, minimum_tokens=4)
        assert trace.verbatim_tokens == trace.tokens
        passage = trace.passages[0]
        assert (passage.begin, passage.end, passage.text) == (0, len(text), text)
        assert [(source.url, source.document) for source in passage.sources] == [
            (f"http://corpus.org/{number}", number)
        ]


def test_a_passage_from_the_middle_is_found_with_its_first_word(corpus: str) -> None:
    """A word at the beginning of a text is another token than behind a space."""
    trace = Tracer([corpus]).trace("keeper counted seventeen ships", minimum_tokens=3)
    (passage,) = trace.passages
    assert passage.text == "keeper counted seventeen ships"
    (source,) = passage.sources
    assert (source.before, source.after) == ("The lighthouse", " before the storm came in.")


def test_a_passage_of_several_documents_names_them_in_order(corpus: str) -> None:
    text = "Everybody in the village remembered my name."
    (passage,) = Tracer([corpus]).trace(text, minimum_tokens=4, most=1).passages
    assert (passage.text, passage.occurrences, passage.documents) == ("in the village remembered", 2, 2)
    assert [source.document for source in passage.sources] == [1]
    (passage,) = Tracer([corpus]).trace(text, minimum_tokens=4).passages
    assert [source.document for source in passage.sources] == [1, 2]


def test_passages_that_are_too_short_do_not_count(corpus: str) -> None:
    text = "An old orchard and a storm came in."
    none = Tracer([corpus]).trace(text, minimum_tokens=5)
    assert (none.passages, none.verbatim_tokens) == ([], 0)
    assert none.longest is not None
    assert (none.longest.tokens, none.longest.text, none.longest.sources[0].document) == (4, "storm came in.", 0)
    assert "of 5 tokens or more stands in the corpus word for word; the longest has 4: 'storm came in.'." in described(
        none, colours=False
    )
    shorter = Tracer([corpus]).trace(text, minimum_tokens=3).passages
    assert [(one.text, one.tokens) for one in shorter] == [("old orchard", 3), ("storm came in.", 4)]


def test_the_prompt_is_not_searched(corpus: str) -> None:
    tracer, (prompt, text) = Tracer([corpus]), ("The lighthouse keeper counted", " seventeen ships before lunch")
    trace = tracer.trace(text, prompt=prompt, minimum_tokens=2)
    assert (trace.text, trace.tokens) == (text, 4)
    (passage,) = trace.passages
    assert (passage.begin, passage.text, passage.sources[0].token) == (1, "seventeen ships before", 4)
    # A token that the text shares with its prompt belongs to the prompt.
    assert [one.text for one in tracer.trace("ships before the storm", prompt="teen ", minimum_tokens=2).passages] == [
        "before the storm"
    ]


def test_several_corpora_are_searched_as_one(corpus: str, tmp_path: Path) -> None:
    other = make_corpus(tmp_path / "other", ["The storm came before anybody in the village remembered to shut it."])
    tracer = Tracer([corpus, other, corpus])
    (passage,) = tracer.trace(" in the village remembered", most=9).passages
    assert (passage.occurrences, passage.documents) == (3, 3)
    urls = ["http://corpus.org/1", "http://corpus.org/2", "http://other.org/0"]
    assert [source.url for source in passage.sources] == urls


@given(st.lists(st.sampled_from(["ab", "é", "東", "c ", " ", "\n"]), max_size=14), st.integers(0, 6))
def test_characters_of_passages_are_those_of_the_definition(tmp_path_factory, pieces, cut):
    """With a tokenizer of bytes, whose tokens end inside characters."""
    folder = tmp_path_factory.mktemp("bytes")
    text = "".join(pieces)
    documents = ["abé東c ", "é\n é東ab", "c c c "]
    write_indexed(folder / "t", [[*one.encode(), END] for one in documents])
    prompt, text = text[:cut], text[cut:]
    trace = Tracer([str(folder / "t")], byte_tokenizer()).trace(text, prompt=prompt, minimum_tokens=3)
    assert trace.tokens == len(text.encode())
    for passage in trace.passages:
        assert text[passage.begin : passage.end] == passage.text
        assert any(passage.text in document for document in documents)
    reach = [
        max(
            (end for end in range(at + 1, len(text.encode()) + 1) if _is_in(text.encode()[at:end], documents)),
            default=at,
        )
        for at in range(len(text.encode()))
    ]
    covered = {place for at, end in enumerate(reach) if end - at >= 3 for place in range(at, end)}
    assert trace.verbatim_tokens == len(covered)


def _is_in(content: bytes, documents: list[str]) -> bool:
    return any(content in document.encode() for document in documents)


def test_chance_grows_with_corpus_and_text() -> None:
    assert [chance_length(10**power, 200) for power in (6, 9, 12)] == [7, 9, 11]
    assert chance_length(0, 0) == 3


# What people read


def test_passages_are_marked_by_brackets_or_colours(corpus: str) -> None:
    text = "Well: Nobody in the village remembered it. A \x1b[31mred\x07 end."
    trace = Tracer([corpus]).trace(text, minimum_tokens=4)
    plain = marked(trace, colours=False)
    assert plain == "Well: [Nobody in the village remembered it.]{1} A \ufffd[31mred\ufffd end."
    coloured = marked(trace, colours=True)
    assert "\x1b[30;43mNobody in the village remembered it.\x1b[0m\x1b[2m{1}\x1b[0m A \ufffd" in coloured
    shown = described(trace, colours=False)
    assert "in 1 passage of 4 tokens or more" in shown
    assert "http://corpus.org/2\n        document 2 of " in shown


def test_passages_that_overlap_are_marked_as_one() -> None:
    from gpt2_train.inference.trace import Passage, Trace

    passages = [Passage(0, 5, 1, "", 1, 1, []), Passage(3, 8, 1, "", 1, 1, []), Passage(9, 10, 1, "", 1, 1, [])]
    trace = Trace("0123456789", 10, 1, 9, passages)
    assert marked(trace, colours=False) == "[01234567]{1, 2}8[9]{3}"


# The command


def test_the_command_prints_the_text_and_its_sources(
    corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["trace", "--data", corpus, "--minimum-tokens", "4", "--check"]
    text = f"Once more: {TEXTS[0]}"
    (tmp_path / "letter.txt").write_text(text)
    assert main([*command, "--text", text]) == 0
    shown = capsys.readouterr().out
    assert "http://corpus.org/0" in shown
    assert "lighthouse keeper counted seventeen ships before the storm came in.]{1}" in shown
    assert main([*command, "--file", str(tmp_path / "letter.txt")]) == 0
    assert capsys.readouterr().out == shown
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["passages"][0]["sources"][0]["url"] == "http://corpus.org/0"
    assert (found["text"], found["minimum_tokens"]) == (text, 4)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--text", "a"], "no --data"),
        (["--data", "CORPUS", "--text", "a", "--file", "b"], "leave out one"),
        (["--data", "CORPUS", "--text", " "], "the text is empty"),
        (["--data", "CORPUS", "--file", "absent.txt"], "can't read absent.txt"),
        (["--data", "absent", "--text", "a"], "no token file absent.idx"),
        (["--data", "BYTES", "--text", "a"], "has no tokenizer next to it"),
        (["--data", "CORPUS", "OTHER", "--text", "a"], "made with different tokenizers"),
        (["--data", "OTHER", "--text", "a", "--tokenizer", "gpt2"], "leave it out"),
    ],
)
def test_what_can_not_be_traced_is_said(
    corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    for name in ("bytes", "other"):
        write_indexed(tmp_path / name, [[1, 2, 3]])
    save_corpus_tokenizer(tmp_path / "other", byte_tokenizer())
    places = {"CORPUS": corpus, "BYTES": str(tmp_path / "bytes"), "OTHER": str(tmp_path / "other")}
    assert main(["trace", *(places.get(flag, flag) for flag in flags)]) == 2
    assert message in capsys.readouterr().err


# generate --trace


@pytest.fixture
def model(tmp_path: Path) -> tuple[str, str]:
    """A model, and token files that hold what it writes behind `ab` in the middle of their second document."""
    save(tmp_path / "run", random_model())
    model = str(tmp_path / "run")
    return model, str(tmp_path / "corpus")


def generated(capsys: pytest.CaptureFixture[str], model: str, *flags: str) -> str:
    command = ["generate", "--checkpoint", model, "--prompt", "ab", "--tokens", "24", "--device", "cpu", "--ignore-end"]
    assert main([*command, *flags]) == 0
    return capsys.readouterr().out


def test_generate_says_what_its_text_repeats(
    tmp_path: Path, model: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, prefix = model
    text = json.loads(generated(capsys, folder, "--json"))["samples"][0]["text"]
    tokenizer = byte_tokenizer()
    documents = [[1, 2], [*b"xyz", *tokenizer.encode(f"ab{text}"), *b"end", END]]
    write_indexed(Path(prefix), documents, urls=["http://a.org/", "http://b.org/"])
    save_corpus_tokenizer(prefix, tokenizer)
    found = json.loads(generated(capsys, folder, "--trace", prefix, "--json"))["samples"][0]
    assert found["text"] == text
    trace = found["trace"]
    assert (trace["text"], trace["verbatim_tokens"]) == (text, trace["tokens"])
    (passage,) = trace["passages"]
    assert (passage["sources"][0]["url"], passage["sources"][0]["token"]) == ("http://b.org/", 5)
    for flags in ([], ["--samples", "2"]):
        shown = generated(capsys, folder, "--trace", prefix, *flags)
        assert f"of {trace['tokens']} tokens (100%) stand in the corpus word for word" in shown
        assert "http://b.org/" in shown


def test_generate_without_an_index_fails_before_it_writes(
    tmp_path: Path, model: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "--checkpoint", "absent", "--prompt", "a", "--trace", str(tmp_path / "absent")]) == 2
    assert "no token file" in capsys.readouterr().err
