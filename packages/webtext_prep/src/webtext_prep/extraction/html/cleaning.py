"""A page's tree for a library, without what the page's reader does not see.

The rules are those of `page_tree`. What may fall under them is looked for in C, by names and attributes: a walk over
all elements in Python takes as long as the fastest of the libraries.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from lxml import etree  # type: ignore[import-untyped]

from webtext_prep.extraction.html.page_tree import (
    ALL,
    ANNOTATIONS,
    BLOCKS,
    HEADINGS,
    INLINE,
    KNOWN,
    LEAST_SHOWN,
    LETTERS,
    OF_WORDS,
    SHUT,
    SKIPPED,
    hidden_by_style,
    hides,
    is_annotation,
    is_empty,
    is_hidden,
    is_in_line,
    is_inline,
    is_invisible,
    is_off,
    is_permalink,
    is_search,
    is_sign,
    is_space_of_ruby,
    is_visible,
    may_hide,
    meets_number,
    names_permalink,
    raised,
    shown_again,
    tree_of,
    without_visibility,
)
from webtext_prep.text.tags import folded, holds

if TYPE_CHECKING:
    from resiliparse.parse.html import HTMLTree

_FALLBACKS = frozenset(
    {"noframes", "noembed", "iframe", "textarea", "select", "datalist", "object", "video", "audio", "canvas"}
)
"""Elements whose content nobody sees, and that libraries may take for text."""
_RUBY = frozenset({"ruby", "rb"})
_IN_SENTENCES = frozenset({"label", "q", "time"})
"""Elements of a sentence that trafilatura (2.3.1) takes out of it, with their words or, `q`, into a line of its own."""
_NAMED = _FALLBACKS | ANNOTATIONS | _RUBY | _IN_SENTENCES | SHUT
_OF_PICTURES = frozenset({"path", "g", "use", "circle", "rect", "polygon", "line", "defs", "symbol", "stop"})
"""Elements of SVG that need no look; what it shows is text."""
_NAMES = re.compile(r"<([a-zA-Z][^\s/>]*)")
_CLOSED = [etree.XPath(f"//@{name}/..") for name in ("hidden", "popover", "aria-hidden")]
_VALUES = {
    name: (etree.XPath(f"//@{name}", smart_strings=False), etree.XPath(f"//@{name}[. = $value]/.."))
    for name in ("style", "class")
}
"""Of attributes all values in a tree, and the elements that have one of them."""
MANY = 50
"""So many names or values are looked for one by one; what a hostile page has more of, among all its elements."""
_LINKS = etree.XPath("descendant::a[contains(@href, '#')]")


def cleaned(page: str) -> Any:
    """A page's tree of lxml without what its reader does not see; None where there is no element in the page.

    Taken out are hidden elements, readings of `ruby`, and links of headings to themselves; elements that stand in a
    line of text, and that libraries may not know, leave their text there. The root of a shadow is a `div`.
    """
    tree = tree_of(page, _parser)
    if tree is None:
        return None
    unseen, in_line = [], []
    unknown = {name.lower() for name in set(_NAMES.findall(page))} - KNOWN - _OF_PICTURES
    named = list(tree.iter(*((*_NAMED, *unknown) if len(unknown) <= MANY else (etree.Element,))))
    hidden = {node for node in (*_may_be_hidden(tree), *named) if _is_hidden(node)}
    for node in named:
        tag = node.tag
        if tag in _FALLBACKS:
            if not is_empty(node):
                unseen.append(node)
        elif tag in ANNOTATIONS:
            if is_annotation(node):
                unseen.append(node)
        elif node not in hidden and (tag in _RUBY or ((tag in _IN_SENTENCES or tag not in KNOWN) and is_inline(node))):
            in_line.append(node)
    in_line += [node for node in _having(tree, "style", is_in_line) if node.tag in BLOCKS and is_inline(node)]
    unseen += [node for node in _LINKS(tree) if node not in hidden and is_permalink(node, node.get("class"))]
    for node in tree.iter("ruby"):
        _drop_spaces(node)
    outermost = [node for node in hidden if hidden.isdisjoint(node.iterancestors())]
    shown = _shown_after_all(tree, outermost) if outermost else ()
    for node in tree.iter("template"):
        node.tag = "template" if node in hidden else "div"
    for node in [*unseen, *(node for node in outermost if node not in shown)]:
        for base in node.findall("rb") if node.tag in ANNOTATIONS else []:
            node.addprevious(base)
        for part in shown_again(node):
            part.tail = None
            node.addprevious(part)
        if node.getparent() is not None:
            node.drop_tree()
    for node in in_line:
        if node.getparent() is not None:
            node.drop_tag()
    return tree


def _parser(**options: Any) -> Any:
    """A parser of lxml.html's elements; theirs asks Python for the class of each, which differs in forms alone."""
    from lxml.html import HtmlElement  # type: ignore[import-untyped]

    parser = etree.HTMLParser(**options)
    parser.set_element_class_lookup(etree.ElementDefaultClassLookup(element=HtmlElement))
    return parser


def _may_be_hidden(tree: Any) -> list[Any]:
    """The elements of a tree with attributes that may hide them."""
    found = [node for closed in _CLOSED for node in closed(tree)]
    return found + _having(tree, "style", hidden_by_style) + _having(tree, "class", may_hide)


def _having(tree: Any, name: str, rule: Callable[[str], object]) -> list[Any]:
    """The elements of a tree with an attribute of which a rule is true."""
    all_values, having = _VALUES[name]
    values = [value for value in set(all_values(tree)) if rule(value)]
    if len(values) <= MANY:
        return [node for value in values for node in having(tree, value=value)]
    return [node for node in tree.iter(etree.Element) if rule(node.get(name) or "")]


def _is_hidden(node: Any) -> bool:
    tag = node.tag
    return tag not in SKIPPED and tag not in ("html", "body") and is_hidden(node, tag, node.keys(), node.get("class"))


def _drop_spaces(ruby: Any) -> None:
    """Take the white space out of `ruby` that is none of its text."""
    if ruby.text is not None and ruby.text.isspace():
        ruby.text = None
    for part in ruby:
        if part.tail is not None and part.tail.isspace() and is_space_of_ruby(part):
            part.tail = None


def _length_of(node: Any) -> int:
    """Characters of text in an element, without its scripts and the like, and without white space."""
    length, left = 0, [node]
    while left:
        one = left.pop()
        if one.tag in SKIPPED:
            continue
        length += _length(one.text)
        for child in one:
            length += _length(child.tail)
            left.append(child)
    return length


def _length(text: str | None) -> int:
    return 0 if text is None or text.isspace() else sum(map(len, text.split()))


def _shown_after_all(tree: Any, hidden: list[Any]) -> Container[Any]:
    """What of a tree's hidden elements scripts show: each that has more characters than all that is seen of the page.

    So does the main part of pages that wait for their scripts, but not a text for screen readers.
    """
    lengths = {node: _length_of(node) for node in hidden}
    large = {node for node in hidden if lengths[node] > LEAST_SHOWN and not hides(node.get("class") or "")}
    large -= {node for node in large if is_search(node)}
    if not large:
        return large
    seen = _length_of(tree) - sum(lengths.values())
    return {node for node in large if lengths[node] > seen}


_UNSEEN_BY_NAME = frozenset({"dialog", "noembed", "noframes"})
_IN_LINE = frozenset({"button", "label", "output", "time"})
_SHOWN_BY_RESILIPARSE: dict[str, tuple[bytes, ...]] = {
    "rt": (b"<rt",), "rp": (b"<rp",), "rtc": (b"<rtc",), "button": (b"<button",), "label": (b"<label",),
    "output": (b"<output",), "time": (b"<time",), "noembed": (b"<noembed",), "noframes": (b"<noframes",),
    "dialog:not([open])": (b"<dialog",), "[popover]": (b"popover",), ".sr-only": (b"sr-only",),
    ".a11y-hidden": (b"a11y-hidden",),
    """[style]:is([style*="clip:"], [style*="-9"], [style*="-1"], [style*="!important"], [style*="font-size:0"],
    [style*="font-size: 0"], [style*="h:1px"], [style*="h: 1px"], [style*="lity"])""": (
        b"style=", b"style ", b"style)", b"style*", b"style,", b"style-",  # the last ones are white space, folded
    ),
}  # fmt: skip
"""What resiliparse (2.0.1) shows of a page and browsers may not, or the other way round, and words of which a page has
one that holds such an element: nobody spells a class with references. Each part takes some 20 microseconds a page in
its tree, each word 4 in its bytes."""
_RARE = "visuallyhidden visually-hidden assistive-text show-for-sr element-invisible hidden-accessible d-none"
_IN_HIDING_CLASSES: dict[str, tuple[bytes, ...]] = {
    **{f'[class*="{word}"]': (word.encode(),) for word in _RARE.split()},
    '[class*="creen"]': (b"creenr", b"creen-r", b"ffscreen", b"ff-screen"),
}
"""The rarer classes that hide, by words in them: one walk over the elements, a third of eight over the page's text."""
_RAISED: dict[str, tuple[bytes, ...]] = {"sup": (b"<sup",), "sub": (b"<sub",)}
_HEADINGS = ", ".join(HEADINGS)
_READ_BESIDE = ", ".join(("ruby", *ANNOTATIONS))
_SHORT_TEXT = re.compile(
    r">(?!<)\s*+(?:([\u0800-\uffff]|&(?:#\w{2,8}|(?!nbsp;)[A-Za-z]{2,12});)(?=\s*<)|[#§¶\U00010000-\U0010ffff](?=\s*<)"
    r"|[PpLlCcDdAa](?:erma\w++|ink\b|opy [Ll]ink|irect [Ll]ink|nchor\b))"
)
"""A text that is one character, or one reference to a character, behind a tag, or that begins as a permalink's."""
_INLINE_ENDS = ("</a", "</A", "</s", "</i", "</S", "</I")


def parsed(page: str) -> HTMLTree:
    """Resiliparse's tree of a page, without what it (2.0.1) would show and the page's reader does not see.

    With `main_content` it drops each text that is one character of three bytes, as are kana, Han and dashes: such a
    text gets a control character, which `scrub` takes off again. Closed parts that it hides itself stay hidden, though
    a reader may open them.
    """
    from resiliparse.parse.html import HTMLTree

    short = list(_SHORT_TEXT.finditer(page))
    ends = [text.end() for text in short if text[1] is not None]
    page_shown = "\x01".join(map(page.__getitem__, map(slice, [0, *ends], [*ends, None])))
    tree = HTMLTree.parse(page_shown)
    body: Any = tree.body
    if body is None:
        return tree
    words = folded(page_shown.encode())

    def nodes(rules: Mapping[str, tuple[bytes, ...]]) -> list[Any]:
        """The elements that one of some selectors finds, of which most find nothing in most pages."""
        may_be = [rule for rule, some in rules.items() if any(holds(words, word) for word in some)]
        return list(body.query_selector_all(", ".join(may_be)).values()) if may_be else []

    found = nodes(_SHOWN_BY_RESILIPARSE)
    for node in found:
        if is_visible(node.getattr("style") or ""):
            _take_out_shown(node)
    found += nodes(_IN_HIDING_CLASSES)
    for node in found:
        tag = node.tag
        if tag in ANNOTATIONS:
            _take_out_reading(node)
        elif tag in _IN_LINE and _stands_in_text(node):
            node.replace_with(*node.child_nodes.values())
        elif tag != "button" and _is_unseen(node, tag):
            node.remove()
    if any("a" <= text[0][-1] <= "z" or page.startswith(_INLINE_ENDS, text.end()) for text in short):
        for link in body.query_selector_all('a[href*="#"]').values():
            if _is_permalink(link):
                link.remove()
    for node in nodes(_RAISED):
        text = node.text
        if meets_number(node, text, _text_before, _text_behind):
            node.text = f"{raised(node.tag, text)}\x01"
    return tree


def _text_before(node: Any) -> str:
    return _text_beside(node, attrgetter("previous_sibling"))


def _text_behind(node: Any) -> str:
    return _text_beside(node, attrgetter("next_sibling"))


def _text_beside(node: Any, sibling: Callable[[Any], Any]) -> str:
    """The text right beside an element in its line; "" where the line begins or ends."""
    while True:
        beside, around = sibling(node), node.parent_element
        node = around if beside is None else beside
        if node is None or not (node.tag in OF_WORDS or node.tag in ("#text", "#comment")):
            return ""
        if beside is not None and node.tag != "#comment" and node.text:
            return str(node.text)


def _is_unseen(node: Any, tag: str) -> bool:
    by_style = hidden_by_style(node.getattr("style") or "")
    return (
        tag in _UNSEEN_BY_NAME
        or by_style == ALL
        or (by_style == LETTERS and tag in INLINE and node.first_element_child is None)
        or node.hasattr("popover")
        or hides(node.class_name or "")
        or (tag in INLINE and is_off(node.class_name or "") and _stands_in_text(node))
    ) and node.query_selector("math") is None


def _take_out_shown(node: Any) -> None:
    """See `page_tree.shown_again`."""
    around, outermost = node.parent_element, None
    while around is not None and around.tag not in ("body", "html"):
        style = around.getattr("style") or ""
        if is_invisible(style):
            outermost = around
        if around.hasattr("hidden") or around.tag in SHUT or hidden_by_style(without_visibility(style)) == ALL:
            return
        around = around.parent_element
    if outermost is not None:
        outermost.parent_element.insert_before(node, outermost)


def _stands_in_text(node: Any) -> bool:
    return _is_text(node.next_sibling) or _is_text(node.previous_sibling)


def _is_text(node: Any) -> bool:
    return node is not None and node.node_name == "#text" and not node.text.isspace()


def _take_out_reading(node: Any) -> None:
    around, after = node.parent_element, node.next_sibling
    if around is None or around.closest(_READ_BESIDE) is None:
        return
    is_last = after is not None and after.next_sibling is None
    for space in (around.first_child, node.previous_sibling, after if is_last else None):  # it sets the source apart
        if space is not None and space.node_name == "#text" and space.text.isspace():
            space.remove()
    node.remove()


def _is_permalink(link: Any) -> bool:
    """See `page_tree.is_permalink`."""
    href, sign = link.getattr("href") or "", is_sign((link.text or "").strip())
    if "#" not in href or sign is None:
        return False
    fragment, says_so = href.partition("#")[2], names_permalink(link.class_name or "")
    heading = link.closest(_HEADINGS)
    if heading is not None:
        return sign or says_so or _is_named(heading, fragment)
    beside = (link.previous_element_sibling, link.next_element_sibling)
    if any(one is not None and one.tag in HEADINGS and _is_named(one, fragment) for one in beside):
        return True
    around: Any = link
    for _ in range(4 if sign else 0):
        around = around.parent_element
        if around is None:
            break
        if says_so or around.id == fragment:
            return True
    return False


def _is_named(heading: Any, fragment: str) -> bool:
    named = [heading, heading.parent_element, *heading.query_selector_all("[id], [name]").values()]
    return any(one is not None and fragment in (one.id, one.getattr("name")) for one in named)
