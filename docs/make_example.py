"""Makes the example corpus of the documentation from the quickstart's run, which docs/make_quickstart.py left.

    ./uvw run --group dev docs/make_example.py

Writes docs/example/report.html, the answers of `webtext why` and `webtext trace` into docs/example.md, and pictures of
the page of `gpt2 serve`. It needs Chromium, and some minutes for `gpt2 ablate`.
"""

from __future__ import annotations

import base64
import json
import platform
import subprocess
import sys
from pathlib import Path

from make_quickstart import FOLDER, ROOT, run

from command_kit import write_text

sys.path.insert(0, str(ROOT))
from tests.webtext_prep.support.browser import Browser

PAGE = ROOT / "docs" / "example.md"
FOUND = ROOT / "docs" / "example"
CORPUS, MODEL, ABLATION = FOLDER / "corpus_text_document", FOLDER / "model", FOLDER / "short" / "comparison"
ARMS = {"128-tokens": 128, "any-length": 1}
"""What is compared: corpora of documents with at least that number of tokens."""
SMALL = ["--layers=2", "--hidden=64", "--heads=2", "--global-batch-size=16", "--held-out-tokens=30000", "--steps=120"]
PICTURES = {"light": (1000, False), "phone": (400, True)}
"""Of the page of `gpt2 serve`: width, and whether it is dark."""
DONE = "document.querySelector('article:not(.writing)')"


def main() -> None:
    """Raises SystemExit where the quickstart's run is missing, or a command fails."""
    if not (ROOT / MODEL).is_dir():
        sys.exit(f"{MODEL} is not there: run docs/make_quickstart.py first.")
    run([*command("gpt2", "ablate", "--data", *arms(), "--output", ABLATION), *SMALL])
    report = command("webtext", "report", CORPUS, "--output", FOLDER / "report.html", "--run", MODEL)
    run([*report, "--samples", FOLDER / "samples.json", "--ablation", ABLATION])
    text = (ROOT / FOLDER / "report.html").read_text(encoding="utf-8")
    FOUND.mkdir(exist_ok=True)
    write_text(FOUND / "report.html", without_machine(text))
    page = PAGE.read_text(encoding="utf-8")
    page = with_answer(page, "webtext why", run(command("webtext", "why", duplicate(), CORPUS)))
    samples = json.loads((ROOT / FOLDER / "samples.json").read_text(encoding="utf-8"))["samples"]
    sample = max(samples, key=lambda one: len(one["trace"]["passages"]))
    page = with_answer(
        page, "webtext trace", run(command("webtext", "trace", "--data", CORPUS, "--text", sample["text"]))
    )
    write_text(PAGE, page)
    take_pictures()


def without_machine(text: str) -> str:
    """What a command wrote, without this machine's name, its kernel, and the path of the checkout."""
    return (
        text.replace(f"{ROOT}/", "").replace(platform.node(), "laptop").replace(platform.platform(), platform.system())
    )


def with_answer(page: str, asked: str, answer: str) -> str:
    """The page with another text block after the link to the page of the command that was asked."""
    before, link, after = page.partition(f"[`{asked}`]")
    head, _, rest = after.partition("```text\n")
    return f"{before}{link}{head}```text\n{without_machine(answer).strip()}\n```{rest.partition('```')[2]}"


def command(program: str, *words: object) -> list[object]:
    """A command of this environment."""
    return [Path(sys.executable).with_name(program), *words]


def arms() -> list[str]:
    """The token files that `gpt2 ablate` compares, with the same pages held out; made where they are not there yet."""
    found = []
    for name, fewest in ARMS.items():
        folder, tokenizer = FOLDER / "short" / name, FOLDER / "train-tokenizer"
        run(command("webtext", "clean", FOLDER / "merge", "--output", folder / "clean", "--min-tokens", fewest))
        run(command("webtext", "dedup", folder / "clean", "--output", folder / "dedup"))
        words = (folder / "dedup", "--output", folder / "corpus", "--tokenizer", tokenizer, "--hold-out", 0.1)
        run(command("webtext", "tokenize", *words))
        found.append(f"{name}={folder / 'corpus_text_document'}")
    return found


def duplicate() -> str:
    """A page that `dedup` dropped: the first of its table."""
    shown = subprocess.run(
        [*map(str, command("webtext", "inspect", FOLDER / "dedup", "--dropped", "duplicate", "--json"))],
        cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True,
    )  # fmt: skip
    return str(json.loads(shown.stdout)["samples"][0]["url"])


def take_pictures() -> None:
    """The page of `gpt2 serve` with a text, and what the model thought of one of its words."""
    words = [*map(str, command("gpt2", "serve", "--checkpoint", MODEL, "--port", "0"))]
    with subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True) as server, Browser() as browser:
        assert server.stderr is not None
        line = next(line for line in server.stderr if " at http://" in line)
        place = line.partition(" at ")[2].split()[0]
        for name, (width, is_dark) in PICTURES.items():
            browser.open(place, width=width, dark=is_dark)
            browser.wait_for("document.title === 'quickstart'")
            for field, value in (("prompt", "The graph"), ("temperature", 0.5), ("tokens", 2)):
                browser.evaluate(f"document.getElementById('{field}').value = {value!r}")
            browser.evaluate("document.getElementById('write').click()")
            browser.wait_for(DONE)
            height = browser.evaluate("document.documentElement.scrollHeight")
            browser.resize(width, height, dark=is_dark)
            browser.wait_for("(window.drawn = (window.drawn ?? 0) + 1) > 10")  # frames, until the new size is known
            pointed = "new PointerEvent('pointerover', {bubbles: true})"
            browser.evaluate(f"document.querySelectorAll('.token')[7].dispatchEvent({pointed})")
            shot = browser.send("Page.captureScreenshot", format="png")["data"]
            (FOUND / f"serve-{name}.png").write_bytes(base64.b64decode(shot))
        server.terminate()


if __name__ == "__main__":
    main()
