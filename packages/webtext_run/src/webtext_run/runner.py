"""Running the steps of a pipeline one after another, and the summary at the end."""

from __future__ import annotations

import contextlib
import functools
import gzip
import json
import math
import multiprocessing
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import zstandard

from command_kit import CommandError, duration, read_json, write_json
from command_kit.colours import BOLD, GREEN, PLAIN, Paint, aligned
from command_kit.command import print_note
from indexed_tokens import Tokenizer, corpus_tokenizer
from webtext_run import step_process
from webtext_run.steps import NAME, PREFIX, PROGRAMS, RUN, SAMPLES, Step, shown_command, words_of

SUMMARIES = "pipeline.json"
SHOWN_PASSAGES = 3
"""The most passages of a text that are shown of those that stand in the corpus."""
COMPRESSED_TOKENS = 4_000_000
"""Tokens of the text that are compressed at most, some 15 MB: both take seconds for them, and more gains little."""


def run_steps(steps: Sequence[Step], path: Path, folder: Path, debug: bool = False) -> None:
    """Run them in order; an evaluation that has nothing to measure is left out, which is said before the training.

    With `debug` the steps show the tracebacks of errors.
    """
    train = next((step for step in steps if step.name == "train"), None)
    left_out: dict[str, str] = {}
    for step in steps:
        if step is train:
            left_out = {other.name: reason for other in steps if (reason := nothing_held_out(other, train))}
            for reason in left_out.values():
                print(f"\n{NAME}: {reason}", file=sys.stderr, flush=True)
        if step.name not in left_out:
            run_step(step, path, folder, debug)


def run_step(step: Step, path: Path, folder: Path, debug: bool = False) -> None:
    """Run one command; its JSON summary is kept in `step.summary`.

    Raises CommandError if it fails, KeyboardInterrupt where Ctrl-C or SIGTERM stops it.
    """
    told = Paint.of(sys.stderr)(f"$ {shlex.join(shown_command(step, path))}", BOLD)
    print(f"\n{told}", file=sys.stderr, flush=True)
    if step.restart and step.name == "train":
        discard_run(step)
    code, output = in_process(work_of(step, debug=debug), words_of(step))
    if code:
        again = "the same command again" + (", without --restart" if step.restart else "")
        failure = CommandError(
            f"the step [{step.name}] (`{PROGRAMS[step.program]} {step.name}`) ended with exit code {code}: fix what it "
            f"says above, then run {again}; it resumes from there."
        )
        failure.exit_code = code if code > 0 else 1
        raise failure
    with contextlib.suppress(ValueError, IndexError):
        step.summary = json.loads(output.decode("utf-8").splitlines()[-1])
    if step.name == "generate":
        write_json(folder / SAMPLES, step.summary)
    if step.is_held_out_loss and step.summary.get("bytes"):
        print_note("compressing the same text, to compare")
        is_whole = getattr(step.task, "max_tokens", None) is None
        step.summary["compressed"] = compressed(step.summary) if is_whole else {}
    write_json(folder / SUMMARIES, {**(read_json(folder / SUMMARIES) or {}), step.name: step.summary})


def work_of(step: Step, *, debug: bool) -> Callable[[], int]:
    """The work of a step's process, which returns the exit code and prints a summary."""
    if step.program == "gpt2_train":
        settings = [kind for kind in (step.settings, step.task) if kind is not None]
        return functools.partial(step_process.run_model_command, step.name, *settings, debug=debug)
    if step.stage is None:
        return functools.partial(step_process.run_look, step.settings, debug=debug)
    return functools.partial(
        step_process.run_stage, step.stage, step.settings, step.engine_settings, restart=step.restart, debug=debug
    )


def in_process(work: Callable[[], int], flags: dict[str, str]) -> tuple[int, bytes]:
    """Do `work` in a process of its own, which calls flags as `flags` has them; its exit code, and what it prints.

    Raises KeyboardInterrupt where Ctrl-C or SIGTERM stops it.
    """
    source, sink = multiprocessing.Pipe(duplex=False)
    is_stopped = False

    def stop(*_: Any) -> None:
        nonlocal is_stopped
        is_stopped = True
        process.terminate()

    with sink, source:
        command = [sys.executable, "-m", "webtext_run.step_process", str(source.fileno())]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=[source.fileno()])
        source.close()
        previous = signal.signal(signal.SIGTERM, stop)
        try:
            with contextlib.suppress(BrokenPipeError):  # it has ended before it could read
                sink.send((work, flags))
            output, _ = process.communicate()
        except KeyboardInterrupt:
            # The process got the same Ctrl-C and is putting its work in order.
            process.wait()
            raise
        finally:
            signal.signal(signal.SIGTERM, previous)
    if is_stopped:
        raise KeyboardInterrupt
    return process.returncode, output


def discard_run(step: Step) -> None:
    """Remove the run that a [train] made earlier. Raises UsageError where another is at work on it."""
    from gpt2_train.training import run_folder

    run_folder.discard_run(Path(step.output), say=lambda line: print(line, file=sys.stderr))


def compressed(found: dict[str, Any]) -> dict[str, float]:
    """Bits per byte of the text that `[evaluate]` scored when gzip and zstd compress it, by their names.

    A compressor knows nothing but the text itself: a model that needs more bits has not learned what stands in it.
    Empty for no text.
    """
    from gpt2_train.config.settings import parse_split
    from gpt2_train.data.corpus import Corpus
    from gpt2_train.evaluation.tasks.held_out_loss import split_pieces

    corpus = Corpus(found["data"], parse_split(found["split_weights"] or "1")).holding(found["split"])
    tokenizer = corpus_tokenizer(found["data"]) or Tokenizer.gpt2()
    pieces = split_pieces(corpus, found["split"], most=COMPRESSED_TOKENS)
    text = b"".join(tokenizer.decode_bytes(piece.tolist()) for piece in pieces)
    if not text:
        return {}
    sizes = {"gzip -9": len(gzip.compress(text, 9)), "zstd -19": len(zstandard.compress(text, 19))}
    return {name: 8 * size / len(text) for name, size in sizes.items()}


def nothing_held_out(step: Step, train: Step | None) -> str:
    """Why `[evaluate]` has nothing to measure in the token files that are there now, in a sentence; or nothing."""
    from gpt2_train.config.settings import parse_split
    from gpt2_train.data.corpus import Corpus

    if train is None or not step.is_held_out_loss:
        return ""
    settings: Any = step.task
    split = settings.split or "valid"
    if split == "all" or settings.data not in train.settings.data:
        return ""
    shares = settings.split_weights or train.settings.split
    corpus = Corpus(settings.data, parse_split(shares)).holding(split)
    if corpus.split_tokens(split) > 1:
        return ""
    return (
        f"[evaluate] is left out, as no document is held out for it: {settings.data} holds "
        f"{corpus.tokens.documents:,}, too few for the split {split} of {shares}; cut long texts into several files."
    )


def funnel(steps: Sequence[Step], paint: Paint) -> list[str]:
    """A line a stage: what came in, what went out, and the share of it."""
    rows = []
    for step in steps:
        read, kept, tokens = step.summary.get("in", 0), step.summary.get("out", 0), ""
        if "tokens" in step.summary:
            tokens = f"{step.summary['tokens']:,} tokens"
        if step.stage is not None and step.stage.writes.made == "tokenizer":
            tokens = f"a vocabulary of {step.summary.get('vocabulary_size', 0):,}"
        share = f"{kept / read:.1%}" if read else ""
        rows.append([paint(step.name, BOLD), f"{read:,}", "->", f"{kept:,}", paint(share, GREEN), tokens])
    return [f"  {line}" for line in aligned(rows, "<><>><")]


def closing(
    steps: Sequence[Step],
    folder: Path,
    seconds: float,
    paint: Paint = PLAIN,
    *,
    is_first_try: bool = False,
    rest: Sequence[str] = (),
) -> str:
    """The end of a run's output: funnel, bits per byte, texts and what they echo, where everything is, what to do next.

    `is_first_try`: the texts came from the site on this machine, and one's own are still to come. `rest` is the command
    that goes on to the training, before which this run was to stop.
    """
    lines = ["", "=" * 72, paint(f"Done in {duration(seconds)}.", GREEN, BOLD), ""]
    lines += funnel([step for step in steps if step.stage is not None], paint)
    for step in steps:
        if step.name == "evaluate":
            lines += ["", *losses(step.summary)]
        if step.name == "generate":
            lines += ["", paint("What the model writes:", BOLD)]
            for sample in step.summary.get("samples", ()):
                lines += ["", *(f"  | {line}" for line in (sample["prompt"] + sample["text"]).splitlines())]
                lines += echoes(sample.get("trace"))
    lines += ["", paint("Where everything is:", BOLD)]
    written = [step for step in steps if step.output and step.name not in ("evaluate", "generate")]
    places = [*([step.name, step.output] for step in written), ["summaries", str(folder / SUMMARIES)]]
    lines += [f"  {line}" for line in aligned(places, "<<")]
    report = next((step.output for step in steps if step.name == "report"), None)
    if report:
        lines += ["", paint("The report, with everything above, for a browser:", BOLD), f"  {report}"]
    if following := next_commands(steps, folder, is_first_try=is_first_try, rest=rest):
        lines += ["", paint("Next:", BOLD), *following]
    return "\n".join(lines)


def echoes(trace: dict[str, Any] | None) -> list[str]:
    """The passages of a text that stand in the corpus: its longest passages, and a document that holds each."""
    if trace is None:
        return []
    lines = [
        f"  {trace['verbatim_tokens']} of these {trace['tokens']} tokens stand in the corpus word for word, in "
        f"passages of {trace['minimum_tokens']} or more."
    ]
    longest = sorted(trace["passages"], key=lambda one: -one["tokens"])[:SHOWN_PASSAGES]
    if not longest and trace["longest"] is not None:
        lines[0] += " The longest one:"
        longest = [trace["longest"]]
    for passage in longest:
        lines.append(f"    {passage['tokens']} tokens: {' '.join(passage['text'].split())!r}")
        for source in passage["sources"][:1]:
            lines.append(f"      in {source['url'] or source['data']}, document {source['document']:,}")
    return lines


def next_commands(steps: Sequence[Step], folder: Path, *, is_first_try: bool, rest: Sequence[str] = ()) -> list[str]:
    """Commands to go on with, each with what it is for.

    With a model: other texts, with the prompt of its own [generate] if it has one, a page to try the model, one's own
    texts; without one: what the last stage made.
    """
    commands: list[tuple[Sequence[str], str]] = []
    if any(step.name == "train" for step in steps):
        model = next(step.output for step in steps if step.name == "train")
        prompts = next((step.settings.prompt for step in steps if step.name == "generate"), ())[:1]
        more = [*PREFIX, "gpt2", "generate", "--checkpoint", model, *(["--prompt", *prompts] if prompts else [])]
        last = [*PREFIX, "gpt2", "plot", model], "the losses of the training"
        if is_first_try:
            last = [*PREFIX, RUN, "own_text", "--input", "FOLDER"], "the same for your own texts"
        commands = [(more, "more text"), ([*PREFIX, "gpt2", "serve", "--checkpoint", model], "a page to try it"), last]
    elif made := [
        step.output for step in steps if step.stage is not None and step.stage.writes.made in ("documents", "tokens")
    ]:
        page = str(folder / "report.html")
        commands = [
            ([*PREFIX, "webtext", "report", made[-1], "--output", page], "what was kept and dropped, as a page")
        ]
        commands.append(([*PREFIX, "webtext", "inspect", made[-1]], "what it holds, with samples"))
        commands += [(rest, "the rest: a model that learns from it")] if rest else []
    return [line for words, what in commands for line in (f"  {shlex.join(words)}", f"      {what}")]


def bits_per_byte(found: dict[str, Any]) -> list[str]:
    """Bits per byte of the model, of compressors and of a unigram model, the best first."""
    if not found.get("bits_per_byte"):
        return []
    rows = {"this model": found["bits_per_byte"], **found.get("compressed", {})}
    if "unigram_loss" in found:
        rows["unigram model"] = found["unigram_loss"] * found["tokens"] / math.log(2) / found["bytes"]
    head = f"  bits per byte of the {found['documents']:,} documents held out (fewer is better):"
    return [head, *(f"    {name:<15} {bits:.2f}" for name, bits in sorted(rows.items(), key=lambda row: row[1]))]


def losses(found: dict[str, Any]) -> list[str]:
    """The held-out loss of the model and of a unigram model of the same text, also in bits per byte."""
    if "loss" not in found:
        return []
    lines = [f"  held-out loss     {found['loss']:.3f} nats per token (perplexity {found['perplexity']:,.1f})"]
    if "unigram_loss" in found:
        lines.append(f"  unigram model     {found['unigram_loss']:.3f} nats per token, on the same text")
    return lines + bits_per_byte(found)
