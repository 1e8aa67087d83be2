"""Runs the commands of the guide where the quickstart has been, and puts what they print below them.

    ./uvw run --group dev docs/make_guide.py
    ./uvw run --group dev docs/make_guide.py guide/clean guide/dedup

It works in a copy of runs/quickstart, which docs/make_quickstart.py leaves. A block of text that stands right below a
command is what that command prints, without progress and without numbers that another run would change: durations,
rates, dates. One that somebody has cut (a line of `...`) is left alone, and so is one below a command that can't be
run (`NOT_HERE` of tests/documented_runs.py).
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from make_quickstart import FOLDER, ROOT, steady

from command_kit import write_text

sys.path.insert(0, str(ROOT))
from tests.documented import commands_of
from tests.documented_runs import ORDER, Place, page_text, reason_not_to_run, site_at

SHOWN = re.compile(r"((?:^    [^\n]*\n)+)\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""Commands, and what the last of them prints."""
LEFT_OUT = ("projects", "coming-from", "../README", "tutorial")
"""Pages that show no output, and the tutorial, which begins with nothing: --tutorial."""


def main(names: list[str]) -> int:
    """Make the pages of these names again, or all that show what commands print."""
    if not (ROOT / FOLDER).is_dir():
        sys.exit(f"{FOLDER} is not there: run docs/make_quickstart.py first.")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        shutil.copytree(ROOT / FOLDER, FOLDER, symlinks=True)
        place = Place(Path(folder))
        with site_at(place.site):
            place.prepare()
            for name in names or [name for name in ORDER if name not in LEFT_OUT]:
                write_text(ROOT / "docs" / f"{name}.md", with_output(page_text(name), place))
            place.close()
    return 0


def with_output(page: str, place: Place) -> str:
    """A page with what its commands print now."""
    parts, at = [], 0
    for found in SHOWN.finditer(page):
        parts += [page[at : found.start()], replaced(page[at : found.end()], found, place)]
        at = found.end()
    return "".join([*parts, page[at:]])


def replaced(text: str, found: re.Match[str], place: Place) -> str:
    """The commands and the block of one place, after all commands up to there have been run."""
    printed, command = "", ""
    for command in commands_of(text):
        if not reason_not_to_run(command):
            print(command, flush=True)
            code, out, err = place.run(command)
            # The records of the copied outputs name the folder in which they were made.
            printed = "" if code else steady(out or err).replace(f"{ROOT}/", "")
    is_cut = re.search(r"^ *\.\.\.$", found[2], re.MULTILINE)
    if is_cut or not printed or not list(commands_of(found[1])) or reason_not_to_run(command):
        return found[0]
    return f"{found[1]}\n```text\n{printed.rstrip()}\n```"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
