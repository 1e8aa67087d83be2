"""Pages as Markdown: what a reader of CommonMark with tables (markdown-it-py 4.3) shows of it.

It reads as its two authorities say: CommonMark 0.31, and GitHub's specification 0.29 for tables, whose rows have as
many cells as the header: what stands beyond is dropped.
"""

import random
from html import escape

import numpy as np
import pytest
from lxml import html as parsed
from markdown_it import MarkdownIt

from webtext_prep.extraction.html.markup import written
from webtext_prep.extraction.learned.blocks import blocks_of

READERS = [MarkdownIt("commonmark").enable("table"), MarkdownIt("gfm-like", {"linkify": False})]


def markdown_of(html):
    blocks = blocks_of(f"<html><body>{html}</body></html>")
    assert blocks is not None
    return written(blocks, np.ones(len(blocks.texts), bool), "markdown")


def shown(text, reader=READERS[0]):
    return parsed.fromstring(f"<div>{reader.render(text)}</div>")


def rows_shown(text):
    return [[(cell.text_content()).strip() for cell in row.iter("td", "th")] for row in shown(text).iter("tr")]


@pytest.mark.parametrize(
    "text",
    [
        "A list is Vec<T>, a pair Result<String, Error>, <b>not bold</b>, <https://a.example>, <me@a.example>, a < b.",
        "<div> holds it.",
        "<!-- no comment",
        "Write &lt; and &amp; and &#35; and &#x23; and AT&T; and R&D.",
        "f(*args, **kwargs) takes *all* of 2 * 3 * 4, and 5*3*2; prices* of cost* are ~100, ~~not~~, ~this~ one",
        "__init__ and _private_ and snake_case, __name__",
        "C:\\dir\\*.txt, \\_ and \\\\ and \\",
        "`code` and ``",
        "See [the page](https://a.example) and ![x](y) and [1] and [2][3]",
        "[1]: https://a.example is where it is from",
        "[a [b] \\] c]: d",
        "[^1]: a note",
        "[ ] a task",
        "- that is what he said",
        "+ 49 30 1234",
        "* a note",
        "1986. A great year",
        "7) seven",
        "# 1 in the charts",
        "> a line of a mail",
        "***",
        "- - -",
        "--",
        "___",
        "~~~ is a sign",
        "``` is a sign",
        "a | b",
        "1234567890. more digits than a number of a list has",
    ],
)
def test_a_reader_shows_every_sign_of_a_text_wherever_it_stands(text):
    own = escape(text)
    page = (
        f"<p>{own}</p><h2>{own}</h2><ul><li>{own}</li><li><p>x</p><p>{own}</p></li></ul><blockquote>{own}</blockquote>"
        f"<table><tr><td>{own}</td><td>y</td></tr><tr><td>z</td><td>{own}</td></tr></table>"
    )
    for reader in READERS:
        found = shown(markdown_of(page), reader)
        texts = [one.text_content() for one in found.iter("p", "h2", "th", "td")]
        assert texts == [text, text, text, "x", text, text, text, "y", "z", text]


@pytest.mark.parametrize("text", ["snake_case", "2 * 3 * 4", "a < b", "R&D", "5 - 3", "the 1986. year", "[1]", "~100"])
def test_what_means_nothing_to_a_reader_has_no_backslash(text):
    assert markdown_of(f"<p>so {escape(text)} is</p>") == f"so {text} is"


def test_signs_of_formulas_stay_latex():
    assert markdown_of(r"<p>as $x_{1}*y_{2}$, $a&lt;b$ and \*</p>") == r"as $x_{1}*y_{2}$, $a< b$ and \\*"
    assert markdown_of("<p>it costs $5 *or* $6</p>") == r"it costs $5 \*or\* $6"


def test_a_heading_ends_as_it_does_on_the_page():
    assert [one.text for one in shown(markdown_of("<h2>C #</h2><h3>F ##</h3><h4>C#</h4>"))] == ["C #", "F ##", "C#"]


SIGNS = (
    *"*_`~\\<>&[]()!#-+=|:.$^ x5é。",
    *("  ", "**", "__", "```", "~~~", "---", "===", "1.", "1) ", "<b>", "-->", "&lt;"),
    *("[a]: ", "](", "|-|", "# ", "- ", "<a@b.c>", "<http:"),
)


def page_of_signs(chosen):
    """A page of elements in each other with texts of signs; at most one dollar in each, so that none is a formula."""

    def text():
        signs = "".join(chosen.choices(SIGNS, k=chosen.randint(1, 8)))
        return escape(signs if signs.count("$") < 2 and signs.strip() else "b")

    def element(depth):
        inner = element(depth + 1) if depth < 4 and chosen.random() < 0.6 else f"<p>{text()}</p>"
        row = f"<tr><td>{text()}</td><td>{text()}</td></tr>"
        return chosen.choice(
            [
                f"<p>{text()}</p>",
                f"<h{1 + depth}>{text()}</h{1 + depth}>",
                f"<ul><li>{text()}</li><li>{inner}</li></ul>",
                f"<ol start={chosen.randint(0, 12)}><li>{text()}{inner}</li><li>{text()}</li></ol>",
                f"<blockquote>{inner}{text()}</blockquote>",
                f"<pre>{text()}\n {text()}</pre>",
                f"<pre>{text()}\n{text()}\n{text()}<p>{text()}</p></pre>",
                f"<table>{row}{row}</table>",
            ]
        )

    return "".join(element(0) for _ in range(chosen.randint(1, 5)))


def test_a_reader_shows_every_sign_of_pages_of_signs():
    chosen = random.Random(7)
    for _ in range(150):
        page = page_of_signs(chosen)
        blocks = blocks_of(f"<html><body>{page}</body></html>")
        assert blocks is not None
        for reader in READERS:
            found = shown(markdown_of(page), reader).text_content()
            assert "".join(found.split()) == "".join("".join(blocks.texts).split()), page


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        (
            "<tr><th colspan=3>Rates</th></tr><tr><td>1<td>Ohio<td>40</tr>",
            [["Rates", "", ""], ["1", "Ohio", "40"]],
        ),
        ("<tr><th>Rates</th></tr><tr><td>1<td>Ohio<td>40</tr>", [["Rates", "", ""], ["1", "Ohio", "40"]]),
        (
            "<tr><th>A<th colspan=2>B</tr><tr><td>1<td>2<td>3</tr>",
            [["A", "B", ""], ["1", "2", "3"]],
        ),
        (
            "<tr><th>Y<th>T<th>P</tr><tr><td rowspan=2>2020<td>R<td>1</tr><tr><td>B<td>2</tr><tr><td>x<td>y<td>z</tr>",
            [["Y", "T", "P"], ["2020", "R", "1"], ["", "B", "2"], ["x", "y", "z"]],
        ),
        (
            "<tr><td rowspan=2 colspan=2>a<td>b</tr><tr><td>c</tr><tr><td>d<td>e<td>f</tr>",
            [["a", "", "b"], ["", "", "c"], ["d", "e", "f"]],
        ),
        (  # 0: as far as the row group goes
            "<tbody><tr><td rowspan=0>a<td>b</tr><tr><td>c</tr></tbody><tbody><tr><td>d<td>e</tr></tbody>",
            [["a", "b"], ["", "c"], ["d", "e"]],
        ),
        (  # a row group ends what goes on below
            "<thead><tr><th rowspan=9>a<th>b</tr></thead><tbody><tr><td>c<td>d</tr></tbody>",
            [["a", "b"], ["c", "d"]],
        ),
        (  # no cell begins in the other columns, which the HTML standard calls an error and browsers don't show
            "<tr><td colspan=1000>a<td>b</tr><tr><td colspan=1000>c<td>d</tr>",
            [["a", "b"], ["c", "d"]],
        ),
        ("<tr><td colspan=x rowspan=-1>a<td>b</tr><tr><td>c<td>d</tr>", [["a", "b"], ["c", "d"]]),
        ("<tr><td>a|b<td>c\\|d</tr><tr><td>e\\<td>f</tr>", [["a|b", "c\\|d"], ["e\\", "f"]]),
        ("<tr><td>a<td>b</tr><tr><form><td>c<td></td></form></tr>", [["a", "b"], ["c", ""]]),
        ("<tr><td>a<br>b<td>c</tr><tr><td>d<td>e</tr>", [["a b", "c"], ["d", "e"]]),
    ],
)
def test_a_reader_shows_every_cell_in_its_column(rows, wanted):
    for around in ("{}", "<p>before</p>{}<p>after</p>", "<ul><li>a{}</li></ul>", "<blockquote>{}</blockquote>"):
        assert rows_shown(markdown_of(around.format(f"<table>{rows}</table>"))) == wanted


def test_a_wide_row_makes_no_wide_table_of_others():
    wide = f"<tr>{'<td>x' * 500}</tr>" + "<tr><td>a<td>b</tr>" * 500
    text = markdown_of(f"<table>{wide}</table>")
    assert len(text) < 20_000
    assert text.endswith("| a | b |\n| a | b |")


def lists_shown(text):
    """Of each item that a reader shows, its number and its text."""
    return [
        (int(one.getparent().get("start", 1)) + at, " ".join(one.text_content().split()))
        for listed in shown(text).iter("ol")
        for at, one in enumerate(listed)
    ]


@pytest.mark.parametrize(
    ("html", "numbers"),
    [
        ("<ol><li>a<li>b</ol>", [1, 2]),
        ("<ol start=3><li>a<li>b</ol>", [3, 4]),
        ("<ol start=' +7th'><li>a<li>b</ol>", [7, 8]),
        ("<ol start=x><li>a<li>b</ol>", [1, 2]),
        ("<ol start=0><li>a<li>b</ol>", [0, 1]),
        ("<ol><li value=7>a<li>b<li value=7>c<li value=x>d</ol>", [7, 8, 7, 8]),
        ("<ol reversed><li>a<li>b<li>c</ol>", [3, 2, 1]),
        ("<ol reversed start=10><li>a<li>b<li value=3>c<li>d</ol>", [10, 9, 3, 2]),
        ("<ol><div><li>a<li>b</div><li>c</ol>", [1, 2, 3]),
        ("<ol><li>a<li>b</ol><ol><li>c<li>d</ol>", [1, 2, 1, 2]),
        ("<ol start=9><li>a<li>b<pre>x</pre><li>c</ol>", [9, 10, 11]),
    ],
)
def test_a_reader_shows_the_number_of_each_item(html, numbers):
    assert [number for number, _ in lists_shown(markdown_of(html))] == numbers


def test_a_number_that_no_item_can_have_stands_before_it():
    found = shown(markdown_of("<ol start=-1><li>a</li><li>b</li></ol>"))
    assert found.text_content().split() == ["-1.", "a", "b"]
    assert len(found.findall(".//li")) == 2


def test_lists_lie_as_deep_as_on_the_page():
    text = markdown_of("<ol start=9><li>a</li><li>b<ol start=5><li>c</li></ol><ul><li>d</li></ul></li><li>e</li></ol>")
    assert text == "9. a\n10. b\n\n    5. c\n\n    - d\n11. e"
    assert lists_shown(text) == [(9, "a"), (10, "b c d"), (11, "e"), (5, "c")]


def test_lists_that_lie_deeper_than_readers_read_lose_nothing():
    text = markdown_of("".join(f"<ul><li>item{at}" for at in range(60)))
    assert shown(text).text_content().split() == [f"item{at}" for at in range(60)]


def test_what_lies_in_an_item_or_a_quote_is_shown_in_it():
    html = (
        "<h2>T</h2><p>One.</p><p>Two.</p><ul><li>a<ol><li>b</li><li>c</li></ol></li><li><p>d</p><p>e</p></li>"
        "<li><h3>f</h3><pre>g\n  h</pre>i</li></ul>"
        "<blockquote><p>q</p><ul><li>r</li></ul><pre>s\n\nt</pre></blockquote><blockquote>u</blockquote>"
        "<pre><code class='language-python'>x = 1\n```\n</code></pre><p>end</p>"
    )
    text = markdown_of(html)
    assert text == (
        "## T\n\nOne.\n\nTwo.\n\n- a\n  1. b\n  2. c\n- d\n\n  e\n- ### f\n\n  ```\n  g\n    h\n  ```\n\n  i\n\n"
        "> q\n>\n> - r\n>\n> ```\n> s\n>\n> t\n> ```\n\n> u\n\n````python\nx = 1\n```\n````\n\nend"
    )
    found = shown(text)
    assert [one.text for one in found.iter("pre", "code") if one.text] == ["g\n  h\n", "s\n\nt\n", "x = 1\n```\n"]
    assert [one.tag for one in found] == ["h2", "p", "p", "ul", "blockquote", "blockquote", "pre", "p"]


def test_an_item_whose_first_text_is_left_out_is_one_all_the_same():
    blocks = blocks_of("<body><ol><li><p>a</p><p>b</p></li><li>c</li><li>d</li></ol>")
    assert blocks is not None
    text = written(blocks, np.array([False, True, False, True]), "markdown")
    assert lists_shown(text) == [(1, "b"), (3, "d")]


def test_a_line_end_is_shown_as_one():
    text = markdown_of("<pre>one*\n  - two\n\nthree<p>four</p></pre>")
    assert text == "one*  \n\\- two\n\nthree\n\nfour"
    assert [len(one.findall("br")) for one in shown(text)] == [1, 0, 0]
