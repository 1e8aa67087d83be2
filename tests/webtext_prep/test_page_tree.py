"""What a reader sees of a page, whatever extracts it: lines and their breaks, no hidden text, no signs of links."""

import numpy as np
import pytest

from webtext_prep.extraction.extractors import EXTRACTORS
from webtext_prep.extraction.html.markup import written
from webtext_prep.extraction.html.page_tree import LARGE, LEAST_SHOWN, as_browsers_read, tree_of
from webtext_prep.extraction.learned.blocks import blocks_of
from webtext_prep.extraction.learned.choice import own_heading, section_headings

BEFORE = "The committee met on Tuesday evening in the town hall and spoke for two hours about the bridge and its price."
AFTER = "At the end the chairman asked everybody to write down one wish, and the secretary promised to print them all."
SECRET = "Cheap loans and online casinos stand in this paragraph, which no visitor of the page sees on any screen."


def page_of(body, head="<meta charset=utf-8><title>The bridge</title>"):
    main = f"<h1>The bridge</h1><p>{BEFORE}</p>{body}<p>{AFTER}</p>"
    return f"<!DOCTYPE html><html><head>{head}</head><body><main>{main}</main></body></html>"


def text_by(name, body):
    return EXTRACTORS[name](page_of(body).encode(), "http://example.com/bridge", None).text


@pytest.fixture
def texts():
    """`texts(html)` are the texts of those of a body's blocks that are seen."""

    def seen(html):
        blocks = blocks_of(f"<html><head><title>t</title></head><body>{html}</body></html>")
        return [text for text, is_seen in zip(blocks.texts, blocks.seen, strict=True) if is_seen]

    return seen


every_extractor = pytest.mark.parametrize("name", EXTRACTORS)


@every_extractor
@pytest.mark.parametrize(
    ("html", "line"),
    [
        (
            "<p>We use a <glossary-term key=h>hash table</glossary-term> for that, as "
            "<user-mention>@alice</user-mention> wrote on Monday in her long and careful notes about it.</p>",
            "We use a hash table for that, as @alice wrote on Monday in her long and careful notes about it.",
        ),
        (
            "<p>The meeting in <st1:City w:st=on>Lisbon</st1:City> was moved to June, and <output>42</output> people "
            "asked the secretary <button>Ann Lee</button> for the reason, which nobody knew.<o:p></o:p></p>",
            "The meeting in Lisbon was moved to June, and 42 people asked the secretary Ann Lee for the reason, which "
            "nobody knew.",
        ),
        (  # trafilatura 2.3.1 and Resiliparse 2.0.1 lose the words of `time` and `label`; the former tears at `q`
            "<p>The first boat leaves on <time datetime=2026-05-03>3 May</time> from the pier that <q>the old ones</q> "
            "built, if you tick <label for=a>early</label> in the form that they hand out.</p>",
            "The first boat leaves on 3 May from the pier that the old ones built, if you tick early in the form that "
            "they hand out.",
        ),
    ],
)
def test_an_element_in_a_sentence_does_not_tear_it(name, html, line):
    assert line in text_by(name, html).split("\n")


@every_extractor
@pytest.mark.parametrize(
    "ruby",
    [
        "<ruby>人<rt>ひと</rt></ruby>が<ruby>集<rp>(</rp><rt>あつ</rt><rp>)</rp></ruby>",
        "<ruby><rb>人</rb><rt>ひと</rt></ruby>が<ruby>集<rt>あつ</ruby>",
        "<ruby><span>人</span><span><rt>ひと</rt></span></ruby>が<ruby>集<span><rp>(</rp><rt>あつ</rt></span></ruby>",
        "<ruby>人<rtc><rt>ひと</rt></rtc></ruby>が<ruby>\n  <rb>集</rb>\n  <rt>あつ</rt>\n</ruby>",
    ],
)
def test_ruby_is_its_text_without_readings(name, ruby):
    sentence = (
        "東京の公園にはたくさんの{}まっていました。子どもたちは芝生の上で走り回り、大人たちは本を読んでいました。"
    )
    text = text_by(name, f"<p>{sentence.format(ruby)}</p>")
    assert sentence.format("人が集") in text.split("\n")


def test_a_reading_that_is_left_open_does_not_hide_the_next_text(texts):
    """HTML, 13.1.2.4: the end tags of `rb` and `rt` may be left out; libxml2 (2.14.6) nests what follows."""
    assert texts("<p><ruby><rb>漢<rt>kan<rb>字<rt>ji</ruby>です</p>") == ["漢字です"]


@every_extractor
@pytest.mark.parametrize(
    ("html", "line"),
    [
        ("10<sup>3</sup> stones", "10\xb3 stones"),
        ("10<SUP>-6</SUP> m", "10\u207b\u2076 m"),
        ("<b>10</b><i><sup>\u221215</sup></i> m", "10\u207b\xb9\u2075 m"),
        ("in 1805<a id=a></a><sup><a href='#n4'>4</a></sup> again", "in 1805\u2074 again"),
        ("at 12<!-- o'clock --><sup>30</sup> sharp", "at 12\xb3\u2070 sharp"),
        ("<i><sup>7</sup></i>12 stones", "\u207712 stones"),
        ("a word<sup>1</sup>, the 1<sup>st</sup>, 10 <sup>3</sup>, x<sup>2</sup>", "a word1, the 1st, 10 3, x2"),
    ],
)
def test_a_number_above_the_line_is_not_one_with_the_number_beside_it(name, html, line):
    text = text_by(name, f"<p>Of the bridge: {html}, as it was written down in the chronicle of the town.</p>")
    assert f"Of the bridge: {line}, as it was" in text


@pytest.mark.parametrize(
    ("html", "lines"),
    [
        ("101<sub>2</sub>", ["101\u2082"]),
        ("SO<sub>4</sub><sup>2-</sup>", ["SO\u2084\xb2\u207b"]),
        ("H<sub>2</sub>O, C<sub>12</sub>H<sub>22</sub>", ["H2O, C12H22"]),
        ("10<br><sup>3</sup>", ["10\n3"]),
        ("<table><tr><td>10<td><sup>3</sup></table>", ["10", "3"]),
    ],
)
def test_a_number_below_the_line_is_none_with_another_beside_it(texts, html, lines):
    assert texts(html) == lines


def test_resiliparse_keeps_texts_of_one_character():
    """resiliparse 2.0.1 drops each that has three bytes when it looks for the main content."""
    text = text_by("resiliparse", f"<p>From <b>1990</b>–<b>1995</b> and <i>3</i> &mdash; <b>4</b>. {BEFORE}</p>")
    assert "From 1990–1995 and 3 — 4." in text
    assert "\x01" not in text


@pytest.mark.parametrize(
    ("html", "found"),
    [
        ("<div>Posted by <button>Ann</button>, editor</div>", ["Posted by Ann, editor"]),
        ("<div>a <span><x-a>b</x-a></span> c</div>", ["a b c"]),
        ("<p><b>The</b> <x-a><x-b>list</x-b></x-a></p>", ["The list"]),
        ("<div>a<x-icon></x-icon>b</div>", ["ab"]),
        # As a container it is a block, as in a page that is made of such elements.
        ("<x-card><x-title>Foo</x-title><x-text>bar</x-text></x-card>", ["Foo", "bar"]),
        ("<div><button>Share</button> <button>Like</button></div>", ["Share", "Like"]),
        ("<div>a<x-box><p>b</p></x-box>c</div>", ["a", "b", "c"]),
        ("<div>a<br><x-a>b</x-a></div>", ["a", "b"]),
        # So is a block that its style sets in line.
        ("<div>a <div style='display:inline'>b</div> c</div>", ["a b c"]),
        ("<div><h4 style='color:red; display: inline'>a</h4> b</div>", ["a b"]),
        ("<div style='display:inline'>a</div><div style='display: inline'><p>b</p></div>", ["a", "b"]),
        ("<div>a<div style='display:inline-block'>b</div></div>", ["a", "b"]),
    ],
)
def test_an_element_that_is_no_block_is_inline_where_text_stands_beside_it(texts, html, found):
    assert texts(html) == found


@pytest.mark.parametrize(
    ("html", "found"),
    [
        ("<p>one<br>two</p>", ["one\ntwo"]),
        ("<p>one<br><br/>two<br>&nbsp;<br><br>three</p>", ["one\n\ntwo\n\nthree"]),
        ("<p><br>one <b>two<br></b>\n three<br></p>", ["one two\nthree"]),
        ("<pre><p>one<br>  two</p></pre>", ["one\n  two"]),
        # So is what a style sets apart from the text around it.
        ("<p><span style='display: block'>Read in 3 minutes</span>The bridge</p>", ["Read in 3 minutes\nThe bridge"]),
        ("<p>one<a href=/ style='display:block'>two</a> <b style='display:flex'>three</b></p>", ["one\ntwo\nthree"]),
        ("<p>one <b style='display:inline-block'>two</b> three</p>", ["one two three"]),
        # An end tag alone is one, too, and twice what HTML has once.
        ("<p>one</br>two</BR >three<br></br>four</p>", ["one\ntwo\nthree\n\nfour"]),
    ],
)
def test_a_break_is_a_line_and_two_are_a_paragraph(texts, html, found):
    assert texts(html) == found


@pytest.mark.parametrize(
    ("html", "markdown"),
    [
        ("<p>one<br>two<br><br>three</p>", "one  \ntwo\n\nthree"),
        ("<h2>one<br>two</h2>", "## one two"),
        ("<ul><li>one<br>two</ul>", "- one  \n  two"),
        ("<blockquote>one<br>two</blockquote>", "> one  \n> two"),
        (
            "<table><tr><td>a<br>b<td>c<tr><td>d<td>e</table>",
            "| a b | c |\n|---|---|\n| d | e |",
        ),
    ],
)
def test_a_break_is_a_hard_one_in_markdown(html, markdown):
    blocks = blocks_of(f"<html><body>{html}</body></html>")
    assert written(blocks, blocks.element >= 0, "markdown") == markdown


HIDING = [
    "hidden",
    "hidden=''",
    "style='display:none'",
    "style='color:red; Display : NONE !important'",
    "style=visibility:hidden",
    "style='position:absolute;left:-9999px'",
    "style='clip: rect(0 0 0 0); position: absolute'",
    "class=sr-only",
    "class='note visually-hidden'",
    "class=screen-reader-text",
    "class=visuallyhidden",
    "class=assistive-text",
    "class=show-for-sr",
    "class=a-offscreen",
    "class=element-invisible",
    "class=ui-helper-hidden-accessible",
    "class=govuk-visually-hidden",
    "class=visually-hidden-focusable",
    "style='overflow: hidden; position: absolute; width: 1px; height: 1px'",
    "style=visibility:collapse",
]


@pytest.mark.parametrize("name", ["learned", "trafilatura", "newspaper"])  # rare: all pages would cost resiliparse more
@pytest.mark.parametrize(
    "hiding",
    [
        "class=u-hiddenVisually",
        "class=hide-visually",
        "class=visuallyHidden__3kXq2",
        "class=is-srOnly",
        "style='position:absolute; left:-500em'",
        "style='clip-path:circle(0)'",
        "style='clip-path: polygon(0 0, 0px 0px, 0 0)'",
        "class=hidden",
        "class='badge d-none'",
    ],
)
def test_hidden_text_is_known_by_more_spellings(name, hiding):
    assert "jane@example.org" in text_by(name, f"<p>Write to jane<span {hiding}>nospam</span>@example.org.</p>")


@pytest.mark.parametrize(
    "html",
    [
        "<p>nine <span class='hidden sm:inline'>red</span> euros</p>",
        "<p>nine <span class='d-none d-md-inline'>red</span> euros</p>",
        "<p>nine <span class='md:hidden'>red</span> euros</p>",
        "<p>nine <span style='clip-path:circle(50%)'>red</span> euros</p>",
        "<div><span class=d-none>nine red euros</span></div>",  # not in a line: scripts may show it
        "<p>nine <span class=accordion><b class=hide>red</b></span> euros</p>",
    ],
)
def test_classes_that_hide_on_some_screens_or_what_a_script_shows_hide_nothing(texts, html):
    assert texts(html) == ["nine red euros"]


@every_extractor
@pytest.mark.parametrize(
    "html",
    [
        "<p>To <span style='visibility:hidden'>no<b style='visibility: visible'>jane@example.org</b>spam</span> they "
        "write if they have to.</p>",
        "<div style='visibility:hidden'><p>nospam</p><div><p style='visibility:visible'>jane@example.org wrote all "
        "that is said here of the bridge, its price, and of who should pay for it, before night.</p></div></div>",
    ],
)
def test_what_is_visible_again_in_an_invisible_part_is_read(name, html):
    text = text_by(name, html)
    assert "jane@example.org" in text
    assert "spam" not in text


@pytest.mark.parametrize(
    ("html", "found"),
    [
        ("<div style='visibility:hidden;display:none'>a<p style='visibility:visible'>b</p></div>", []),
        ("<div style='visibility:hidden'>a<div hidden><p style='visibility:visible'>b</p></div></div>", []),
        ("<div hidden>a<p style='visibility:visible'>b</p></div>", []),
        ("<div style='visibility:hidden'>a<i style='visibility:visible'>b</i><p>c</p></div>", ["b"]),
        (
            "<p style='visibility:hidden'>a<b style='visibility:visible'>b<i style='visibility:hidden'>c</i></b></p>",
            ["b"],
        ),
    ],
)
def test_only_an_invisible_part_can_hold_what_is_visible(texts, html, found):
    assert texts(html) == found


@pytest.mark.parametrize(
    "hidden", ["<template>{}</template>", "<div hidden><p>{}</p></div>", "<pre style='display:none'>{}</pre>"]
)
def test_a_part_that_is_not_displayed_does_not_tear_the_line_around_it(texts, hidden):
    assert texts(f"<div>one <a href=/>two</a>{hidden.format('x')} three<p>four</p></div>") == ["one two three", "four"]
    assert texts("<div>one<div style='visibility:hidden'>x</div>two</div>") == ["one", "two"]


@every_extractor
def test_a_style_that_only_looks_like_a_hiding_one_hides_nothing(name):
    html = "<div style='{}'><p>It costs nine euros.</p></div>"
    for style in (
        "position:absolute;min-width:1px;overflow:hidden",
        "width:1px;overflow:visible;position:absolute",
        "left:-99em",
    ):
        assert "nine euros" in text_by(name, html.format(style))


@every_extractor
@pytest.mark.parametrize("hiding", ["style='font-size:0'", "style='color:red;font-size: 0px'", "class=a11y-hidden"])
def test_letters_without_a_size_are_not_read(name, hiding):
    text = text_by(name, f"<p>It costs nine euros<span {hiding}>X</span>.</p>")
    assert "nine euros." in text


@every_extractor
@pytest.mark.parametrize("hiding", HIDING)
def test_hidden_text_is_not_read_in_a_sentence_or_as_a_block(name, hiding):
    text = text_by(
        name, f"<p>Write to jane<span {hiding}>nospam</span>@example.org.</p><div {hiding}><p>{SECRET}</p></div>"
    )
    assert "jane@example.org" in text
    assert SECRET not in text


@every_extractor
@pytest.mark.parametrize(
    "html",
    [
        "<template><p>{}</p></template>",
        "<dialog><p>{}</p></dialog>",
        "<div aria-hidden=true><p>{}</p></div>",
        "<div popover><p>{}</p></div>",
        "<noembed><p>{}</p></noembed>",
        "<noframes><p>{}</p></noframes>",
        "<iframe><p>{}</p></iframe>",
        "<select><option>{}</option></select>",
        "<object data=x><p>{}</p></object>",
        "<video><p>{}</p></video>",
    ],
)
def test_what_browsers_do_not_display_is_not_read(name, html):
    assert SECRET not in text_by(name, html.format(SECRET))


@pytest.mark.parametrize(
    "html",
    [
        "<details><summary>More</summary><p>{}</p></details>",
        "<noscript><p>{}</p></noscript>",
        "<template shadowrootmode=open><p>{}</p></template>",
        "<dialog open><p>{}</p></dialog>",
        "<div hidden=until-found><p>{}</p></div>",
        "<div role=tabpanel hidden><p>{}</p></div>",
        "<div class=accordion><h3>Why?</h3><div style='display:none'><p>{}</p></div></div>",
        "<button aria-expanded=false>Why?</button><div hidden><p>{}</p></div>",
        "<div style='cursor: pointer'>Why?</div><div style='visibility: hidden'><p>{}</p></div>",
        "<h3>Why?<span class=toggler></span></h3><div style='display:none'><p>{}</p></div>",
        "<div hidden id=S:1f><p>{}</p></div>",
        "<div class='hidden md:block'><p>{}</p></div>",
        "<span aria-hidden=true>{}</span>",
        "<p aria-hidden=true>{}</p>",
        "<div class='sr-only md:not-sr-only'><p>{}</p></div>",
    ],
)
def test_what_a_reader_opens_or_sees_after_all_is_a_block_like_others(texts, html):
    assert SECRET in texts(f"<p>{BEFORE}</p>{html.format(SECRET)}<p>{AFTER}</p>")


def test_the_first_sentence_of_a_comment_of_scaladoc_stands_once(texts):
    short = "<p class='shortcomment cmt'>Runs it.</p>"
    whole = "<div class=fullcomment><div class='comment cmt'><p>Runs it. Waits.</p></div></div>"
    assert texts(f"<ol><li>{short}{whole}</li><li>{short}</li></ol>") == ["Runs it. Waits.", "Runs it."]


def test_the_source_of_a_formula_is_read_though_it_is_hidden(texts):
    """MediaWiki 1.44 hides MathML beside a picture of the formula."""
    math = '<math><annotation encoding="application/x-tex">E=mc^2</annotation></math>'
    assert texts(f"<p>So <span style='display: none'>{math}</span> holds.</p>") == ["So $E=mc^2$ holds."]


def test_a_hidden_part_that_is_all_there_is_is_shown_by_its_scripts(texts):
    assert texts(f"<p>Please wait.</p><main style='visibility:hidden'>{BEFORE * 5}</main>") == [
        "Please wait.",
        BEFORE * 5,
    ]
    assert len(BEFORE * 5) > LEAST_SHOWN > len(SECRET)
    assert texts(f"<p>Short.</p><p hidden>{SECRET}</p>") == ["Short."]


@every_extractor
@pytest.mark.parametrize("names", ["id=search-results-container style='display: none'", "class='search' hidden"])
def test_the_hidden_help_of_a_search_is_no_text_however_short_the_page_is(name, names):
    """As in pages of pydoctor 22.9.1."""
    found = text_by(name, f"<div {names}><noscript><h1>No scripts.</h1></noscript><p>{SECRET * 9}</p></div>")
    assert BEFORE in found and "casinos" not in found and "No scripts" not in found


def test_a_part_that_scripts_show_may_speak_of_searching(texts):
    assert texts(f"<p>Wait.</p><main class=research-search hidden>{BEFORE * 5}</main>") == ["Wait.", BEFORE * 5]


def test_words_stay_apart_where_an_empty_element_separates_them(texts):
    """As in headings of gi-docgen 2023.1."""
    parts = '<a href="index.html">Gtk</a><span class="sep"></span><a href="class.Box.html">Box</a>'
    assert texts(f"<h1>{parts}</h1><p>one<span class=mark></span>two</p>") == ["Gtk Box", "onetwo"]


def test_a_copy_of_an_article_that_nobody_sees_is_no_second_one(texts):
    article = "".join(f"<p>{number}. {BEFORE}</p>" for number in range(8))
    assert len(texts(f"<p>Menu</p><article>{article}</article><div hidden>{article}</div>")) == 9


@every_extractor
@pytest.mark.parametrize(
    "head", ["<title>Oars</title>", "<!doctype html><html><head><title>Oars</title><meta charset=utf-8>"]
)
@pytest.mark.parametrize("around", ["main", "article", "section", "boat-shed"])
def test_a_page_without_a_tag_of_its_body_begins_where_its_head_can_hold_no_more(name, head, around):
    """Both tags may be left out; libxml2 took a body that begins with an element of HTML 5 for a part of the head."""
    page = f"{head}<{around}><p>{BEFORE * 2}</p><p>{AFTER * 2}</p></{around}>"
    text = EXTRACTORS[name](page.encode(), "http://example.com/bridge", None).text
    assert BEFORE in text and AFTER in text


def test_a_word_in_brackets_is_none_of_a_headings(texts):
    """As gi-docgen's and pydoctor's links to a source, and MediaWiki's to where a part is edited."""
    assert texts("<h4>Value <a href=a.c>[src]</a></h4><h2>Oars<span><a href=e>[edit]</a></span></h2>") == [
        "Value",
        "Oars",
    ]
    assert texts("<dl><dt>mul(x)<a href=s><span>[source]</span></a></dl>") == ["mul(x)"]
    assert texts("<p>See <a href=a.c>[src]</a></p><dl><dt><a href=f>[file]</a></dl>") == ["See [src]", "[file]"]


PERMALINKS = [
    '<h2 id=x>The price<a class="headerlink" href="#x" title="Link to this heading">¶</a></h2>',  # Sphinx 8
    '<h2 id=x><a class="doc-anchor" href="#x">§</a>The price</h2>',  # rustdoc 1.85
    '<h2 id=x>The price <a href="#x">#</a></h2>',
    '<h2>The price<a name=x></a> <a href="https://example.org/#x">🔗</a></h2>',
    '<h2 id=x>The price<a href="#x" class="hash-link">\u200b</a></h2>',  # Docusaurus 3
    '<h2 id=x>The price <a href="#x">Link to this heading</a></h2>',
    '<h2 id=x>The price <a class=anchor href="#x">Permalink: The price</a></h2>',
    '<div><h2 id=x>The price</h2><a class="anchor" href="#x"><span>#</span></a></div>',  # GitHub, 2024
]


@every_extractor
@pytest.mark.parametrize("html", PERMALINKS)
def test_a_link_of_a_heading_to_itself_is_no_text(name, html):
    text = text_by(name, f"{html}<p>{BEFORE}!</p>")
    assert "price" not in text.split("\n")[1:3] or "The price" in text.split("\n")
    assert not any(sign in text for sign in ("¶", "§", "#", "🔗", "Link to", "Permalink"))


@pytest.mark.parametrize(
    "html",
    [
        '<h2 id=x>The price<a class="headerlink" href="#x">Enlace permanente a este encabezado</a></h2>',
        '<section id=x><h2>The price<a class="headerlink" href="#x">永久链接至标题</a></h2></section>',
        '<h2 id=x><a class="anchor" href="https://a.org/b#x">Ссылка</a>The price</h2>',
        '<div><h2 id=x>The price</h2><a class="anchor-link" href="#x">Länk till rubriken</a></div>',
    ],
)
def test_a_link_of_a_heading_to_itself_is_known_in_any_language_by_where_it_leads(texts, html):
    assert texts(html) == ["The price"]


@pytest.mark.parametrize(
    ("html", "found"),
    [
        ("<h2 id=x><a href='#x'>The price</a></h2>", "The price"),
        ("<h2 id=x><a class=anchor href='#x'>The price</a></h2>", "The price"),
        (  # xml2rfc 3
            "<h2 id=n><a href='#s-1' class='section-number selfLink'>1. </a>"
            "<a href='#n' class='section-name selfLink'>The price</a></h2>",
            "1. The price",
        ),
        ("<h2 id=x>The price <a class=anchor href='#other'>of boats</a></h2>", "The price of boats"),
        ("<section id=m.f><h4>fn <a href='#m.f' class=fn>f</a>()</h4></section>", "fn f()"),
        ("<h2>C# <a href='#n1'>[1]</a></h2>", "C# [1]"),
        ("<h3 id=s5><a href='#s5'>§ 5</a> Duties</h3>", "§ 5 Duties"),
        ("<p>See <a href='#x'>#</a> there</p>", "See # there"),
        ("<p>A <a href='#x'>link</a> there</p>", "A link there"),
        ("<dt id=a>a()<a class=headerlink href='#a'>¶</a></dt>", "a()"),
        ("<p class=src><a id='v:f'>f</a> :: Int <a href='#v:f' class=selflink>#</a></p>", "f :: Int"),  # Haddock 2.25
        ("<p id=a>Text <a href='#a'>¶</a></p>", "Text"),
        ("<div><span>Listing 1</span><a class=headerlink href='#c'>¶</a></div>", "Listing 1"),
    ],
)
def test_other_links_within_a_page_are_text(texts, html, found):
    assert texts(html) == [found]


@every_extractor
@pytest.mark.parametrize(
    "html",
    [
        "<script type='text/javascript'/> var price = 'two hours'; </script>",
        "<STYLE /> .price {{ color: red }} </STYLE>",
        "<textarea rows=2/>price</textarea>",
        "<script src='a>b.js' async/> price </script>",
    ],
)
def test_a_slash_does_not_close_an_element_of_raw_text(name, html):
    text = text_by(name, html)
    assert "price" not in text.replace(BEFORE, "")
    assert AFTER in text


@pytest.mark.parametrize(
    "page",
    [
        "<svg><style/><title/></svg><p>text</p><style></style>",
        "<p>text</p><br/><img src=x />",
        "<noscript><iframe src=x /></noscript><p>text</p><script>a = '<iframe/>'</script>",
        "<!-- <script/> --><p>text</p><script></script>",
        '<html xmlns="http://www.w3.org/1999/xhtml"><head><title>t</title><script src="a.js"/></head><body/></html>',
    ],
)
def test_a_slash_closes_an_element_where_browsers_read_it_so(page):
    assert as_browsers_read(page) == page


def test_text_behind_ten_million_characters_of_an_element_is_read():
    """libxml2 (2.14.6) ends there without a word, unless it is asked for more."""
    assert LARGE == 10_000_000
    assert tree_of(f"<p>{'word ' * (LARGE // 5 + 1)}</p><p>last</p>").findtext(".//p[2]") == "last"


def test_the_heading_of_a_page_is_the_last_of_the_highest_level_above_its_text():
    blocks = blocks_of("<h1>Site</h1><p>menu</p><h1>Struct Foo</h1><h2>Usage</h2><p>text</p><h1>End</h1>")
    assert own_heading(blocks, [text == "text" for text in blocks.texts] * blocks.element.astype(bool), "") == 2
    blocks = blocks_of("<h2>Far</h2><p>1</p><p>2</p><p>3</p><p>text</p>")
    assert own_heading(blocks, [text == "text" for text in blocks.texts] * blocks.element.astype(bool), "") is None


@pytest.mark.parametrize(
    ("title", "heading"),
    [("The bridge | Town news", 1), ("The bridge", 0), ("Town news | The bridge", 0), ("Town news", 0), ("", 0)],
)
def test_the_name_of_a_site_is_not_the_heading_of_its_page(title, heading):
    blocks = blocks_of("<h1>Town news</h1><h2>The bridge</h2><p>text</p>")
    assert own_heading(blocks, np.array([False, False, True]), title) == heading


@pytest.mark.parametrize("around", ["nav", "div class=toc", "ul class=table-of-contents"])
def test_the_heading_of_a_list_of_contents_is_not_the_pages(around):
    blocks = blocks_of(f"<h3>Struct Foo</h3><{around}><h3>Contents</h3></{around.split()[0]}><p>text</p>")
    assert own_heading(blocks, np.array([False, False, True]), "") == 0


@pytest.mark.parametrize(
    ("html", "is_kept"),
    [
        ("<h2>Ropes</h2>text", True),
        ("<section><div><div><h2>Ropes</h2></div></div>text</section>", True),  # DocBook's title page of a section
        ("<section>advert<h2>Ropes</h2></section><section>text</section>", False),
        ("<h2>Ropes</h2>advert<p>text", False),
        ("<h2>Ropes</h2><h3>Sails</h3>text", False),
        ("<h2>Ropes</h2><h3>text</h3>", True),
    ],
)
def test_the_heading_right_above_text_that_is_kept_is_kept(html, is_kept):
    for before, after in (("text<p>menu<p>", is_kept), ("menu<p>", False)):  # the first one is the page's own
        blocks = blocks_of(f"<body><div>{before}</div><div>{html}</div>")
        kept = np.array([text == "text" for text in blocks.texts])
        assert section_headings(blocks, kept)[blocks.texts.index("Ropes")] == after


@pytest.mark.parametrize("name", sorted(set(EXTRACTORS) - {"resiliparse"}))
def test_of_hidden_words_that_are_all_there_is_the_last_are_read(name):
    """LibreOffice's help: a script shows those for the reader's system. resiliparse hides them itself."""
    choices = "<span class=switchinline><span hidden>Settings</span><span hidden=true><b>Tools</b></span></span>"
    found = text_by(name, f"<p>The choice is made in {choices} – Options, and holds for all boats from then on.</p>")
    assert "made in Tools – Options, and" in " ".join(found.split())
    assert "Settings" not in found


def test_hidden_words_in_a_line_with_others_are_not_read(texts):
    assert texts("<p>a <i>b <b hidden>c</b><b hidden>d</b></i> <i><b hidden>e</b></i> f</p>") == ["a b f"]
