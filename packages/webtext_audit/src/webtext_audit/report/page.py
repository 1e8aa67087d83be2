"""The page itself: one HTML file without scripts, and a policy that would not let one run, nor load anything.

Its style sheet is the only thing that the policy allows, by its digest: no text of a document can add to it.
"""

from __future__ import annotations

from collections.abc import Sequence

from command_kit.charts.markup import Markup, digest_of, join, style_sheet, tag
from webtext_audit.report import ablation, contents, origin, training
from webtext_audit.report.collect import Gathered
from webtext_audit.report.templates import filled

Section = tuple[str, Markup | None]
"""A part of a section: the folder that it is about, and its contents."""


def render(found: Gathered, title: str) -> str:
    """The page as one HTML text."""
    style = Markup(style_sheet("colours", "page") + _funnel_style())
    return filled(
        "page",
        title=title,
        policy=f"default-src 'none'; style-src '{digest_of(style)}'; base-uri 'none'; form-action 'none'",
        style=style,
        subtitle=_subtitle(found),
        lead=origin.outcome(found),
        tiles=origin.tiles(found),
        sections={name: parts for name, parts in _sections(found).items() if parts},
    )


def picture(found: Gathered) -> str:
    """The funnel alone, as one SVG text."""
    return origin.picture(found, style_sheet("colours") + _funnel_style()) + "\n"


def _funnel_style() -> str:
    return style_sheet("funnel", package="webtext_audit.report")


def _subtitle(found: Gathered) -> str:
    stages = [*dict.fromkeys(step.stage for step in found.steps), *(["train"] if found.run is not None else [])]
    finished = max((str(step.run["finished_at"]) for step in found.steps if step.run.get("finished_at")), default="")
    return " → ".join(stages) + (f" · {finished[:10]}" if finished else "")


def _sections(found: Gathered) -> dict[str, list[Markup]]:
    """The sections by their headings, in order; sections without anything to show are empty."""
    corpora = found.corpora
    planned = origin.comparison(found.plan, found.steps) if found.plan is not None else None
    examples = contents.examples(corpora, found.examples)
    return {
        "What the model writes": training.written(found.run) if found.run is not None else [],
        "Training": [training.training(found.run)] if found.run is not None else [],
        "Ablation": [ablation.ablation(found.ablation)] if found.ablation is not None else [],
        "From source to corpus": origin.funnel(found),
        "Examples": [examples] if examples.strip() else [],
        "Domains": _headed([(corpus.end.name, contents.domains(corpus)) for corpus in corpora]),
        "Lengths": _headed([(corpus.end.name, contents.lengths(corpus)) for corpus in corpora]),
        "Languages": _headed([(corpus.end.name, contents.languages(corpus)) for corpus in corpora]),
        "Kinds of pages": _headed([(corpus.end.name, contents.kinds(corpus)) for corpus in corpora]),
        "Downloads": _headed([(step.name, contents.outcomes(of, taken)) for step, of, taken in found.outcomes]),
        "Opt-outs": [part] if (part := contents.preferences(found)) is not None else [],
        "Scores": _headed([(step.name, contents.scores(step)) for step in found.steps]),
        "Duplicates": _headed([(step.name, contents.duplicates(step, of)) for step, of in found.duplicates]),
        "Plan and what happened": [planned] if planned is not None else [],
        "How it was made": [origin.runs(found)],
    }


def _headed(parts: Sequence[Section]) -> list[Markup]:
    """The parts that show something, each headed by its folder where there are several."""
    shown = [(name, part) for name, part in parts if part is not None]
    return [join([tag("h3", name) if len(shown) > 1 else None, part]) for name, part in shown]
