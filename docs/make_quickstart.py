"""Runs the quickstart, and writes what it prints into docs/quickstart.md, and what the README shows of it.

    ./uvw run docs/make_quickstart.py

The run's folder, runs/quickstart, must not be there yet. It is left there for the pages of docs/guide that show more of
the same run. A test compares their numbers with the README's.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from command_kit import write_text

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path("runs/quickstart")
PICTURE = ROOT / "docs" / "images" / "report-funnel.svg"
FIRST_STEPS, LAST_STEPS = 2, 3
"""How many of the lines with a training loss are shown, of the first and of the last ones."""
PROGRESS = re.compile(r"[\w-]+(: [\w ]+)?: .*\[\d\d:\d\d[\d:]*[<,].*\]$")
"""Lines of progress, which are other ones in each run."""
MOVING = "|".join(
    [
        r"  \(\d+:\d\d(:\d\d)?\)$",
        r", \d{4}-\d\d-\d\dT[\d:]+Z\b",
        r"  [\d,]+ tokens/s",
        r"  [\d:]+ left$",
        r" in \d+:\d\d( \(training .*\))?$",
        r"(?<=^Done) in [\d:]+",
    ]
)
"""Numbers that another run would change: durations, dates, rates."""
NOTES = ("loading PyTorch", "preparing the run", "run.py: loading", "checking the settings", "looking for the")
"""What begins lines that only say why nothing is to be seen for a second."""
FIRST_TIME = "compiling for this machine"
"""What begins a line that no later run prints."""
ALL_THAT_IT_SAYS: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}


def main() -> None:
    """Raises SystemExit where the quickstart fails, or its folder is there already."""
    if (ROOT / FOLDER).exists():
        sys.exit(f"{FOLDER} is there already: remove it, so that all that is shown comes from one run.")
    printed = run([sys.executable, "pipelines/run.py", "quickstart"])
    report = ("webtext", "report", FOLDER / "corpus", "--output", FOLDER / "funnel.html", "--funnel", PICTURE)
    run([Path(sys.executable).with_name(report[0]), *report[1:]])
    page, readme = ROOT / "docs" / "quickstart.md", ROOT / "README.md"
    write_text(page, replace_block(page.read_text(encoding="utf-8"), "quickstart: ", shortened(printed)))
    write_text(readme, with_result(readme.read_text(encoding="utf-8"), printed))


def run(words: list[object]) -> str:
    """What a command prints, which is shown, too. Raises SystemExit where it fails."""
    lines = []
    with subprocess.Popen(list(map(str, words)), cwd=ROOT, text=True, **ALL_THAT_IT_SAYS) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    if process.returncode:
        sys.exit(process.returncode)
    return "".join(lines)


def steady(printed: str) -> str:
    """What a command prints, without progress, without a chart of losses, and without numbers that move."""
    lines = [line for line in printed.splitlines() if not PROGRESS.match(line) and not line.startswith(NOTES)]
    curve = next((at for at, line in enumerate(lines) if re.search(r"training loss .* \(line\)", line)), len(lines))
    kept = lines[:curve] if curve else lines
    return re.sub(MOVING, "", "\n".join(kept), flags=re.MULTILINE)


def shortened(printed: str) -> str:
    """All that the quickstart prints from its first line on, but of its steps the first, and the last planned."""
    shown = re.sub(MOVING, "", printed[printed.index("quickstart: ") :], flags=re.MULTILINE)
    lines = [line for line in shown.splitlines() if not PROGRESS.match(line) and not line.startswith(FIRST_TIME)]
    steps = [at for at, line in enumerate(lines) if re.match(r"step [\d,/]+  loss", line)]
    total = lines[steps[-1]].partition("  ")[0].partition("/")[2]
    last = [at for at in steps[-LAST_STEPS:] if f"/{total}  " in lines[at]]
    left_out = range(steps[FIRST_STEPS], last[0])
    kept = (("..." if at == left_out.start else line, at) for at, line in enumerate(lines))
    return "\n".join(line for line, at in kept if at == left_out.start or at not in left_out)


def with_result(text: str, printed: str) -> str:
    """The README with this run's URLs and bits per byte, and the longest sentence in one line that the model wrote."""
    found = {
        r"(?<=What the quickstart's )[\d,]+": re.search(r"^  URLs in +([\d,]+)", printed, re.MULTILINE),
        r"(?<=\*\*)[\d.]+(?= bits per byte)": re.search(r"^    this model +([\d.]+)", printed, re.MULTILINE),
        r"(?<=\(zstd: )[\d.]+": re.search(r"^    zstd -19 +([\d.]+)", printed, re.MULTILINE),
    }
    for pattern, value in found.items():
        assert value is not None
        text = re.sub(pattern, value[1], text)
    lines = re.findall(r"^  \| ([A-Z].{20,80}\.)$", printed, re.MULTILINE)
    return re.sub(r"^> .*", lambda _: f"> {max(lines, key=len)}", text, flags=re.MULTILINE)


def replace_block(text: str, begins: str, content: str) -> str:
    """A page with another content of the block of text that begins so."""
    found = re.search(r"(?<=^```text\n)" + re.escape(begins) + r".*?(?=^```$)", text, re.MULTILINE | re.DOTALL)
    if found is None:
        sys.exit(f"the page has no block that begins with {begins!r}.")
    return text[: found.start()] + content.rstrip() + "\n" + text[found.end() :]


if __name__ == "__main__":
    main()
