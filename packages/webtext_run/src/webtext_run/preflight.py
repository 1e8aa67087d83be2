"""Checks of a pipeline before its first command runs: paths, earlier outputs, model, disk and memory.

The commands find the same mistakes themselves, but the last one might after days. What an earlier step makes is not
looked for: of that, only what follows from the settings is known, such as the size of a vocabulary.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from command_kit import UsageError, hide_credentials
from command_kit.command import in_words, sentence_for
from command_kit.machine import Machine
from indexed_tokens import GPT2_VOCABULARY_SIZE, IndexedTokens, Tokenizer, corpus_tokenizer
from indexed_tokens.suffix_index import SuffixIndex, index_folder
from webtext_prep import storage
from webtext_prep.documents.folders.url_lists import read_urls
from webtext_prep.errors import InputError
from webtext_prep.running.estimates import Estimate, Needs, readable
from webtext_prep.running.job import Job
from webtext_prep.running.settings import RunSettings, make_engine
from webtext_prep.running.stage import Stage
from webtext_run.steps import Step, words_of

if TYPE_CHECKING:
    from gpt2_train.config.settings import ModelConfig, TrainSettings
    from webtext_prep.crawl.http.connections import PrivateAddresses


@dataclass
class Checked:
    """The findings.

    Attributes:
        facts: lines on what the steps will need.
        problems: a sentence for each, in the order of the steps.
    """

    facts: list[str] = dataclasses.field(default_factory=list)
    problems: list[str] = dataclasses.field(default_factory=list)


def check(steps: Sequence[Step], path: Path, folder: Path, gpus: int | None = None) -> Checked:
    """Check the steps of the pipeline in `path`, which writes to `folder`, on a machine with `gpus` GPUs.

    Names, files and addresses come first. Where one of them is wrong, the seconds in which torch is loaded (which
    counts the GPUs, where `gpus` does not say) are not spent, and nothing is estimated from what is not there.
    """
    train = next((step for step in steps if step.name == "train"), None)
    found = Checked(problems=_problems(steps, path, lambda step: check_files(step, steps)))
    if not found.problems:
        found.problems = _problems(steps, path, lambda step: check_addresses(step, steps[0]))
    if found.problems:
        return found
    gpus = count_gpus([step.name for step in steps]) if gpus is None else gpus

    def check_models(step: Step) -> None:
        if step is train:
            found.facts.append(check_training(step, vocabulary_size(steps, step), gpus))
        elif step.program == "gpt2_train":
            check_use_of_model(step, train, str(folder / "model"))

    found.problems = _problems(steps, path, check_models)
    lines, too_much = needs(steps, folder)
    found.facts = lines + found.facts
    found.problems += too_much
    return found


def _problems(steps: Sequence[Step], path: Path, check_step: Callable[[Step], object]) -> list[str]:
    """A sentence for each step that a check refuses."""
    problems = []
    for step in steps:
        try:
            check_step(step)
        except (UsageError, OSError) as error:
            where, sentence = f"{path} [{step.name}]", in_words(sentence_for(error), words_of(step))
            problems.append(sentence if where in sentence else f"{where}: {sentence}")
    return problems


# Names, files and addresses


def check_files(step: Step, steps: Sequence[Step]) -> None:
    """Raise UsageError, without torch, for what of a step is not there, or can't be whatever the machine."""
    if step.stage is not None:
        check_stage(step, [other.output for other in steps])
    elif step.name == "train":
        from gpt2_train.config.layout import check_tensor_parallel
        from gpt2_train.training.command import check_observed

        settings: TrainSettings = step.settings
        check_observed(settings)
        for _, prefix in settings.corpora():
            check_token_files(prefix, step)
        if settings.init_from is None:  # else the model's own shape decides, once it is read
            config = settings.model_config(vocabulary_size(steps, step))
            check_tensor_parallel(config, settings.tensor_parallel)
    elif step.program == "gpt2_train":
        check_texts(step, next((other for other in steps if other.name == "train"), None))


def check_stage(step: Step, made: Collection[str] = ()) -> None:
    """Raise UsageError for an input or file that is not there, or an output that the stage would refuse.

    Files that are `made` by a step need not be there yet.
    """
    if step.stage is None:
        return
    awaited = bool(step.tokenizer)
    for place in [] if awaited else step.stage.setting_files():
        if str(place) not in made and not storage.is_file(place) and not storage.is_folder(place):
            raise InputError(f"no file {place}, which a setting names: check the path.")
    step.stage.identity()
    theirs = tuple(path for path in step.settings.input if path not in step.made)
    if "-" in theirs and not step.stage.reads.has_standard_input:
        raise InputError("it does not read standard input: give a file or folder.")
    job = make_job(step, step.stage, theirs)
    if theirs and "-" not in theirs and not job.inputs:
        raise InputError(f"nothing to read in {', '.join(theirs)}: it takes {step.stage.reads.kinds}.")
    job.check_output()


def check_addresses(step: Step, first: Step) -> None:
    """Raise UsageError where a download refuses each address of the lists that `first` reads."""
    if step.name != "download" or first.stage is None or first.name not in ("blacklist", "download") or first.made:
        return
    private: PrivateAddresses = getattr(step.stage, "private_addresses", "all")
    lists = make_job(first, first.stage, first.settings.input).inputs
    urls = (row.url for row in itertools.chain.from_iterable(map(read_urls, lists)))
    one = next(urls, None)
    if one is not None and all(_is_refused(url, private) for url in itertools.chain([one], urls)):
        raise UsageError(
            f"all addresses of {', '.join(first.settings.input)} are private, such as {hide_credentials(one)}; "
            "if they are meant, give --allow-private-addresses=loopback (of this machine) or "
            "--allow-private-addresses=all (any)."
        )


def _is_refused(url: str, private: PrivateAddresses) -> bool:
    """Whether a URL's host is a private address; a name, which would have to be looked up, is none."""
    from webtext_prep.crawl.http.connections import BlockedAddressError, check_host

    try:
        host = urlsplit(url).hostname or ""
        check_host("127.0.0.1" if host == "localhost" else host, private=private)
    except BlockedAddressError:
        return True
    except ValueError:
        return False
    return False


def make_job(step: Step, stage: Stage, inputs: Sequence[str]) -> Job:
    """The job of one step with such inputs. Raises UsageError as `Job` and `make_engine` do."""
    settings: RunSettings = step.settings
    engine = make_engine(settings.engine, settings.workers, step.engine_settings, where="the settings")
    return Job(stage, dataclasses.replace(settings, input=tuple(inputs)), engine, restart=step.restart)


def needs(steps: Sequence[Step], folder: Path) -> tuple[list[str], list[str]]:
    """Lines on the disk and memory that the stages will need, and a sentence for each that will not fit.

    Each is estimated from its input, as far as that, or the input of a stage before it, is there.
    """
    lines, problems = [], []
    before: Needs | None = None
    beside: Needs | None = None  # what the documents of pages that are rescued join
    outputs = missing = 0
    for step in steps:
        if step.stage is None:
            continue
        found = _estimate(step.stage, step, before)
        if found is None:
            before = None
            continue
        if step.stage.writes.made == "pages":
            beside, before = before, found.needs
        elif step.stage.writes.made in ("documents", "tokens"):
            before, beside = found.needs if beside is None else found.needs.beside(beside), None
        outputs += found.needs.output
        missing += sum(max(0, place.needed - place.written) for place in found.places)
        lines += [found.sentence(), *(f"{found.stage}: {sentence}" for sentence in found.needs.others)]
        if step.settings.space_check and (problem := found.problem()):
            problems.append(in_words(problem, words_of(step)))
    disk = Machine().disk_of(folder)
    if outputs:
        lines.append(f"all outputs together: about {readable(outputs)}")
    is_checked = all(step.settings.space_check for step in steps if step.stage is not None)
    if is_checked and not problems and disk is not None and missing > disk.free:
        problems.append(
            f"all stages together need about {readable(missing)} of disk, and {readable(disk.free)} are free for "
            f"{folder}: free some space, choose a larger disk with --folder, or set space_check = false to try it "
            "all the same."
        )
    return lines, problems


def _estimate(stage: Stage, step: Step, before: Needs | None) -> Estimate | None:
    """The estimate of one stage: from its input, or if that is not there yet from the output of the step before it."""
    if step.tokenizer and not (Path(step.tokenizer) / "tokenizer.json").is_file():
        stage = dataclasses.replace(stage, tokenizer=None)  # type: ignore[call-arg]
    try:
        job = make_job(step, stage, step.settings.input)
        return job.estimate(job.sample())
    except (UsageError, OSError):
        if before is None:
            return None
    try:
        return make_job(step, stage, ()).estimate(before.as_input())
    except (UsageError, OSError):
        return None  # said by `check_stage`


# Training and what follows it


def vocabulary_size(steps: Sequence[Step], train: Step) -> int:
    """The size of the tokenizer with which `train` will learn, as far as it is known. Raises UsageError."""
    settings = train.settings
    if settings.tokenizer is not None:
        return Tokenizer.from_path(settings.tokenizer).vocabulary_size
    theirs = [prefix for _, prefix in settings.corpora() if prefix not in train.made]
    if theirs:
        beside = corpus_tokenizer(theirs[0])
        return beside.vocabulary_size if beside is not None else GPT2_VOCABULARY_SIZE
    encode = next((step for step in reversed(steps) if step.stage is not None and step.name == "tokenize"), None)
    if encode is None or encode.stage is None:
        return GPT2_VOCABULARY_SIZE
    if encode.tokenizer and not (Path(encode.tokenizer) / "tokenizer.json").is_file():
        maker = next(step for step in steps if step.output == encode.tokenizer)
        return int(getattr(maker.stage, "vocabulary_size", GPT2_VOCABULARY_SIZE))
    opener = getattr(encode.stage, "open_tokenizer", None)
    return opener().vocabulary_size if opener is not None else GPT2_VOCABULARY_SIZE


def check_training(step: Step, vocabulary: int, gpus: int) -> str:
    """Check model, batch, layout and the folder of the run; return a line on its size.

    Raises UsageError.
    """
    from gpt2_train.config.layout import check_layout, check_tensor_parallel, plan_batches
    from gpt2_train.training.memory import fitting_micro_batch, layout_of, memory_per_rank, size_line

    settings: TrainSettings = step.settings
    if settings.device == "cuda" and not gpus:
        raise UsageError("device is cuda, and torch sees no GPU here: set device to auto or cpu.")
    gpus = 0 if settings.device in ("cpu", "mps") else gpus
    data_parallel = check_layout(settings, gpus)
    if settings.vocabulary_size is not None and settings.vocabulary_size < vocabulary:
        raise UsageError(
            f"vocabulary_size is {settings.vocabulary_size:,}, and the tokenizer has {vocabulary:,} tokens: leave the "
            "setting out."
        )
    config = model_config(settings, vocabulary)
    check_tensor_parallel(config, settings.tensor_parallel)
    if not step.restart:
        check_run_folder(settings, config)
    precision = settings.precision or ("bf16" if gpus else "fp32")
    layout = layout_of(settings, data_parallel, settings.tensor_parallel, precision, compiled=gpus > 0)
    asked = settings.micro_batch_size
    if asked == "auto" and gpus and (room := gpu_room()) is not None:
        asked = fitting_micro_batch(config, settings.global_batch_size // data_parallel, room, **layout)
    micro, accumulation = plan_batches(
        settings.global_batch_size,
        asked,
        data_parallel,
        on_cpu=gpus == 0,
        sequence_length=config.sequence_length,
    )
    memory = memory_per_rank(
        config,
        micro_batch=micro,
        accumulation=accumulation,
        on_cpu=gpus == 0,
        **layout,
        stages_checkpoints=settings.save and settings.async_checkpoint and bool(settings.save_every),
    )
    processes = f"data parallel {data_parallel}, tensor parallel {settings.tensor_parallel}"
    return f"{size_line(config, memory)}; {config.vocabulary_size:,} token ids; {processes}"


def model_config(settings: TrainSettings, vocabulary: int) -> ModelConfig:
    """The shape of the model: as the settings say, or that of the one it begins with. Raises UsageError."""
    if settings.init_from is None:
        return settings.model_config(vocabulary)
    from gpt2_train.training.setup import open_first_weights

    first = open_first_weights(settings, None)
    if first is None:
        return settings.model_config(vocabulary)
    if first.config.vocabulary_size != vocabulary:
        raise UsageError(
            f"{settings.init_from} knows {first.config.vocabulary_size:,} token ids, the data's tokenizer has "
            f"{vocabulary:,}: tokenize the texts with the model's own tokenizer."
        )
    return dataclasses.replace(first.config, dropout=settings.dropout)


def check_token_files(prefix: str, step: Step) -> None:
    """Raise UsageError where token files that no earlier step makes are not there, or damaged."""
    if prefix in step.made:
        return
    if not Path(f"{prefix}.idx").is_file():
        raise UsageError(f"no token files {prefix}.bin and .idx, and no [tokenize] before it makes them.")
    IndexedTokens(prefix)


def check_run_folder(settings: TrainSettings, config: ModelConfig) -> None:
    """Raise UsageError, naming what differs, where the run's folder holds a run with other settings."""
    from gpt2_train.checkpoint.info import latest_checkpoint, read_info
    from gpt2_train.config.files import CHECKPOINTS_FOLDER
    from gpt2_train.training.run_folder import check_same_settings, identity_settings

    output = Path(settings.output)
    if output.exists() and not output.is_dir():
        raise UsageError(f"--output {output} is a file: give a folder.")
    latest = latest_checkpoint(output / CHECKPOINTS_FOLDER)
    if latest is None or settings.init_from is not None:  # what it began with, its checkpoint alone can tell
        return
    info = read_info(latest)
    precision = settings.precision or info.settings.get("precision", "fp32")
    check_same_settings(info, output, config, identity_settings(settings, precision))


def check_use_of_model(step: Step, train: Step | None, own_model: str) -> None:
    """Raise UsageError where `[evaluate]` or `[generate]` lacks a model.

    `own_model` is where the pipeline's own model would be: never the name of one on Hugging Face's hub.
    """
    settings = step.settings
    if settings.checkpoint not in step.made:
        from gpt2_train.conversion.hub import hub_name
        from gpt2_train.inference.model import open_model

        may_be_fetched = settings.checkpoint != own_model and hub_name(settings.checkpoint) is not None
        if not Path(settings.checkpoint).exists() and train is None and not may_be_fetched:
            raise UsageError(f"no model {settings.checkpoint}, and no [train] before it makes one.")
        open_model(settings.checkpoint, device="cpu", tokenizer=settings.tokenizer)
    elif settings.tokenizer is not None:
        Tokenizer.from_path(settings.tokenizer)


def check_texts(step: Step, train: Step | None) -> None:
    """Raise UsageError where `[evaluate]` or `[generate]` lacks files, token files or prompts, or a split is empty."""
    settings = step.settings
    owners = [settings] if step.task is None else [settings, step.task]
    for entry, file in [(entry, getattr(own, entry.name)) for own in owners for entry in dataclasses.fields(own)]:
        if file and entry.metadata.get("metavar") == "FILE" and not Path(file).is_file():
            raise UsageError(f"{entry.name} is {file}, and there is no such file: check the path.")
    if step.name == "generate":
        _check_prompts(settings)
        for prefix in settings.trace:
            if str(index_folder(prefix)) not in step.made:
                SuffixIndex(prefix)
    elif step.is_held_out_loss:
        task: Any = step.task
        check_token_files(task.data, step)
        _check_split(task, train)


def _check_prompts(settings: Any) -> None:
    from gpt2_train.inference.prompts import prompts_of_file

    if settings.prompts is not None:
        prompts_of_file(settings.prompts)
    elif not settings.prompt:
        raise UsageError("no prompt: a pipeline asks nobody, so set prompt or prompts.")


def _check_split(task: Any, train: Step | None) -> None:
    """An empty split of the pipeline's own token files, as far as it shows in the shares."""
    from gpt2_train.config.settings import parse_split
    from gpt2_train.data.corpus import SPLITS

    if train is None or task.data not in train.settings.data:
        return
    split = task.split or "valid"
    shares = task.split_weights or train.settings.split
    if split in SPLITS and not parse_split(shares)[SPLITS.index(split)]:
        raise UsageError(f"the split {split} is empty: the shares of train, valid and test are {shares}.")


def count_gpus(names: Sequence[str]) -> int:
    """The GPUs of this machine, if the pipeline trains: asking takes the seconds in which torch is loaded."""
    if "train" not in names:
        return 0
    from gpt2_train.config.loading import load_torch

    load_torch("estimating what the training takes")
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def gpu_room() -> float | None:
    """Bytes that a process of a run can have on the smallest GPU of this machine; None if torch sees none."""
    import torch

    from gpt2_train.training.estimate import RESERVE

    if not torch.cuda.is_available():
        return None
    sizes = [torch.cuda.get_device_properties(number).total_memory for number in range(torch.cuda.device_count())]
    return min(sizes) - RESERVE
