"""Is the structure of a page kept? Lines of code, cells of tables and formulas, on pages whose source is known.

    ./uvw run --group docs benchmarks/structure.py

Pages are the descriptions of installed packages that are Markdown, written as HTML by python-markdown, with code in
three forms of Pygments (plain, line numbers in a column, and in each line), and prose with formulas in every way that
formulas are shown. Each lies between a menu and a footer. What is in the pages is read by the standard library's
parser. A line of code, or a row of a table, counts if it is a line of the text; a formula, if it stands in its
sentence.
"""

from __future__ import annotations

import html
import importlib.metadata
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser

import markdown

from machine import describe, save
from webtext_prep.extraction.extractors import EXTRACTORS, warm_up

FORMS = {"plain": {}, "numbers beside": {"linenos": "table"}, "numbers inside": {"linenos": "inline"}}
SOURCES = (
    r"E=mc^{2}", r"a<b", r"\frac{1}{2}", r"\sum_{i=1}^{n} i^2", r"\alpha+\beta", r"x_{1},\dots,x_{n}", r"\sqrt{2}",
    r"P(A\mid B)", r"\int_0^1 f(x)\,dx", r"\mathbb{R}^{n}", r"A\cap B", r"\lVert v\rVert", r"f\colon X\to Y",
    r"\begin{pmatrix}1&0\\0&1\end{pmatrix}", r"n!", r"\log_2 n", r"O(n\log n)", r"\hat{y}", r"p<.05", r"\nabla f",
)  # fmt: skip
BEFORE, AFTER = "The number that everybody looks for is ", " as was shown by many people in many other papers."
PROSE = "It was a quiet morning, and nobody in the village had heard the news from the town, which was far away. " * 3
_MATHML = '<math alttext="ESCAPED"OTHER><semantics><mrow><mi>x</mi><mn>2</mn></mrow>' \
    '<annotation encoding="application/x-tex">ESCAPED</annotation></semantics></math>'  # fmt: skip
_KATEX = '<span class="katex"><span class="katex-mathml">MATHML</span><span class="katex-html" aria-hidden="true">' \
    '<span class="base">x2</span></span></span>'  # fmt: skip
WAYS = {
    "Wikipedia": (
        '<span class="mwe-math-element"><span class="mwe-math-mathml-inline mwe-math-mathml-a11y" '
        f'style="display: none;">{_MATHML.replace("OTHER", "")}</span>'
        '<img class="mwe-math-fallback-image-inline" alt="ESCAPED"></span>',
        "$",
    ),
    "Wikipedia, a picture": ('<img src="x.svg" class="mwe-math-fallback-image-inline" alt="ESCAPED">', "$"),
    "LaTeXML": (_MATHML.replace("OTHER", ' class="ltx_Math" display="inline"'), "$"),
    "KaTeX": (_KATEX.replace("MATHML", _MATHML.replace("OTHER", "")), "$"),
    "KaTeX, display": (
        f'<span class="katex-display">{_KATEX.replace("MATHML", _MATHML)}</span>'.replace("OTHER", ' display="block"'),
        "$$",
    ),
    "MathJax 2": (
        '<span class="MathJax_Preview">x2</span><span class="MathJax" id="M-Frame"><span>x2</span></span>'
        '<script type="math/tex">SOURCE</script>',
        "$",
    ),
    "MathJax 2, display": (
        '<span class="MathJax_Preview"></span><span class="MathJax_Display">x2</span>'
        '<script type="math/tex; mode=display">SOURCE</script>',
        "$$",
    ),
    "MathJax in the text": (r"\(ESCAPED\)", "$"),
    "Sphinx": (r'<span class="math notranslate nohighlight">\(ESCAPED\)</span>', "$"),
    "WordPress": ('<img src="https://s0.wp.com/latex.php" alt="ESCAPED" class="latex">', "$"),
}
"""HTML of a formula, with its source (ESCAPED for HTML, and as it is), and what stands around it in the text."""


class Truth(HTMLParser):
    """The code and the rows of tables in HTML without line numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.code: list[str] = []
        self.rows: list[list[str]] = []
        self._text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("pre", "td", "th"):
            self._text = ""
        if tag == "tr":
            self.rows.append([])

    def handle_data(self, data: str) -> None:
        self._text += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "pre":
            self.code += [line.rstrip() for line in self._text.split("\n") if line.strip()]
        if tag in ("td", "th"):
            self.rows[-1].append(" ".join(self._text.split()))


def page_of(body: str, head: str = "") -> bytes:
    """A page with a menu, a text and a footer."""
    menu = "".join(f'<li><a href="/{word}">{word}</a></li>' for word in ("Home", "News", "Docs", "About us"))
    return (
        f"<html><head><meta charset=utf-8><title>A page</title>{head}</head><body><nav><ul>{menu}</ul></nav><main>"
        f"<h1>A page</h1>{body}</main><footer><p>© 2026 Somebody. All rights reserved.</p></footer></body></html>"
    ).encode()


def descriptions() -> Iterator[str]:
    """Those of installed packages that are Markdown and have code or a table, in the order of names."""
    found = {
        one.metadata["Name"].lower(): one.metadata.get_payload() or one.metadata.get("Description")
        for one in importlib.metadata.distributions()
        if "markdown" in (one.metadata.get("Description-Content-Type") or "")
    }
    yield from (str(text) for _, text in sorted(found.items()) if "```" in str(text) or "\n|" in str(text))


def main() -> None:
    """Measure, print, and save."""
    warm_up("learned")
    extract = EXTRACTORS["learned"]
    counts: Counter[str] = Counter()
    for text in descriptions():
        plain = markdown.markdown(text, extensions=["fenced_code", "tables"])
        truth = Truth()
        truth.feed(plain)
        for name, options in FORMS.items():
            extensions = ["fenced_code", "tables", "codehilite"]
            body = markdown.markdown(text, extensions=extensions, extension_configs={"codehilite": options})
            found = Counter(
                line.rstrip() for line in extract(page_of(body), "http://example.com/", None).text.split("\n")
            )
            counts[f"code, {name}: lines"] += len(truth.code)
            counts[f"code, {name}: right"] += (Counter(truth.code) & found).total()
        rows = [[cell for cell in row if cell] for row in truth.rows]
        lines = Counter(" | ".join(row) for row in rows)
        right = lines & found
        counts["tables: cells"] += sum(map(len, rows))
        counts["tables: right"] += sum((line.count(" | ") + 1) * number for line, number in right.items() if line)
    for source in SOURCES:
        for name, (form, dollars) in WAYS.items():
            formula = form.replace("ESCAPED", html.escape(source)).replace("SOURCE", source)
            page = page_of(
                f"<p>{PROSE}</p><p>{BEFORE}{formula}{AFTER}</p><p>{PROSE}</p>", "<script src=mathjax.js></script>"
            )
            wanted = f"{BEFORE}{dollars}{' '.join(source.split())}{dollars}{AFTER}"
            counts["formulas: all"] += 1
            is_right = wanted in extract(page, "http://example.com/", None).text.split("\n")
            counts["formulas: right"] += is_right
            if not is_right:
                print(name, source)
    for name, count in counts.items():
        print(f"{name:<32} {count:>8,}")
    save("structure", {"machine": describe("markdown", "Pygments", "lxml"), "counts": counts})


if __name__ == "__main__":
    main()
