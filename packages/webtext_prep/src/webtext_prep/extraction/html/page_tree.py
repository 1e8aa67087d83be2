"""A page's tree as its reader sees it: what stands in a line, what is hidden, what is only a sign of a link.

The rules are those of browsers, by the HTML standard (WHATWG, 2026): section 13.2, how text/html is parsed, and 15.3,
which elements are blocks and which are not displayed. `learned` asks them while it walks; the libraries get a tree
from which the rest has been taken (`cleaning`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Container
from itertools import dropwhile
from typing import Any

from lxml import etree  # type: ignore[import-untyped]

from webtext_prep.text.tags import holds

_SKIPPED = """
script style svg iframe canvas head datalist textarea input video audio object embed map select option meta link picture
source param track area base basefont col colgroup title noframes noembed frame bgsound
"""
SKIPPED = frozenset(_SKIPPED.split())
"""Elements whose text no reader sees. What stands in `noscript` counts: forums put whole threads there."""
_INLINE = """
a span b i em strong code sub sup small abbr time mark u font label cite q s del ins kbd samp var tt big acronym bdi bdo
data dfn strike wbr img br nobr math mi mo mn mrow ruby rb rt rp rtc
"""
INLINE = frozenset(_INLINE.split())
"""Elements that do not begin a new block."""
OF_WORDS = INLINE - frozenset({"br"})
"""Of those, what may stand within a word or a number."""
_BLOCKS = """
html body address article aside blockquote caption center dd details dialog dir div dl dt fieldset figcaption figure
footer form frameset h1 h2 h3 h4 h5 h6 header hgroup hr legend li listing main menu nav ol optgroup p plaintext pre
search section summary table tbody td tfoot th thead tr ul xmp template
"""
BLOCKS = frozenset(_BLOCKS.split())
"""Elements that always begin a new block: `display` is `block`, `list-item` or one of a table's (section 15.3)."""
KNOWN = BLOCKS | INLINE | SKIPPED
_OF_HEAD = frozenset(
    {"base", "basefont", "bgsound", "link", "meta", "noframes", "noscript", "script", "style", "template", "title"}
)
SHUT = frozenset({"template", "dialog"})
"""Elements that are hidden unless an attribute opens them."""
ANNOTATIONS = frozenset({"rt", "rp", "rtc"})
"""What stands beside the text of `ruby`: readings, and the brackets around them."""
HEADINGS = frozenset({"h1", "h2", "h3", "h4", "h5", "h6", "dt", "caption", "figcaption", "legend", "summary"})
"""What has a link to itself: headings, terms that are defined, captions."""

_HIDING_STYLE = re.compile(
    r"display\s*:\s*none|visibility\s*:\s*(?:hidden|collapse)"
    r"|clip\s*:\s*rect\(\s*[01](?:px)?[\s,]|clip-path\s*:\s*(?:inset\(\s*(?:50|100)%|circle\(\s*0(?![\d.]))"
    r"|clip-path\s*:\s*polygon\((?:\s*0(?:px|%)?[\s,]*)+\)"
    r"|(?:left|top|right|text-indent)\s*:\s*-(?:\d{4,}px|\d{3,}r?em)",
    re.IGNORECASE,
)
_ONE_POINT = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"(?<![\w-])(?:width|height)\s*:\s*1px",
        r"overflow\s*:\s*hidden",
        r"position\s*:\s*(?:absolute|fixed)",
    )
]
"""What cuts a part down to a point on top of others, as classes for screen readers do it."""
_NOT_DISPLAYED = re.compile(r"display\s*:\s*none", re.IGNORECASE)
_INVISIBLE = re.compile(r"visibility\s*:\s*(?:hidden|collapse)", re.IGNORECASE)
_VISIBLE = re.compile(r"visibility\s*:\s*visible", re.IGNORECASE)
_NO_SIZE = re.compile(r"font-size\s*:\s*0(?:px|pt|r?em|%)?\s*(?:[;!]|$)", re.IGNORECASE)
_OWN_LINE = re.compile(r"display\s*:\s*(?:block|table|flex|grid|list-item)\b", re.IGNORECASE)
_IN_LINE = re.compile(r"display\s*:\s*inline\s*(?:[;!]|$)", re.IGNORECASE)
ALL, LETTERS = "all", "letters"
"""What a style hides. Letters without a size are hidden where there is nothing else in their element: around others
such a size only closes the gaps between them."""
_HIDING_CLASSES = re.compile(
    r"(?:^|\s)(?:sr-only|(?:[\w-]+[-_])?(?:visually|a11y)[-_]?hidden|[\w-]*hid(?:den|e)-?(?:visually|accessible)"
    r"|(?:(?:u|is)-)?sr[-_]?only|screen-?reader(?:-(?:text|only))?|element-invisible|assistive-text|show-for-sr"
    r"|a-offscreen|off-?screen)(?:-focusable|__[\w-]+)?(?=\s|$)",
    re.IGNORECASE,
)
"""Classes by which text is there for screen readers alone: Bootstrap 3 and 5, Tailwind, WordPress, Drupal, Foundation,
Angular, Chakra, Amazon, jQuery."""
_OFF = re.compile(r"(?:^|\s)(?:hidden|hide|is-hidden|d-none)(?=\s|$)")
_ON_OTHERS = re.compile(
    r"[:@]|\b(?:d|hidden|visible|show|is)-(?:x?[sml]|xs|md|lg|xx?l|print|mobile|tablet|desktop|for)\b"
)
"""Classes by which nothing is displayed (Tailwind, Bootstrap 3 to 5, Bulma), and others that say on which screens."""
_SEEN_AGAIN = re.compile(r"(?<!focus:)(?<!focus-within:)not-sr-only")
_OPENED = re.compile(
    r"accordi|collaps|expand|toggle|\btabs?\b|tab-?(?:panel|pane|content|bed)|panel|faq|answer|disclosure|spoiler"
    r"|read-?more|drop-?down-?content|carousel|slid(?:e|ing)|slick|swiper|caption",
    re.IGNORECASE,
)
"""What the names of parts have in them that a reader opens."""
_HOLDS_AN_OPENER = etree.XPath(
    "boolean(descendant-or-self::*[@aria-expanded or @cursor='pointer' or contains(@style, 'cursor')])"
)
"""Whether something in an element is there to be clicked: it says so, or has a pointer as its cursor."""
NAVIGATION = frozenset({"nav_table", "navfooter", "navheader", "siteSub", "t-navbar", "tocframe"})
"""Classes or ids of bars that lead through a manual, by texi2html, DocBook XSL and cppreference.com, and of MediaWiki's
line on where a page is from: no text."""
SHORT_COMMENT = "shortcomment cmt"
"""The class of the first sentence of a comment by Scaladoc (2.8 and later)."""
_STREAMED = re.compile(r"S:[0-9a-f]+")
"""React (18 and later) sends parts of a page in `<div hidden id="S:1">`, and moves them to their place."""
_PERMALINK_CLASSES = re.compile(
    r"perma-?link|(?:header|heading|hash|self)-?link|anchor(?:-?link|-?js)?\b|section-?link", re.IGNORECASE
)
_PERMALINK_WORDS = re.compile(
    r"\W*(?:copy |direct |get )?(?:a )?(?:perma(?:nent )?link|link|anchor|permalien|lien permanent)\b", re.IGNORECASE
)
_IN_BRACKETS = re.compile(r"\[[^\W\d_]+\]")
"""What a link in a heading says that leads to its source, or to where it is edited: `[src]`, `[edit]`."""
_RAW = "script|style|textarea|title|iframe|noembed|noframes|xmp|template"
_RAW_TAG = rf"(?=[stinx])(?:{_RAW})(?=[\s/])(?>(?:[^<>\"'/]++|/(?!>)|\"[^\"]{{0,9999}}\"|'[^']{{0,9999}}')*)"
_MAY_BE_MENDED = re.compile(rf"<(?:/br|{_RAW_TAG}/>)", re.IGNORECASE)  # with one sign ahead of all, which is looked for
_SELF_CLOSED = re.compile(
    rf"(?P<tag><{_RAW_TAG})/>"
    r"|<(?P<other>svg|math|noscript|script|style|textarea)\b(?:[^>]*[^/])?>.*?</(?P=other)\s*>|<!--.*?-->",
    re.IGNORECASE | re.DOTALL,
)
"""Also what it does not hold for: foreign elements, comments, texts of scripts, and `noscript`, which is such a text
for browsers that run scripts: an iframe in it, as of a tag manager, ends where it ends."""
_END_OF_BREAK = re.compile(r"</br(?=[\s/>])[^<>]*>", re.IGNORECASE)
_XHTML = re.compile(r"""<html\b[^>]*\sxmlns\s*=\s*["']http://www\.w3\.org/1999/xhtml["']""", re.IGNORECASE)
NUMBER = re.compile(r"[-+\u2212\u2013]?[0-9]")
"""How a number begins."""
_SIGNS = "0123456789+-\u2212\u2013"
_RAISED = {
    "sup": str.maketrans(_SIGNS, "\u2070\xb9\xb2\xb3\u2074\u2075\u2076\u2077\u2078\u2079\u207a" + 3 * "\u207b"),
    "sub": str.maketrans(_SIGNS, "".join(map(chr, range(0x2080, 0x208B))) + 3 * "\u208b"),
}
"""Digits and signs above and below the line, as Unicode has them; a dash is taken for a minus."""
_BEGIN_RAISED = (b"<su", b"<SU", b"<Su", b"<sU")
LEAST_SHOWN = 400
"""Characters of a hidden part from which on it may be all that there is of a page."""
LARGE = 10_000_000
"""Characters of an element from which on libxml2 (2.14.6) reads nothing and says nothing, unless asked for more."""


def as_browsers_read(page: str) -> str:
    """A page without the slash of `<script/>`, `<style/>`, `<textarea/>` and others that hold no elements.

    libxml2 (2.14.6) takes them for empty, browsers for opened: in text/html a slash counts for nothing but in SVG and
    MathML (section 13.2.5.32 and 13.2.6.5), so that what follows, up to the end tag, is no text of the page. In XHTML
    it counts; a page of that namespace that is well-formed is taken for XHTML. An end tag `</br>`, which libxml2 passes
    over, is a break (13.2.6.4.7).
    """
    if not _MAY_BE_MENDED.search(page) or (_XHTML.search(page) and _is_xml(page)):
        return page
    has_breaks = "</br" in page or "</BR" in page
    page = _SELF_CLOSED.sub(lambda found: f"{found['tag']}>" if found["tag"] else found[0], page)
    return _END_OF_BREAK.sub("<br>", page) if has_breaks else page


def _is_xml(page: str) -> bool:
    """Whether a page is well-formed; nothing outside it is read."""
    parser = etree.XMLParser(resolve_entities=False, load_dtd=False, no_network=True)
    try:
        etree.fromstring(page.encode("utf-8", "replace"), parser)
    except etree.XMLSyntaxError:
        return False
    return True


@functools.lru_cache(maxsize=4)
def _parser(kind: Any, *, huge_tree: bool) -> Any:
    return kind(remove_comments=True, remove_pis=True, encoding="utf-8", huge_tree=huge_tree)


def tree_of(page: str, parser: Any = etree.HTMLParser) -> Any:
    """The root of a page's tree, without comments; None where there is no element in it."""
    try:
        # As UTF-8, which libxml2 takes as it is.
        source = as_browsers_read(page).encode("utf-8", "replace")
        tree = etree.fromstring(source, _parser(parser, huge_tree=len(page) >= LARGE))
    except (ValueError, AssertionError, etree.ParserError, etree.XMLSyntaxError):
        return None
    if tree is not None:
        _end_head(tree)
        for node in tree.iter("sup", "sub") if any(holds(source, begin) for begin in _BEGIN_RAISED) else ():
            _raise_digits(node)
    return tree


def _end_head(tree: Any) -> None:
    """Move into the body what libxml2 (2.14.6) takes for a part of a head that has no end tag: its end tag and the
    start tag of the body may be left out, and it knows no element that is newer than HTML 4 (section 13.2.6.4.4)."""
    head, body = tree.find("head"), tree.find("body")
    moved = list(dropwhile(lambda node: node.tag in _OF_HEAD, () if head is None else head))
    if moved:
        body = etree.SubElement(tree, "body") if body is None else body
        moved[-1].tail, body.text = (moved[-1].tail or "") + (body.text or ""), None
        body[:0] = moved


def _raise_digits(node: Any) -> None:
    """Write a `sup` or `sub` above or below the line where it would be one number with what stands beside it."""
    text = text_of(node)
    if meets_number(node, text, _text_before, _text_behind):
        node.text = node.text and raised(node.tag, node.text)
        for part in node.iterdescendants():
            part.text = part.text and raised(node.tag, part.text)
            part.tail = part.tail and raised(node.tag, part.tail)


def meets_number(node: Any, text: str, before: Callable[[Any], str], behind: Callable[[Any], str]) -> bool:
    """Whether the text of a `sup` or `sub` would be read as one number with what stands beside it.

    So would 10<sup>3</sup>, or 2010<sup>3</sup> with the mark of a note; a mark behind a word and the 2 of water stay
    as they are. `before` and `behind` give the text beside a node.
    """
    follows = NUMBER.match(text) is not None and before(node)[-1:].isdigit()
    return follows or (text[-1:].isdigit() and behind(node)[:1].isdigit())


def raised(tag: str, text: str) -> str:
    """The text of a `sup` or `sub` with Unicode's own digits and signs above or below the line."""
    return text.translate(_RAISED[tag])


def _text_before(node: Any) -> str:
    """The text right before an element in its line; "" where it begins the line."""
    while node.tag in OF_WORDS:
        before, around = node.getprevious(), node.getparent()
        if before is None:
            text, node = around.text, around
        else:
            text, node = before.tail or (text_of(before) if before.tag in OF_WORDS else ""), before
        if text:
            return str(text)
    return ""


def _text_behind(node: Any) -> str:
    """The text right behind an element in its line; "" where it ends the line."""
    while node.tag in OF_WORDS and not node.tail:
        behind = node.getnext()
        if behind is not None and behind.tag in OF_WORDS and (text := text_of(behind)):
            return text
        node = node.getparent() if behind is None else behind
    return str(node.tail) if node.tag in OF_WORDS else ""


def is_inline(node: Any) -> bool:
    """Whether an element that is neither one of INLINE nor of BLOCKS, or a block by its name alone, stands in a line.

    Browsers take elements that they don't know for inline, but pages also make their layout of them. One is inline if
    no block lies in it, and if it is empty, or text stands beside it. So are buttons, outputs, and the like.
    """
    return not _holds_a_block(node) and (is_empty(node) or _stands_in_text(node))


def _holds_a_block(node: Any) -> bool:
    return len(node) > 0 and any(found.tag in BLOCKS for found in node.iterdescendants())


def text_of(node: Any) -> str:
    """All text in an element, of scripts too; four times as fast as `itertext`."""
    if len(node) == 0:
        return node.text or ""
    return str(etree.tostring(node, method="text", encoding="unicode", with_tail=False))


def is_empty(node: Any) -> bool:
    """Whether there is no text in an element."""
    text = node.text
    return (text is None or text.isspace()) and not text_of(node).strip()


def _stands_in_text(node: Any) -> bool:
    """Whether text stands beside an element, or beside what it lies in where that stands in a line itself."""
    while True:
        around = node.getparent()
        if around is None:
            return False
        if around.tag == "p" or _has_text_beside(node, around):
            return True
        if around.tag not in INLINE and (around.tag in BLOCKS or _holds_a_block(around)):
            return False
        node = around


def _has_text_beside(node: Any, around: Any) -> bool:
    """Whether there is text between an element and the next block or line break before and behind it."""
    at = node
    while at is not None and (at is node or not _ends_line(at)):
        if at.tail and not at.tail.isspace():
            return True
        at = at.getnext()
    at = node.getprevious()
    while at is not None:
        if at.tail and not at.tail.isspace():
            return True
        if _ends_line(at):
            return False
        at = at.getprevious()
    return bool(around.text) and not around.text.isspace()


def _ends_line(node: Any) -> bool:
    return node.tag in BLOCKS or node.tag == "br"


_SEARCH = re.compile(r"(?<!\S)search(?![a-z])")


@functools.lru_cache(maxsize=50_000)
def hides(classes: str) -> bool:
    """Whether classes say that something is there for screen readers alone."""
    return _HIDING_CLASSES.search(classes) is not None and _SEEN_AGAIN.search(classes) is None


@functools.lru_cache(maxsize=50_000)
def is_off(classes: str) -> bool:
    """Whether classes say that words in a line are not displayed. Parts with them are often shown by scripts."""
    return _OFF.search(classes) is not None and _ON_OTHERS.search(classes) is None


def may_hide(classes: str) -> bool:
    """Whether classes may hide what has them; `is_hidden` decides."""
    return hides(classes) or is_off(classes)


def is_hidden(node: Any, tag: str, names: Container[str], classes: str | None) -> bool:
    """Whether a page shows nobody what lies in an element with attributes of these `names`, by them or its kind.

    Hidden are `template`, a `dialog` or a popover that is not open, `hidden`, `display: none`, `visibility: hidden`,
    what is moved out of the page or clipped to nothing, blocks with `aria-hidden` that hold others (a text with
    it is there for eyes), classes of texts for screen readers. Shown are the root of a shadow (`shadowrootmode`), a
    `details` that is closed, `hidden="until-found"` and other parts that a reader opens or slides in, what React sends
    to be moved to its place, the source of a formula, and the last of hidden words in a line that are all there is.
    """
    get = node.get
    is_closed = False
    if tag not in INLINE:
        if tag == "template":
            return get("shadowrootmode") not in ("open", "closed")
        if tag == "dialog":
            return get("open") is None
        is_closed = "popover" in names or (get("aria-hidden") == "true" and _holds_a_block(node))
    elif classes is not None and is_off(classes):
        is_closed = _stands_in_text(node)
    if "hidden" in names and get("hidden").lower() != "until-found" and not _STREAMED.fullmatch(get("id") or ""):
        is_closed = is_closed or not _is_default(node)
    by_style = hidden_by_style(get("style")) if "style" in names else ""
    if is_closed or by_style == ALL or (by_style == LETTERS and tag in INLINE and len(node) == 0):
        return not _is_opened(node) and _has_no_formula(node)
    return bool(classes) and hides(classes) and _has_no_formula(node)


def _is_default(node: Any) -> bool:
    """Whether an inline element is the last of hidden ones that are all there is in another: a script shows one of
    them, in LibreOffice's help (7) that of the reader's system, and the last one if there is none."""
    around = node.getparent()
    return (
        node.tag in INLINE
        and around is not None
        and around.tag in INLINE
        and len(around) > 1
        and around[-1] is node
        and not (around.text or "").strip()
        and all(one.get("hidden") is not None and not (one.tail or "").strip() for one in around)
    )


def is_search(node: Any) -> bool:
    """Whether names of an element begin with `search`: hidden, it holds results and help, and never the page's text."""
    return any(_SEARCH.search(node.get(name) or "") for name in ("id", "class"))


def is_not_displayed(node: Any, tag: str, names: Container[str], classes: str | None) -> bool:
    """Whether a block is hidden and takes no place, so that the line around it goes on; what is invisible takes one."""
    may_be = tag in SHUT or "hidden" in names or ("style" in names and _NOT_DISPLAYED.search(node.get("style")))
    return bool(may_be) and is_hidden(node, tag, names, classes)


@functools.lru_cache(maxsize=50_000)
def hidden_by_style(style: str) -> str:
    """What a `style` attribute hides: ALL that lies in its element, its LETTERS, or nothing, ""."""
    if _HIDING_STYLE.search(style) is not None or all(pattern.search(style) for pattern in _ONE_POINT):
        return ALL
    return LETTERS if _NO_SIZE.search(style) is not None else ""


@functools.lru_cache(maxsize=50_000)
def has_own_lines(style: str) -> bool:
    """Whether a `style` attribute gives an inline element lines of its own."""
    return _OWN_LINE.search(style) is not None


def is_invisible(style: str) -> bool:
    """Whether a `style` attribute hides by its visibility, perhaps among others."""
    return _INVISIBLE.search(style) is not None


def is_visible(style: str) -> bool:
    """Whether a `style` attribute shows what the visibility of others around it hides."""
    return _VISIBLE.search(style) is not None


def without_visibility(style: str) -> str:
    """The rest of a `style` attribute that may hide."""
    return _INVISIBLE.sub("", style)


def shown_again(node: Any) -> list[Any]:
    """The outermost parts with `visibility: visible` in a hidden element that is no more than `visibility: hidden`.

    That is inherited, and set anew by whoever wants to be seen (CSS 2.2, 11.2); nothing else that hides is undone so.
    """
    if not is_invisible(node.get("style") or ""):
        return []
    found, left = [], [node]
    while left:
        one = left.pop()
        style = one.get("style") or ""
        if one is not node and is_visible(style) and not is_hidden(one, one.tag, one.keys(), one.get("class")):
            found.append(one)
        elif _is_only_invisible(one, style):
            left += reversed(one)
    return found


def _is_only_invisible(node: Any, style: str) -> bool:
    """Whether nothing but its visibility, or that of what it lies in, hides an element."""
    is_marked = (
        node.tag in SHUT or node.tag in SKIPPED or node.get("hidden") is not None or node.get("popover") is not None
    )
    return not is_marked and hidden_by_style(without_visibility(style)) != ALL and not hides(node.get("class") or "")


@functools.lru_cache(maxsize=50_000)
def is_in_line(style: str) -> bool:
    """Whether a `style` attribute makes a block one of the elements for which `is_inline` is asked."""
    return _IN_LINE.search(style) is not None


def _has_no_formula(node: Any) -> bool:
    """Pages show a formula as a picture or in boxes, and hide its source beside it."""
    return next(node.iter("math"), None) is None


@functools.lru_cache(maxsize=50_000)
def _is_opened_by_name(names: str) -> bool:
    return _OPENED.search(names) is not None


def _is_opened(node: Any) -> bool:
    """Whether a reader opens a part that is closed: an answer, a tab, an item of a carousel."""
    if node.get("role") == "tabpanel" or node.get("aria-labelledby") is not None:
        return True
    around = node
    for _ in range(3):
        if around is None:
            break
        if around.tag == "details" or _is_opened_by_name(f"{around.get('class') or ''} {around.get('id') or ''}"):
            return True
        around = around.getparent()
    before = node.getprevious()
    return before is not None and (bool(_HOLDS_AN_OPENER(before)) or _is_an_openers_heading(before))


def _is_an_openers_heading(node: Any) -> bool:
    """Whether a heading has a sign in it, by its name, that opens what follows."""
    return node.tag in HEADINGS and any(_is_opened_by_name(one.get("class") or "") for one in node.iter(etree.Element))


@functools.lru_cache(maxsize=50_000)
def names_permalink(classes: str) -> bool:
    """Whether classes say that a link is a heading's to itself."""
    return _PERMALINK_CLASSES.search(classes) is not None


def is_sign(text: str) -> bool | None:
    """Whether the text of a link is a sign, or else words that say that it is one; None for other texts."""
    if not any(map(str.isalnum, text)):
        return True
    return None if len(text) > 200 or _PERMALINK_WORDS.match(text) is None else False


def is_permalink(node: Any, classes: str | None) -> bool:
    """Whether an `a` is a heading's link to itself, which is no text: `¶`, `#`, a chain, "Link to this heading".

    It leads to a place on its page and has no letter or digit, or words that say that it is a link; in a heading, a
    term or a caption, or beside a heading; elsewhere only if its class says so, or if it leads to what it lies in. With
    other words, as in other languages, its class says so and it leads to its heading, which has words of its own. A
    heading that is a link to itself as a whole is a heading. A word in brackets is none of a heading's, wherever it
    leads.
    """
    href, text = node.get("href"), node.text or (node[0].text if len(node) else "")
    if text and _IN_BRACKETS.fullmatch(text):
        around = next(node.iterancestors(*HEADINGS), None)
        return around is not None and _has_own_words(around)
    if href is None or "#" not in href:
        return False
    sign = is_sign(text_of(node).strip())
    says_so = classes is not None and names_permalink(classes)
    if sign is None and not says_so:
        return False
    fragment = href.partition("#")[2]
    if _is_heading_of(node.getprevious(), fragment) or _is_heading_of(node.getnext(), fragment):
        return True
    around = node.getparent()
    for _ in range(4):
        if around is None:
            return False
        if around.tag in HEADINGS:
            if sign is None:
                return _is_named(around, fragment) and _has_own_words(around)
            return sign or says_so or _is_named(around, fragment)
        if sign and (says_so or around.get("id") == fragment):
            return True
        around = around.getparent()
    return False


def _has_own_words(heading: Any) -> bool:
    """Whether there are letters in a heading besides those of the links in it."""
    whole, *links = (sum(map(str.isalpha, text_of(node))) for node in (heading, *heading.iter("a")))
    return whole > sum(links)


def _is_heading_of(node: Any, fragment: str) -> bool:
    return node is not None and node.tag in HEADINGS and _is_named(node, fragment)


def _is_named(heading: Any, fragment: str) -> bool:
    """Whether a heading, what lies in it, or the section that it begins has this name."""
    names = [heading, heading.getparent(), *heading.iterdescendants()]
    return any(one is not None and fragment in (one.get("id"), one.get("name")) for one in names)


def is_annotation(node: Any) -> bool:
    """Whether an element of that name is a reading, or a bracket around it, and lies in `ruby`."""
    return next(node.iterancestors("ruby", *ANNOTATIONS), None) is not None


def is_repeated(node: Any) -> bool:
    """Whether a SHORT_COMMENT is shown until a reader opens the whole instead."""
    after = node.getnext()
    return after is not None and after.get("class") == "fullcomment"


def is_space_of_ruby(node: Any) -> bool:
    """Whether white space behind a part of `ruby` only sets its source apart: before a reading, and at the end."""
    follows = node.getnext()
    return follows is None or follows.tag in ANNOTATIONS
