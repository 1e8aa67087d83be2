"""Is the structure of a page kept? Lines of code, cells of tables and formulas, on pages whose source is known.

    ./uvw run --group dev --group peers benchmarks/structure.py [FOLDER ...]

Pages are the descriptions of installed packages that are Markdown, written as HTML by python-markdown, with code in
three forms of Pygments (plain, line numbers in a column, and in each line); those that are reStructuredText, written by
docutils; prose with formulas in every way that formulas are shown; and pages of folders (as
`tools/extraction_pages.py` says) with formulas in MathML, whose LaTeX must be in a block of text. All but the last lie
between a menu and a footer. What is in the pages is read by the standard library's parser. A line of code, or a row of
a table, counts if it is a line of the text of all blocks (which are kept is measured by `extraction.py`); a formula, if
it stands in its sentence.
"""

from __future__ import annotations

import argparse
import html
import importlib.metadata
import re
import sys
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import docutils.core
import markdown
import numpy as np

from machine import describe, save
from webtext_prep.extraction.extractors import EXTRACTORS, warm_up
from webtext_prep.extraction.html.markup import written
from webtext_prep.extraction.learned.blocks import blocks_of

sys.path.append(str(Path(__file__).resolve().parents[1] / "tools"))

from extraction_pages import reviewed_pages

FORMS = {"plain": {}, "numbers beside": {"linenos": "table"}, "numbers inside": {"linenos": "inline"}}
SOURCES = (
    r"E=mc^{2}", r"a<b", r"\frac{1}{2}", r"\sum_{i=1}^{n} i^2", r"\alpha+\beta", r"x_{1},\dots,x_{n}", r"\sqrt{2}",
    r"P(A\mid B)", r"\int_0^1 f(x)\,dx", r"\mathbb{R}^{n}", r"A\cap B", r"\lVert v\rVert", r"f\colon X\to Y",
    r"\begin{pmatrix}1&0\\0&1\end{pmatrix}", r"n!", r"\log_2 n", r"O(n\log n)", r"\hat{y}", r"p<.05", r"\nabla f",
)  # fmt: skip
DOCUTILS = {"report_level": 5, "halt_level": 6, "file_insertion_enabled": False, "raw_enabled": False}
"""What is wrong in a description is left as it is."""
_ANNOTATION = re.compile(r'<annotation[^>]*encoding="application/x-tex"[^>]*>(.*?)</annotation>', re.DOTALL)
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


def descriptions(form: str, has_structure: str) -> Iterator[str]:
    """Those of installed packages in a form (markdown, x-rst) with code or a table in them, in the order of names."""
    found = {
        one.metadata["Name"].lower(): str(one.metadata.get_payload() or one.metadata.get("Description"))
        for one in importlib.metadata.distributions()
        if form in (one.metadata.get("Description-Content-Type") or "")
    }
    yield from (text for _, text in sorted(found.items()) if re.search(has_structure, text))


def count_structure(counts: Counter[str], name: str, truth: Truth, body: str) -> None:
    """Add how many lines of code and cells of tables of a page there are, and how many are right."""
    page = page_of(body)
    blocks = blocks_of(page.decode())
    assert blocks is not None  # it has a menu
    text = written(blocks, np.ones(len(blocks.texts), bool))
    found = Counter(line.rstrip() for line in text.split("\n"))
    counts[f"code, {name}: lines"] += len(truth.code)
    counts[f"code, {name}: right"] += (Counter(truth.code) & found).total()
    for row in filter(any, truth.rows):
        line = " |".join(f" {cell}" if cell else "" for cell in row).rstrip(" |").strip()
        cells = len(row) - row.count("")
        counts[f"tables, {name}: cells"] += cells
        counts[f"tables, {name}: right"] += cells * (found[line] > 0)
        found[line] -= 1


def count_annotations(counts: Counter[str], folder: Path) -> None:
    """Add how many annotations with LaTeX the pages of a folder have, and how many stand in a block of text."""
    for page in reviewed_pages(folder):
        sources = _ANNOTATION.findall(page.html.decode("utf-8", "replace")) if b"x-tex" in page.html else []
        blocks = blocks_of(page.html.decode("utf-8", "replace")) if sources else None
        texts = Counter[str](blocks.texts if blocks is not None else ())
        for source in sources:
            wanted = " ".join(html.unescape(source).split())
            counts["formulas of folders: all"] += 1
            counts["formulas of folders: right"] += any(f"${wanted}$" in text for text in texts)


def main() -> None:
    """Measure, print, and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="*", metavar="FOLDER")
    arguments = parser.parse_args()
    warm_up("learned")
    extract = EXTRACTORS["learned"]
    counts: Counter[str] = Counter()
    for text in descriptions("markdown", r"```|\n\|"):
        truth = Truth()
        truth.feed(markdown.markdown(text, extensions=["fenced_code", "tables"]))
        for name, options in FORMS.items():
            extensions = ["fenced_code", "tables", "codehilite"]
            body = markdown.markdown(text, extensions=extensions, extension_configs={"codehilite": options})
            count_structure(counts, name, truth, body)
    for text in descriptions("x-rst", r"::\n|\n=+ =|\n\+-"):
        body = docutils.core.publish_parts(text, writer="html5", settings_overrides=DOCUTILS)["html_body"]
        truth = Truth()
        truth.feed(body)
        count_structure(counts, "reStructuredText", truth, body)
    for folder in arguments.folders:
        count_annotations(counts, folder)
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
    save("structure", {"machine": describe("markdown", "docutils", "Pygments", "lxml"), "counts": counts})


if __name__ == "__main__":
    main()
