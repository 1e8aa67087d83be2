"""A text's passages in indexed token files: which documents hold them, and how they are shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gpt2_train.small_models import END, byte_tokenizer
from tests.indexed_tokens.naive_index import make_corpus, write_indexed

from indexed_tokens.tracer import Passage, Trace, Tracer, chance_length, described, marked

TEXTS = [
    "The lighthouse keeper counted seventeen ships before the storm came in.",
    "Nobody in the village remembered who had planted the old orchard, or why.",
    "A recipe for bread: flour, water, salt and time. Nobody in the village remembered it.",
    "Zürich, Genève and Łódź are cities. 東京も都市です。",
]


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
    passages = [Passage(0, 5, 1, "", 1, 1, []), Passage(3, 8, 1, "", 1, 1, []), Passage(9, 10, 1, "", 1, 1, [])]
    trace = Trace("0123456789", 10, 1, 9, passages)
    assert marked(trace, colours=False) == "[01234567]{1, 2}8[9]{3}"
