"""`--extractor learned`: a page's blocks, what is known of them, and which are kept."""

import dataclasses
import gzip
import itertools
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from webtext_prep.extraction.html.code_text import CODE
from webtext_prep.extraction.html.formulas import FORMULAS
from webtext_prep.extraction.html.markup import written
from webtext_prep.extraction.html.page_tree import NAVIGATION, hides, is_off
from webtext_prep.extraction.learned import choice
from webtext_prep.extraction.learned.blocks import LANDMARKS, TAGS, blocks_of
from webtext_prep.extraction.learned.choice import CONTEXT, Parameters, chosen, main_text, parameters, with_context
from webtext_prep.extraction.learned.features import FEATURES, PAGE_FEATURES, features_of
from webtext_prep.extraction.learned.forest import Forest
from webtext_prep.extraction.learned.names import ALL_HINTS, HIDING, HINT_BITS, HINTS, ODD, bits_of
from webtext_prep.extraction.page_stage import known_kinds

PROSE = "The committee met on Tuesday to decide where the bridge should be built, and who would have to pay for it. "
WORDS_OF_NAMES = re.findall(
    r"[a-z]+", f"{[*HINTS.values()]} {FORMULAS.pattern} {CODE.pattern} sr-only off-screen hidden d-none"
)


@pytest.fixture
def blocks():
    """`blocks(html)` cuts a page's body."""
    return lambda html: blocks_of(f"<html><head><title>t</title></head><body>{html}</body></html>")


def test_a_block_is_what_lies_between_boundaries_of_the_layout(blocks):
    found = blocks(
        "<div>before <b>bold</b> <a href=x>and a link</a><p>one\n  two</p>after</div><script>no</script>last"
    )
    assert found.texts == ["before bold and a link", "one two", "after", "last"]
    assert found.links.tolist() == [1, 0, 0, 0]
    assert found.link_characters[0] == len("and a link")
    assert found.bold_characters[0] == len("bold")
    assert [found.tag[element] for element in found.element] == [TAGS[tag] for tag in ("div", "p", "div", "body")]


def test_what_stands_in_noscript_is_read(blocks):
    """Forums write whole threads there; without them a quarter of forums had no text."""
    found = blocks(f"<div id=app></div><noscript><div class=post><p>{PROSE}</p></div></noscript>")
    assert found.texts == [PROSE.strip()]
    assert found.landmarks[found.element[0]] == LANDMARKS["noscript"]
    assert found.all_hints[found.element[0]] & HINT_BITS["reply"]


def test_elements_hold_ranges_of_blocks(blocks):
    found = blocks("<main><section><p>a</p><p>b</p></section><p aria-hidden=true class=slide>c</p></main><p>d</p>")
    (main,) = np.flatnonzero(found.tag == TAGS["main"])
    (section,) = np.flatnonzero(found.tag == TAGS["section"])
    assert (found.first[main], found.last[main]) == (0, 3)
    assert (found.first[section], found.last[section]) == (0, 2)
    assert found.unseen[found.element].tolist() == [0, 0, 1, 0]
    assert found.shape[found.element[0]] == found.shape[found.element[1]] != found.shape[found.element[3]]


def test_rows_of_a_table_and_code_are_kept_as_they_are(blocks):
    code = "def f():\n    return 1"
    table = "<table><tr><td>a</td><td>b</td></tr><tr><td>c</td><td>d</td></tr></table>"
    found = blocks(f"{table}<pre>{code}\n</pre>")
    assert written(found, np.ones(5, bool)) == f"a | b\nc | d\n{code}"
    assert written(found, np.array([True, False, False, True, False])) == "a | b\nc | d"
    assert written(found, np.array([True, False, False, False, False])) == "a | b"


@pytest.mark.parametrize("html", ["", "<html></html>", "<!-- nothing -->", "<script>1</script>"])
def test_a_page_without_text_has_none(html):
    assert main_text(html, "", "") == ("", "", 0, 0)


@pytest.mark.parametrize(
    "html", ["<p>one</p>", "<p>one</p><p>two</p>", "日本語の文章です。" * 20, "<p>" * 300 + "deep", "<li><a>one</a>"]
)
def test_any_page_has_features_that_are_numbers(html):
    blocks = blocks_of(html)
    found = features_of(blocks, html, "http://example.com/a?b", "A title")
    assert found.rows.shape == (len(blocks.texts), len(FEATURES))
    assert np.isfinite(found.rows).all() and (found.words > 0).all()
    assert len(found.of_page) == len(PAGE_FEATURES) and np.isfinite(found.of_page).all()
    for odds in (-60.0, 60.0):
        rows = with_context(blocks, found.rows, found.words, np.full(len(found.words), odds))
        assert np.isfinite(rows).all()


def test_the_parameters_are_of_these_features(blocks):
    """A feature that is added or moved would be read as another one."""
    page = blocks("<p>text</p>")
    found = features_of(page, "<p>text</p>", "", "")
    wide = with_context(page, found.rows, found.words, np.zeros(1))
    assert parameters().first.names == FEATURES
    assert parameters().second.names == (*FEATURES, *CONTEXT) and wide.shape == (1, len(FEATURES) + len(CONTEXT))
    assert len(set(parameters().second.names)) == len(parameters().second.names)
    assert {forest.names for forest in parameters().kinds.values()} == {PAGE_FEATURES}
    assert list(parameters().kinds) == known_kinds()


def test_features_are_what_is_said_of_blocks(blocks):
    """A heading, a link in a menu, a paragraph of 20 words and 3 stops, and a question of 3 words beside it."""
    links = '<nav class="menu"><a href="/">Home</a></nav>'
    prose = "Here it is. There it was! " + "Nobody knows whether it ever will be again where it once was, or not."
    html = f"<h1>A title</h1>{links}<main><p>{prose}</p><p>Is it so?</p></main>"
    found = features_of(blocks(html), html, "", "A title")
    assert found.words.tolist() == [2, 1, 20, 3]
    log, total = np.log1p, 26
    expected = {
        "words": log([2, 1, 20, 3]),
        "stops": [0, 0, 3 / 20, 1 / 3],
        "word length": [7 / 2, 4, len(prose) / 20, 3],
        "ends a sentence": [0, 0, 1, 1],
        "question": [0, 0, 0, 1],
        "label": [0, 1, 0, 0],
        "title words": [1, 0, 0, 0],
        "link share": [0, 1, 0, 0],
        "words before": np.array([0, 2, 3, 23]) / total,
        "number from the end": log([3, 2, 1, 0]),
        "after h1": [0, 1, 2, 3],
        "words after h1": log([0, 2, 3, 23]),
        "heading words": log([2] * 4),
        "alike": log([1, 1, 2, 2]),
        "alike share": np.array([2, 1, 23, 23]) / total,
        "around 1 words": log([26, 26, 23, 23]),
        "around 1 words before": [0, 2 / 26, 0, 20 / 23],
        "around 1 paragraphs": [23 / 26, 23 / 26, 1, 1],
        "around 1 stops": [4 / 26, 4 / 26, 4 / 23, 4 / 23],
        "around 2 children": log([1, 1, 3, 3]),
        "in part 0.95": [0, 0, 1, 0],
        "depth in part 0.5": [-1, -1, 0, 0],
        "in densest": [0, 0, 1, 1],
        "share of densest": [23 / 26] * 4,
        "from previous prose": [-2, -1, 0, 1],
        "from next prose": [2, 1, 0, -1],
        "words at -2": [-1, -1, log(2), log(1)],
        "link share at +1": [1, 0, 0, -1],
        "words within 3": log([26 / 4] * 4),
        "near nav": [0, 1, 0, 0],
        "in <main>": [0, 0, 1, 1],
        "page words a block": [26 / 4] * 4,
        "page prose": [20 / 26] * 4,
        "page headings": [1 / 4] * 4,
        "page nav": [1 / 26] * 4,
        "page <main>": [23 / 26] * 4,
    }
    for name, values in expected.items():
        np.testing.assert_allclose(found.rows[:, FEATURES.index(name)], values, rtol=1e-6, err_msg=name)


@given(st.lists(st.sampled_from([*WORDS_OF_NAMES, *" -_1Aé。"]), max_size=6).map("".join))
def test_an_elements_names_say_what_the_patterns_of_hints_find(names):
    """One pass of an automaton instead of a search by each pattern."""
    expected = sum(HINT_BITS[name] for name, pattern in HINTS.items() if re.search(pattern, names.lower()))
    assert bits_of(names) & ALL_HINTS == expected
    assert bool(bits_of(names) & ODD) == any(pattern.search(names.lower()) for pattern in (FORMULAS, CODE))
    assert bool(bits_of(names) & HIDING) == (hides(names) or is_off(names))


def test_a_forest_adds_up_the_leaves_that_a_row_comes_to():
    trees = [
        {"nodes": [[0, 0.5, -1, 1], [1, 2.0, -2, -3]], "leaves": [1.0, 2.0, 4.0]},
        {"nodes": [], "leaves": [-3.0]},
        {"nodes": [[1, 2.0, -1, -2]], "leaves": [0.5, 0.25]},
    ]
    forest = Forest.of(["a", "b"], trees)
    rows = np.array([[0.5, 9], [1, 2], [1, 3]], np.float32)
    sums = np.array([1 - 3 + 0.25, 2 - 3 + 0.5, 4 - 3 + 0.25])
    for copies in (1, 6, 11):  # rows are read sixteen at a time
        np.testing.assert_allclose(forest.sums(np.tile(rows, (copies, 1))), np.tile(sums, copies))
    assert Forest.of(["a", "b"], []).sums(rows).tolist() == [0, 0, 0]


@given(
    st.lists(
        st.tuples(st.floats(0.01, 0.99), st.integers(1, 50)), min_size=1, max_size=7, unique_by=lambda pair: pair[0]
    )
)
def test_the_expected_f1_of_what_is_chosen_is_the_greatest(pairs):
    probabilities, words = map(np.array, zip(*pairs, strict=True))

    def expected(kept) -> float:
        kept = np.array(kept)
        return float(2 * (probabilities * words)[kept].sum() / (words[kept].sum() + (probabilities * words).sum()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "CAUTION", 1.0)
        patch.setattr(choice, "DOUBT", 1.0)
        patch.setattr(choice, "LEAST", 0.0)
        found = expected(chosen(probabilities, words.astype(float)))
    subsets = itertools.product([False, True], repeat=len(pairs))
    assert found == pytest.approx(max(expected(subset) for subset in subsets if any(subset)))


def test_posts_of_a_thread_come_in_order_and_the_menu_does_not():
    posts = "".join(
        f"<div class=post><div class=author>user{n}</div><div class=post-body><p>Post {n}. {PROSE * 2}</p></div></div>"
        for n in range(4)
    )
    menu = "".join(f"<li><a href=/{n}>Section {n}</a></li>" for n in range(12))
    page = f"<body><nav><ul>{menu}</ul></nav><main><h1>Where to build</h1>{posts}</main><footer>© 2020</footer></body>"
    text, kind, probability, share = main_text(page, "http://forum.example.com/t/where-to-build/1", "Where to build")
    assert kind == "forum"
    assert 1 / len(known_kinds()) < probability <= 1
    assert [line[:7] for line in text.split("\n") if PROSE.strip() in line] == [f"Post {n}." for n in range(4)]
    assert "Section 3" not in text and "©" not in text
    assert 0.5 < share < 1


def reviewed(folder: Path, number: int) -> None:
    """Pages of two layouts, with their main text."""
    for name in ("html", "truth"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for page in range(number):
        texts = [f"Paragraph {page} {part}. {PROSE}" for part in range(6)]
        body, links = (
            "".join(f"<p>{text}</p>" for text in texts),
            "".join(f"<a href=/{n}>Link {n}</a> " for n in range(9)),
        )
        layout = (
            f"<nav>{links}</nav><main>{body}</main>" if page % 2 else f"<article>{body}</article><aside>{links}</aside>"
        )
        kind = "forum" if page % 2 else "article"
        says = {"url": f"http://site{page}.com/", "page_type": kind, "main_content": "\n".join(texts)}
        if page % 6 == 5:  # of some nobody has said their kind
            del says["page_type"]
        (folder / "truth" / f"{page:04}.json").write_text(json.dumps(says))
        (folder / "html" / f"{page:04}.html.gz").write_bytes(gzip.compress(f"<body>{layout}</body>".encode()))


@pytest.mark.exhaustive
def test_the_same_pages_give_the_same_parameters_which_find_the_text(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "tools")
    learn_extraction = pytest.importorskip("learn_extraction")
    for name in ("FIRST_TREES", "SECOND_TREES", "KIND_TREES"):
        monkeypatch.setattr(learn_extraction, name, 35)
    reviewed(tmp_path, 60)
    written_to = [tmp_path / name for name in ("one.json", "two.json")]
    for path in written_to:
        monkeypatch.setattr(sys, "argv", ["learn_extraction.py", str(tmp_path), "--output", str(path)])
        learn_extraction.main()
    assert written_to[0].read_bytes() == written_to[1].read_bytes()
    monkeypatch.setattr(choice, "parameters", lambda: Parameters.parse(written_to[0].read_text()))
    for number, kind in ((2, "article"), (3, "forum")):
        page = gzip.decompress((tmp_path / "html" / f"{number:04}.html.gz").read_bytes()).decode()
        reviewed_text = json.loads((tmp_path / "truth" / f"{number:04}.json").read_text())["main_content"]
        assert main_text(page, "", "")[:2] == (reviewed_text.replace(" \n", "\n").rstrip(), kind)


def test_pages_without_a_kind_teach_their_text_alone(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "tools")
    learn_extraction = pytest.importorskip("learn_extraction")
    for name in ("FIRST_TREES", "SECOND_TREES"):
        monkeypatch.setattr(learn_extraction, name, 2)
    reviewed(tmp_path, 6)
    for path in (tmp_path / "truth").iterdir():
        says = json.loads(path.read_text())
        path.write_text(json.dumps({name: value for name, value in says.items() if name != "page_type"}))
    parameters = json.loads(learn_extraction.learned_from(learn_extraction.examples_of([tmp_path])))
    assert parameters["kinds"] == parameters["kinds_without_url"] == {}


def test_a_page_of_which_only_the_kind_is_known_teaches_its_kind(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "tools")
    learn_extraction = pytest.importorskip("learn_extraction")
    monkeypatch.setattr(learn_extraction, "FIRST_TREES", 2)
    monkeypatch.setattr(learn_extraction, "SECOND_TREES", 2)
    monkeypatch.setattr(learn_extraction, "KIND_TREES", 2)
    reviewed(tmp_path / "pages", 6)
    manual = "<body><h1>m</h1><dl>" + "<dt>name_of_it<dd>what the function does in some words" * 30 + "</dl></body>"
    folder = tmp_path / "manuals"
    (folder / "html").mkdir(parents=True)
    (folder / "html/a.html.gz").write_bytes(gzip.compress(manual.encode()))
    truth = {"a.html.gz": {"url": "http://192.0.2.1/a", "page_type": "documentation"}}
    (folder / "truth.json").write_text(json.dumps(truth))
    read, known = (
        learn_extraction.examples_of(folders) for folders in ([tmp_path / "pages"], [tmp_path / "pages", folder])
    )
    learned, before = (json.loads(learn_extraction.learned_from(one)) for one in (known, read))
    assert list(learned["kinds"]) == list(learned["kinds_without_url"]) == sorted({*before["kinds"], "documentation"})
    assert learned["second"] == before["second"]  # nothing of its text
    _, kinds, weights = learn_extraction.pages_of_kinds([example for example in known if example.page.kind])
    assert kinds == [*["article", "forum"] * 2, "article", "documentation", *["article", "forum"] * 2, "article"]
    assert weights[5] == 1 and set(weights[6:]) == {learn_extraction.BARE}


def test_a_bar_that_leads_through_a_manual_is_no_text_if_there_is_other():
    """As texi2html's in LilyPond's manual, and the menus in pages of cppreference.com."""
    other = "Rain fell on the old harbour all night, and nobody went out to look after the boats that lay there. " * 3

    def text(name, body):
        page = f"<title>Boats</title><div {name}><p>{PROSE * 3}</p></div>{body}"
        return main_text(page, "https://a.org/doc/boats.html", "Boats")[0]

    assert "committee" in text("class=lead", f"<p>{other}</p>")
    for name in (f"{attribute}={name}" for attribute in ("class", "id") for name in sorted(NAVIGATION)):
        assert "committee" not in text(name, f"<p>{other}</p>") and "harbour" in text(name, f"<p>{other}</p>")
        assert "committee" in text(name, "")


@pytest.mark.parametrize("around", ["nav", "aside", "div class=sidebar", "div id=toc"])
def test_a_long_list_of_links_by_name_a_bar_is_no_text(around):
    """As all that a book by mdbook or a reference by Crystal holds, beside each of its short pages."""
    links = [f"<li><a href=p{number}.html>{number}. Of boats and harbours</a></li>" for number in range(1, 41)]
    bar = f"<{around}><ul>{''.join(links)}</ul></{around.split()[0]}>"
    page = f"<title>Oars</title>{bar}<main><h1>Oars</h1><p>{PROSE}</p></main>"
    text, kind, *_ = main_text(page, "https://a.org/doc/oars.html", "Oars")
    assert kind not in choice.OF_LINKS
    assert "committee" in text and "harbours" not in text
    found = blocks_of(page)
    assert found is not None and len(choice.link_bars(found)) == 1


def test_a_sign_that_hides_itself_when_it_has_opened_is_no_text():
    """As rustdoc's `Expand description`, on a page that is open as it comes."""
    page = f"<title>Boats</title><details open><summary class=hideme>Expand it</summary><p>{PROSE * 3}</p></details>"
    assert main_text(page, "https://a.org/doc/boats.html", "Boats")[0] == (PROSE * 3).strip()


def test_prose_with_nothing_around_it_is_an_article_and_a_reference_is_documentation():
    """Manuals have little around their text: with these alone to learn from, all that has little became one."""
    prose = f"<body><article>{f'<p>{PROSE}</p>' * 5}</article></body>"
    methods = "".join(
        f"<dt><code>get_{name}(self, key: str) -> int</code></dt><dd><p>Returns the {name} of a key, or raises "
        "<code>KeyError</code>.</p></dd>"
        for name in ("length", "offset", "width", "height", "number", "weight", "owner", "level")
    )
    reference = f"<body><h1>Class Table</h1><pre>class Table(Base)</pre><h2>Methods</h2><dl>{methods}</dl></body>"
    assert main_text(prose, "http://a.example/1", "A page")[1] == "article"
    assert [main_text(reference, url, "Table")[1] for url in ("http://a.example/1", "")] == ["documentation"] * 2


def test_a_text_is_found_without_the_pages_url():
    page = f"<body><h1>T</h1><ul>{'<li><a href=/a>An item</a>' * 9}</ul>{f'<p>{PROSE}</p>' * 5}</body>"
    blocks = blocks_of(page)
    rows = [
        features_of(blocks, page, url, "T").rows for url in ("http://a.example/", "http://a.example/forum/p/b?c", "")
    ]
    assert (rows[0] == rows[1]).all() and (rows[0] == rows[2]).all()


def test_a_file_without_a_url_is_told_by_what_it_holds_alone():
    page = "<body><h1>T</h1>" + f"<p>{PROSE}</p>" * 5 + "</body>"
    found = {main_text(page, url, "T")[1:3] for url in ("file:forum/thread/a.html", "file:product/p/b.html", "")}
    assert len(found) == 1


def test_a_block_counts_by_how_much_of_it_is_in_the_text(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "tools")
    learn_extraction = pytest.importorskip("learn_extraction")
    text = "Specifications\nThe blade is made of forged steel.\nIt is two feet long and weighs nothing at all."
    blocks = ["Menu", "Specifications", "The blade is made of forged steel.", "It is two feet long and full of holes"]
    words = [learn_extraction.words_of(block) for block in [*blocks, blocks[2], "Home"]]
    labels = learn_extraction.labels_of(words, text)
    assert labels.tolist() == [0, 1, 1, pytest.approx(6 / 9), 0, 0]


def test_segments_say_something_of_the_blocks_that_they_are_in(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "tools")
    learn_extraction = pytest.importorskip("learn_extraction")
    (tmp_path / "html").mkdir()
    texts = ["Home", "It was  seen by many.", "Read more", "a part of a longer segment", "It was. Read more", "else"]
    page = "".join(f"<p>{text}</p>" for text in texts)
    (tmp_path / "html" / "a.html.gz").write_bytes(gzip.compress(page.encode()))
    says = {
        "url": "http://a.example/",
        "with": ["It was", "this is a part of a longer segment"],
        "without": ["Read more"],
    }
    (tmp_path / "truth.json").write_text(json.dumps({"a.html.gz": says}))
    (example,) = learn_extraction.examples_of([tmp_path])
    np.testing.assert_array_equal(example.labels, [np.nan, 1, 0, 1, np.nan, np.nan])
    assert (example.weights > 0).tolist() == [False, True, True, True, False, False]


def test_context_is_what_is_said_of_the_blocks_around(blocks):
    """Two paragraphs that are likely text, and two links beside them that are not."""
    found = blocks(f"<div><p>{PROSE}</p><p>{PROSE}</p></div><ul><li><a>one</a></li><li><a>two</a></li></ul>")
    words, odds = np.array([20.0, 20, 1, 1]), np.array([60.0, 60, -60, -60])
    rows = np.ones((4, 1), np.float32)
    wide = with_context(found, rows, words, odds)
    assert wide[:, 0].tolist() == [1] * 4
    context = dict(zip(CONTEXT, wide.T[1:], strict=True))
    assert context["in run"].tolist() == [1, 1, 0, 0] and context["from run"].tolist() == [0, 0, 1, 2]
    assert context["words from run"].tolist() == pytest.approx([0, 0, np.log(2), np.log(3)])
    assert context["likely if alike"].tolist() == [1, 1, 0, 0] and context["text alike"].tolist() == [1, 1, 0, 0]
    assert context["text before"].tolist() == [0, 0.5, 1, 1] and context["text around 1"].tolist() == [1, 1, 0, 0]
    assert context["in text 0.8"].tolist() == [1, 1, 0, 0]


def test_paragraphs_are_densest_where_readability_would_look(blocks):
    links = "".join(f"<li><a href=/{n}>Another story, of something else</a></li>" for n in range(20))
    page = f"<ul>{links}</ul><div><p>{PROSE}</p><p>{PROSE}</p></div>"
    found = features_of(blocks(page), page, "", "")
    dense = found.rows[:, FEATURES.index("in densest")]
    assert dense.tolist() == [0] * 20 + [1, 1]
    nothing = features_of(blocks("<p>one</p>"), "<p>one</p>", "", "")
    assert nothing.rows[0, FEATURES.index("share of densest")] == 0


def test_odds_of_a_page_come_from_no_forest_that_knows_its_domain(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "tools")
    learn_extraction = pytest.importorskip("learn_extraction")
    reviewed(tmp_path, 12)
    examples = learn_extraction.examples_of([tmp_path])
    for number, example in enumerate(examples):  # two pages a domain
        example.page = dataclasses.replace(example.page, url=f"http://site{number // 2}.com/")
    learned_from = []

    def one_leaf(some, *_):
        learned_from.append({example.page.domain for example in some})
        return [{"nodes": [], "leaves": [float(len(learned_from) - 1)]}]

    monkeypatch.setattr(learn_extraction, "forest_of", one_leaf)
    _, says = learn_extraction.first_forest(examples)
    for example, odds in zip(examples, says, strict=True):
        assert example.page.domain not in learned_from[int(odds[0])]
