"""The README and docs/: examples in Python run, and links lead somewhere (commands: test_documented_commands.py)."""

import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.documented import PAGES, ROOT, example

import webtext_prep.cli
from webtext_prep import stages
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.shards import write_documents
from webtext_prep.text import quality


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    texts = {
        "good": "A page about something. " * 20,
        "advertisement": "Subscribe now to read on. " * 5,
        "numbers": "1 2 3 4 5 6 7 8 9 " * 20,
        "long": "A very long page. " * 6000,
    }
    with write_documents(tmp_path / "input" / "part-00000.jsonl.zst") as writer:
        for name, text in texts.items():
            writer.write(Document(f"http://example.org/{name}", text))
    return tmp_path / "input"


def dropped(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, int]:
    assert webtext_prep.cli.main([*map(str, arguments), "--workers", "1", "--json"]) == 0
    return json.loads(capsys.readouterr().out)["dropped"]


def test_the_filter_of_the_guide_filters(documents: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my_filters.py").write_text(example("keep"))
    function = f"{tmp_path / 'my_filters.py'}:keep"
    found = dropped(capsys, "filter", "--function", function, "--input", documents, "--output", tmp_path / "out")
    assert found == {"advertisement": 1, "few_letters": 1, "very_long": 1}


def test_the_stage_of_the_guide_is_added_in_one_file(
    documents: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], plugin: Callable[..., None]
) -> None:
    """A file in the folder of stages is a command with flags and help; nothing else changes."""
    plugin(stages, "shorten", example("Shorten"))
    found = dropped(capsys, "shorten", "--input", documents, "--output", tmp_path / "out", "--max-characters", 400)
    with pytest.raises(SystemExit):
        webtext_prep.cli.main(["shorten", "--help"])
    assert found == {"too_long": 2}
    assert "--max-characters N" in capsys.readouterr().out


def test_the_quality_rule_of_the_guide_is_added_in_one_file(
    documents: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], plugin: Callable[..., None]
) -> None:
    plugin(quality, "no_shouting", example("NoShouting"))
    with write_documents(documents / "part-00001.jsonl.zst") as writer:
        writer.write(Document("http://example.org/loud", "A LOUD PAGE. " * 20))
    asked = ("--language", "any", "--min-tokens", 0, "--rules", "no-shouting")
    found = dropped(capsys, "clean", "--input", documents, "--output", tmp_path / "out", *asked)
    assert found == {"no_shouting: capitals": 1}


def test_every_link_and_path_of_the_documentation_leads_somewhere() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", text):
            file = (page.parent / target).resolve() if target else page
            assert file.exists(), f"{page.name}: {target}"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
                anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
                assert anchor in anchors, f"{page.name}: {target}#{anchor}"
        for path in re.findall(r"`((?:packages|pipelines|tests|docs|data|benchmarks)/[\w./-]+|tools/\w+\.py)`", text):
            assert (ROOT / path).exists() or path.startswith("benchmarks/results/"), f"{page.name}: {path}"


def test_one_run_of_the_quickstart_is_shown_everywhere() -> None:
    """The README's picture and the pages of the guide showed other runs than the README's text."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    text = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    (outcome,) = re.findall(r"^Done\..*?(?=^What the model writes)", text, re.MULTILINE | re.DOTALL)
    assert re.search(r"\*\*([\d.]+) bits per byte\*\*", readme)[1] == re.search(r"this model +([\d.]+)", outcome)[1]
    assert re.search(r"\(zstd: ([\d.]+)\)", readme)[1] == re.search(r"zstd -19 +([\d.]+)", outcome)[1]
    assert f"  | {re.search(r'^> (.*)', readme, re.MULTILINE)[1]}" in text
    stages = re.findall(r"^  (\S+) +([\d,]+)  ->  ([\d,]+)", outcome, re.MULTILINE)
    (tokens,) = set(re.findall(r"([\d,]+) tokens", outcome))
    (parameters,) = set(re.findall(r"([\d,]+) parameters", text))
    # Training takes a time, and its first line says for how many steps that is by what the first one took.
    _, *totals = re.findall(r"^step [\d,]+/([\d,]+)", text, re.MULTILINE)
    (steps,) = set(totals)
    urls, documents = stages[0][1], stages[-1][2]

    picture = (ROOT / "docs" / "images" / "report-funnel.svg").read_text(encoding="utf-8")
    shown = re.findall(r"(\S+) ([\d,]+) to ([\d,]*\d)", picture[: picture.index("</title>")])
    assert shown == [stage for stage in stages if stage[0] not in ("train-tokenizer", "index-tokens")]
    assert f"{int(tokens.replace(',', '')) / 1000:.0f}k tokens" in picture
    assert "margin" not in re.search(r"^\.funnel \{.*", picture, re.MULTILINE)[0], (
        "it moves the drawing out of its frame"
    )

    report = (ROOT / "docs" / "example" / "report.html").read_text(encoding="utf-8")
    bits = re.search(r"this model +([\d.]+)", outcome)[1]
    for shown in (f"of {urls} URLs are in the corpus", f"<dd>{documents}<small>", f"<dd>{bits}<small>"):
        assert shown in report, "make it again: ./uvw run --group dev docs/make_example.py"

    guide = {page.stem: page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "guide").glob("*.md")}
    assert f"The funnel: {urls} URLs in, {documents} documents with {tokens} tokens kept" in guide["report"]
    assert f"{documents} different documents, and {tokens} tokens" in guide["plan"]
    assert f"tokens: {tokens}\n" in guide["trace"]
    assert f"  URLs in                              {urls}" in guide["blacklist"]
    assert f"model/checkpoints/step-{int(steps.replace(',', '')):07}" in guide["serve"]
    assert f"({parameters} parameters)" in guide["serve"]
    assert f"What the quickstart's {urls} URLs became" in readme


@pytest.mark.exhaustive
def test_the_blocks_of_the_python_page_run_one_after_another(tmp_path: Path) -> None:
    blocks = re.findall(
        r"^```python\n(.*?)^```$", (ROOT / "docs/guide/python.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert len(blocks) == 5
    (tmp_path / "page.py").write_text("if __name__ == '__main__':\n" + textwrap.indent("\n".join(blocks), "    "))
    done = subprocess.run([sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert re.match(r"\d+ \{.*\} \d+", said[0]) and re.match(r"\d+ \d+ Page \d+ tells", said[1]) and len(said) == 3
