"""`webtext report`: one HTML page with all that is known of a corpus, from its sources to the model trained on it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from command_kit import available_cores, setting, write_text
from webtext_prep.commands import Command
from webtext_prep.errors import InputError
from webtext_prep.running.summary import Findings
from webtext_prep.storage import location

if TYPE_CHECKING:
    from webtext_audit.commands.plan import CorpusPlan


@dataclass(frozen=True)
class Report(Command):
    """Write one self-contained HTML page about finished folders: the funnel from the sources on, domains, lengths,
    languages, downloads, duplicates, examples of what was kept and dropped, settings, and a training run.

    Reads what the stages left. Nothing is fetched, and the page loads nothing and runs no script."""

    name: ClassVar[str] = "report"
    order: ClassVar[int] = 20
    summary: ClassVar[str] = "finished folders -> one HTML page: the funnel, figures, examples, losses"

    folders: tuple[str, ...] = setting(
        (), "folders that stages made, or prefixes of token files", metavar="DIR", positional=True
    )
    output: str = setting("", "the page to write", metavar="FILE.html")
    run: str = setting("", "a training run, to show its losses", metavar="RUN")
    samples: str = setting("", "texts of the model, as `gpt2 generate --json` prints them", metavar="FILE.json")
    ablation: str = setting("", "what `gpt2 ablate` found, to show it", metavar="DIR")
    plan: str = setting(
        "",
        "a plan of `webtext plan`, to compare; without it one that lies next to the folders, or in `plan` there",
        metavar="PLAN",
    )
    title: str = setting("", "the heading of the page; the name of the pipeline's or the corpus' folder without it")
    funnel: str = setting("", "also write the funnel, as a picture that stands alone", metavar="FILE.svg")
    sample: int = setting(1_000_000, "rows to read of a folder that has more", ge=1)
    all: bool = setting(False, "read all rows, however many there are")
    workers: int = setting(0, "processes at once; 0 means all cores", ge=0)

    def __post_init__(self) -> None:
        if not self.folders:
            raise InputError("webtext report needs a DIR: say which folder or token files to report on.")
        if not self.output:
            raise InputError("webtext report needs --output FILE.html: say where to write the page.")
        if self.samples and not self.run:
            raise InputError("--samples shows what a model wrote: name its training run with --run RUN, too.")

    def find(self) -> Findings:
        """Write the page. Raises InputError for a folder that no stage has finished, or that is damaged."""
        # All of this is for this command alone.
        from webtext_audit.report.ablation import read_ablation
        from webtext_audit.report.collect import gather
        from webtext_audit.report.origin import title_of
        from webtext_audit.report.page import picture, render
        from webtext_audit.report.training import read_run
        from webtext_prep.documents.folders.stage_record import trace_all

        output = Path(self.output)
        if output.is_dir():
            raise InputError(
                f"--output {output} is a folder: give the name of a file, such as {output / 'report.html'}."
            )
        for flag, given, begin in (("--output", self.output, b"<!doctype html>"), ("--funnel", self.funnel, b"<svg")):
            if given and Path(given).exists() and not (Path(given).is_file() and _begins(Path(given), begin)):
                raise InputError(f"{flag} {given} is there, and is no page of a report: give a name that is free.")
        plan = self._plan()
        run = read_run(Path(self.run), self.samples) if self.run else None
        ablation = read_ablation(Path(self.ablation)) if self.ablation else None
        ends = trace_all(self.folders)
        sample, workers = 0 if self.all else self.sample, self.workers or available_cores()
        found = gather(ends, sample=sample, workers=workers, run=run, plan=plan)
        found.ablation = ablation
        page = render(found, self.title or title_of(ends))
        write_text(output, page)
        if self.funnel:
            write_text(self.funnel, picture(found))
        size = len(page.encode("utf-8"))
        values = {"output": str(output), "bytes": size, "steps": len(found.steps), "changes": found.changes}
        return Findings("\n".join([f"report: {output}", *(f"note: {sentence}" for sentence in found.changes)]), values)

    def _plan(self) -> CorpusPlan | None:
        """The plan that is given, or lies next to the reported folders. Raises InputError for one that is damaged."""
        from webtext_audit.commands.plan import find_plan, read_plan

        local = [place for place in map(location, self.folders) if isinstance(place, Path)]
        place = self.plan or find_plan(local)
        return read_plan(place) if place else None


def _begins(path: Path, begin: bytes) -> bool:
    """Whether a file begins so, in capitals or not."""
    with path.open("rb") as file:
        return file.read(len(begin)).lower() == begin
