"""Formulas, code, tables and lists of a page: what of them is in its text, plain and as Markdown."""

import numpy as np
import pytest

from webtext_prep.errors import InputError
from webtext_prep.extraction.extractors import EXTRACTORS
from webtext_prep.extraction.html.markup import Markup, written
from webtext_prep.extraction.learned.blocks import blocks_of
from webtext_prep.stages.extract import Extract


def mathml(attributes: str = "") -> str:
    source = '<annotation encoding="application/x-tex">E=mc^{2}</annotation>'
    return f"<math{attributes}><semantics><mrow><mi>E</mi></mrow>{source}</semantics></math>"


KATEX = f"<span class=katex><span class=katex-mathml>{mathml()}</span><span class=katex-html>E2</span></span>"


def text_of(html: str, markup: Markup = "plain", *, has_dollars: bool = False) -> str:
    blocks = blocks_of(f"<html><body>{html}</body></html>")
    assert blocks is not None
    return written(blocks, np.ones(len(blocks.texts), bool), markup, has_dollars=has_dollars)


@pytest.mark.parametrize(
    ("html", "text"),
    [
        (mathml(), "$E=mc^{2}$"),
        (mathml(' display="block"'), "$$E=mc^{2}$$"),
        ('<math alttext="E=mc^{2}"><mi>E</mi></math>', "$E=mc^{2}$"),
        ("<math><mi>E</mi> <mo>=</mo><msup><mi>c</mi>\n<mn>2</mn></msup></math>", "E=c2"),
        ("<math><msup><mn>10</mn><mrow><mo>\u2212</mo><mn>3</mn></mrow></msup></math>", "10\u207b\xb3"),
        ("<math><mn>3</mn><mfrac><mn>1</mn><mn>2</mn></mfrac></math>", "31/2"),
        ("<math><mn>10</mn><mo>-</mo><mn>3</mn></math>", "10-3"),
        ('<math><semantics><mi>E</mi><annotation encoding="x">no</annotation></semantics></math>', "E"),
        (
            f"<span><span>{mathml()}</span><img class='mwe-math-fallback-image-inline' alt='E'></span>",
            "$E=mc^{2}$",
        ),
        ("<img class='mwe-math-fallback-image-display' alt='a &lt; b'>", "$$a < b$$"),
        ("<img class=latex alt='$E$'>", "$E$"),
        ("<img class=photo alt='a cat'>", ""),
        (KATEX, "$E=mc^{2}$"),
        (
            f"<mjx-container class=MathJax display=true><mjx-math></mjx-math>{mathml()}</mjx-container>",
            "$$E=mc^{2}$$",
        ),
        ("<mjx-container class=MathJax><mjx-math><mjx-c>E</mjx-c></mjx-math></mjx-container>", "E"),
        (
            "<span class=MathJax_Preview>E</span><span class=MathJax>E</span><script type='math/tex'>a<b</script>",
            "$a<b$",
        ),
        ("<span class=MathJax>E</span>", "E"),
        (r"<span class='math notranslate'>\(E\)</span>", "$E$"),
        (r"<span class='math inline'>E^2</span>", "$E^2$"),
        ("<span class='math inline'><em>E</em><sup>2</sup></span>", "E2"),
        ("<span class=math>homework</span>", "homework"),
        ("<script type='math/tex'> </script>", ""),
        ("<script>var x</script>", ""),
    ],
)
def test_a_formula_stands_once_in_its_sentence(html, text):
    assert text_of(f"<p>so {html} holds</p>").split() == ["so", *text.split(), "holds"]


def test_formulas_between_backslashes_get_dollars_where_the_page_reads_them_so():
    html = r"<p>as \(a+b\) and \[ c \] are</p><pre>\(a+b\)</pre>"
    assert text_of(html, has_dollars=True) == "as $a+b$ and $$c$$ are\n\\(a+b\\)"
    assert text_of(html).startswith(r"as \(a+b\)")


CODE = "def f(x):\n    if x:\n\n        return 1"


@pytest.mark.parametrize(
    "html",
    [
        f"<pre>{CODE}\n</pre>",
        f"<div class=highlight-python><pre><span class=k>def</span>{CODE[3:]}</pre></div>",
        "<pre><code>" + "".join(f"<div>{line or '<br>'}</div>" for line in CODE.split("\n")) + "</code></pre>",
        "<pre>" + CODE.replace("\n", "<br>") + "</pre>",
        "<pre>" + "".join(f"<span class='code-line'>{line}</span>" for line in CODE.split("\n")) + "</pre>",
        "<pre>" + "\n".join(f"<span class=line>{line}</span>" for line in CODE.split("\n")) + "</pre>",
        "<pre>" + "".join(f"<span class=line><i>{line}\n</i></span>" for line in CODE.split("\n")) + "</pre>",
        "<pre>" + "".join(f"<i class=lineno>{at}</i>{line}\n" for at, line in enumerate(CODE.split("\n"))) + "</pre>",
        f"<table><tr><td class=linenos><pre>1\n2\n3\n4</pre></td><td class=code><pre>{CODE}</pre></table>",
        "<table class=blob-wrapper>" + "".join(
            f"<tr><td class=blob-num data-line-number={at}></td><td class=blob-code>{line}</td></tr>"
            for at, line in enumerate(CODE.split("\n"))
        ) + "</table>",
        f"<table><tr><td class=listing_lines><pre>1\n2\n3\n4</pre></td><td><pre>{CODE}</pre></table>",  # gtk-doc
        "<pre>" + "".join(f"<i class=source-line-no>00{at}</i>{line}\n" for at, line in enumerate(CODE.split("\n")))
        + "</pre>",  # javadoc 17
        "<div class=fragment>" + "".join(
            f"<div class=line><a name=l1></a><span class=lineno>   {at}</span>&#160;{line}</div>\n"
            for at, line in enumerate(CODE.split("\n"))
        ) + "<div class=ttc><div class=ttname>f</div></div></div>",  # Doxygen 1.9
    ],
)  # fmt: skip
def test_code_keeps_its_lines_and_loses_their_numbers(html):
    found = text_of(f"<p>before</p>{html}<p>after</p>").split("\n")
    wanted = ["before", *CODE.split("\n"), "after"]
    assert [line for line in found if line.strip()] == [line for line in wanted if line]


def test_what_an_unclosed_pre_holds_is_no_code():
    found = blocks_of("<body><pre>code\n  here<p>one</p><h2>more</h2><p>two</p>")
    assert found is not None
    assert not found.code
    assert found.texts == ["code\n  here", "one", "more", "two"]


@pytest.mark.parametrize(
    "layout",
    [
        "<table><tr><td><h2>menu</h2></td><td>text</td></tr><tr><td>x</td><td>y</td></tr></table>",
        f"<table><tr><td>menu</td><td>{'word ' * 61}</td></tr><tr><td>x</td><td>y</td></tr></table>",
        "<table><tr><td>menu</td><td><table><tr><td>a</td></tr></table></td></tr><tr><td>x</td><td>y</td></tr></table>",
        "<table><tr><td>one</td></tr><tr><td>two</td></tr></table>",
    ],
)
def test_a_table_that_places_things_is_none(layout):
    assert " | " not in text_of(layout)


def test_a_row_is_a_line_and_a_cell_of_several_paragraphs_one_cell():
    table = "<table><tr><th>a<th>b</tr><tr><td>1<td></tr><tr><td>2<td><p>x</p><p>y|z</p></tr></table>"
    assert text_of(table) == "a | b\n1\n2 | x y|z"
    assert text_of(table, "markdown") == "| a | b |\n|---|---|\n| 1 |  |\n| 2 | x y\\|z |"


def test_a_cell_without_text_leaves_its_place():
    table = "<table><tr><th><th>2019<th>2020</tr><tr><td>Rope<td><td>5</tr><tr><td colspan=2>Sails<td>7</tr></table>"
    assert text_of(table) == "| 2019 | 2020\nRope | | 5\nSails | | 7"


def test_a_column_without_text_is_none():
    table = "<table><tr><td>S<td>&nbsp;<td>text</tr><tr><td>N<td><td>number</tr></table>"  # fpdoc 3.2
    assert text_of(table) == "S | text\nN | number"
    assert text_of(table, "markdown") == "| S | text |\n|---|---|\n| N | number |"


def test_what_is_only_named_like_code_is_none():
    found = blocks_of("<body><div class=fragment><p>one</p><div class=line>two</div></div><p class=fragment>three</p>")
    assert found is not None
    assert (found.texts, found.code) == (["one", "two", "three"], {})


def test_a_table_with_a_caption_is_one():
    table = "<table><caption>Rates</caption><tr><th>a<th>b</tr><tr><td>1<td>2</tr></table>"
    assert text_of(table) == "Rates\na | b\n1 | 2"


def test_a_heading_in_a_row_of_its_own_parts_a_table():
    """As doxygen's members of a class."""
    table = "<table><tr><td colspan=2><h2>Rates</h2></tr><tr><td>a<td>1</tr><tr><td>b<td>2</tr></table>"
    assert text_of(table) == "Rates\na | 1\nb | 2"
    assert text_of(table, "markdown") == "## Rates\n\n| a | 1 |\n|---|---|\n| b | 2 |"


@pytest.mark.parametrize(
    ("html", "kept", "text"),
    [
        ("<table><tr><td>int<td>count<td>of boats</tr><tr><td>a<td>b<td>c</tr></table>", "2", "int | count | of boats"),
        ("<dl><dt>sail<dt>oar<dd>moves a boat<dt>keel<dd>steadies it</dl>", "2", "sail\noar\nmoves a boat"),
        ("<dl><dt>sail<dd><p>moves</p><p>a boat</p><dt>keel<dd>it</dl>", "0", "sail\nmoves\na boat"),
        ("<dl><dt>sail<dd><p>moves</p><p>a boat</p><dt>keel<dd>it</dl>", "01", "sail\nmoves"),
    ],
)
def test_what_belongs_together_is_kept_together(html, kept, text):
    blocks = blocks_of(f"<html><body>{html}</body></html>")
    assert blocks is not None
    assert written(blocks, np.isin(np.arange(len(blocks.texts)), [int(one) for one in kept])) == text


@pytest.mark.parametrize("extractor", ["newspaper", "resiliparse"])
def test_an_extractor_that_writes_no_markdown_is_refused(extractor):
    with pytest.raises(InputError, match=f"--markup markdown needs --extractor learned or trafilatura: {extractor}"):
        Extract(extractor=extractor, markup="markdown")


@pytest.mark.parametrize("extractor", ["learned", "trafilatura"])
def test_markdown_is_what_the_extractor_was_asked_for(extractor):
    prose = "<p>Some prose that is long enough to be kept. </p>" * 9
    page = f"<html><body><article><h2>Title</h2>{prose}</article></body></html>"
    assert "## Title" in EXTRACTORS[extractor](page.encode(), "http://a.example/", None, markup="markdown").text
    assert "## Title" not in EXTRACTORS[extractor](page.encode(), "http://a.example/", None).text


def test_a_document_type_of_xhtml_changes_no_block():
    """libxml2 writes a tree of such a type with ids for names, which say what elements are."""
    page = "<html><body><form name=navfooter><p>text</p></form></body></html>"
    kind = (
        '<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.0 Strict//EN" "http://www.w3.org/TR/xhtml1/DTD/xhtml1-strict.dtd">'
    )
    found, of_type = blocks_of(page), blocks_of(kind + page)
    assert not found.bars
    assert not of_type.bars
    assert of_type.all_hints.tolist() == found.all_hints.tolist()
