"""The comparison of corpora from the token files to the verdict."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

from command_kit import write_json, write_text
from command_kit.command import print_note
from command_kit.settings import as_table, to_toml
from gpt2_train.checkpoint.info import find_checkpoint, read_info
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.files import CONFIG_FILE, METRICS_FILE, read_records
from gpt2_train.config.settings import ModelConfig, TrainSettings
from gpt2_train.distributed.device import choose_device
from gpt2_train.evaluation.tasks import check_readable, parse_task
from gpt2_train.training.run_folder import lock_folder
from webtext_run.ablation import held_out, plans, runs, verdict, words
from webtext_run.ablation.arms import Arm, open_arms
from webtext_run.ablation.settings import AblateSettings

RESULT_FILE = "ablation.json"
CALIBRATION_MINUTES = 0.1


def ablate(settings: AblateSettings, *, restart: bool = False) -> dict[str, Any]:
    """Train and compare; returns what `ablation.json` holds.

    Raises Gpt2UsageError for data that do not belong together, or an output that holds another ablation.
    """
    settings.check()
    prefixes = settings.arms()
    for task in map(parse_task, settings.eval_task):
        check_readable(getattr(task, task.source))
    arms, tokenizer = open_arms(prefixes)
    sets = held_out.held_out_sets(
        arms, tokenizer, held_out=settings.held_out, want=settings.want, most=settings.held_out_tokens
    )
    asked, output = plans.asked_for(settings, arms, sets), Path(settings.output)
    device = choose_device(settings.device).type
    count = runs.processes_for(device, settings.processes)
    with lock_folder(output), runs.Workers(count, sets, settings.eval_task) as workers:
        if restart:
            discard(output)
        plan = plans.read_plan(output, asked)
        if plan is None:
            # First of all: it says that the folder is an ablation's.
            write_text(output / CONFIG_FILE, to_toml({"ablate": as_table(settings)}))
            moved = 1 - min(arm.share_of(arms[0]) for arm in arms[1:])
            plan = make_plan(settings, arms, output, workers, count, device)
            plan = dataclasses.replace(plan, asked=asked, reordered=moved)
            plans.write_plan(output, plan)
        jobs = [
            runs.TrainingJob(run.name, plan.settings_of(run, prefixes[run.arm], output))
            for run in plans.planned_runs(list(prefixes), plan.seeds)
        ]
        print_note(f"{len(jobs)} runs of {plan.steps:,} steps, {count} at a time")
        result = verdict.result_of(plan, arms, sets, runs.all_runs(jobs, workers))
        result["sentences"] = words.headlines(result)
        write_json(output / RESULT_FILE, result)
    return result


def discard(output: Path) -> None:
    """Remove what an earlier ablation has left, and no other files."""
    for name in (RESULT_FILE, plans.PLAN_FILE, CONFIG_FILE):
        (output / name).unlink(missing_ok=True)
    shutil.rmtree(output / plans.RUNS_FOLDER, ignore_errors=True)


def make_plan(
    settings: AblateSettings, arms: list[Arm], output: Path, workers: runs.Workers, count: int, device: str
) -> plans.AblationPlan:
    """The plan: the model's shape and steps that fit --minutes, by runs of some seconds on all processes at once.

    Raises Gpt2UsageError for too little time.
    """
    seeds = list(range(settings.seed, settings.seed + settings.seeds))
    shape = plans.SHAPES[0]
    if settings.layers is not None and settings.hidden is not None and settings.heads is not None:
        shape = (settings.layers, settings.hidden, settings.heads)
    if settings.steps is not None:
        return plans.AblationPlan({}, plans.recipe_of(settings, shape, device), settings.steps, 0, seeds)
    rounds = plans.rounds_of(len(arms), settings.seeds, count)
    seconds = (60 * settings.minutes - 2 * 60 * CALIBRATION_MINUTES) / rounds
    while True:
        recipe = plans.recipe_of(settings, shape, device)
        step, scoring, vocabulary = calibrated(recipe, arms, output, workers, count)
        steps = plans.steps_in(seconds, step, scoring)
        if settings.layers is not None or shape != plans.SHAPES[0]:
            break
        tokens = settings.global_batch_size * settings.sequence_length
        flops = {
            each: ModelConfig(*each, settings.sequence_length, vocabulary).flops_per_token for each in plans.SHAPES
        }  # fmt: skip
        chosen = plans.shape_for(steps, tokens, flops)
        if chosen == shape:
            break
        shape = chosen
    if steps < plans.FEWEST_STEPS:
        needed = (plans.steps_in(0, step, scoring) - plans.FEWEST_STEPS) * -step * rounds / 60 + 2 * CALIBRATION_MINUTES
        raise Gpt2UsageError(
            f"--minutes {settings.minutes:g} leaves each run {max(0, steps)} steps of {step:.2g} s, in which nothing "
            f"is learned: give --minutes {int(needed) + 1}, fewer --seeds, or a smaller model."
        )
    return plans.AblationPlan({}, recipe, steps, max(1, int(plans.SAVE_SECONDS / step)), seeds)


def calibrated(
    recipe: dict[str, Any], arms: list[Arm], output: Path, workers: runs.Workers, count: int
) -> tuple[float, float, int]:
    """Seconds of a step and of scoring all sets with `count` runs at a time, and the size of the vocabulary."""
    print_note(f"timing the steps of {recipe['layers']} layers of width {recipe['hidden']}")
    folder = output / plans.RUNS_FOLDER / "calibration"
    shutil.rmtree(folder, ignore_errors=True)
    jobs = [
        runs.TrainingJob(
            "calibration",
            TrainSettings(
                **recipe, data=(arms[0].prefix,), output=str(folder / str(number)), minutes=CALIBRATION_MINUTES,
                log_every=5,
            ),
        )
        for number in range(count)
    ]  # fmt: skip
    steps, scorings = [], []
    for job, found in workers.carry_out(jobs):
        rows = list(read_records(Path(job.settings.output) / METRICS_FILE))
        speeds = sorted(row["tokens_per_second"] for row in rows if "tokens_per_second" in row)
        tokens = job.settings.global_batch_size * job.settings.sequence_length
        steps.append(tokens / speeds[len(speeds) // 2])
        scorings.append(found["scoring_seconds"])
    vocabulary = read_info(find_checkpoint(folder / "0")).config.vocabulary_size
    shutil.rmtree(folder)
    return max(steps), max(scorings), vocabulary
