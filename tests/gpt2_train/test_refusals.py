"""What a command line of `gpt2` is refused for: one sentence, exit code 2, and nothing written.

What takes more than words, a damaged file or a run in another state, is refused where it is tested.
"""

import json
import math
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from tests.gpt2_train.small_models import END, byte_tokenizer

from gpt2_train.cli import main
from indexed_tokens import IndexedTokensWriter, save_corpus_tokenizer

SMALL = "--layers 1 --hidden 16 --heads 2 --sequence-length 16 --vocabulary-size 257 --device cpu --threads 1"
REFUSED: dict[str, list[tuple[str, str]]] = {
    "train": [
        ("", "no --data"),
        ("--data x", "no --output"),
        ("--distributed-timeout 0", "--distributed-timeout is 0.0: it should be above 0"),
        ("--config size.toml", "micro_batch_size should be a whole number, or auto, not 'large'"),
        ("--micro-batch-size some", "invalid int or auto value"),
        ("--log-to trackio", "--log-to trackio is gone: send to wandb or tensorboard."),
        ("--log-to tensorbord", "did you mean tensorboard? choose from tensorboard, wandb)"),
        ("--config sink.toml --data x --output new", "no such sink; did you mean tensorboard? known are"),
        ("--stepz 3", "did you mean --steps?"),
        ("--step 3", "did you mean --steps?"),  # the beginning of a flag is none
    ],
    f"train --data text --output new {SMALL}": [
        ("--micro-batch-size 0", "--micro-batch-size is 0: it should be at"),
        ("--global-batch-size 8 --micro-batch-size 3", "is not a multiple of --micro-batch-size 3"),
        ("--batch-tokens 70", "--batch-tokens 70 is no multiple of --sequence-length 16"),
        ("--steps 5 --epochs 1", "length is given twice"),
        *((f"--minutes 1 --{n} 1", "give one of --steps, --epochs, --tokens and --minutes.")
          for n in ("steps", "epochs", "tokens")),
        *((f"--minutes={minutes}", "--minutes") for minutes in (0, math.inf, math.nan)),
        ("--model 124M", "--model already sets"),
        ("--split 0,1,1", "--split"),
        ("--warmup -1", "--warmup"),
        ("--device cuda", "no GPU"),
        ("--min-lr 1", "is above --lr"),
        ("--clip inf", "--clip is inf: it should be at least 0 and finite"),
        ("--threads 0", "--threads is 0: it should be at least 1 and at most 1,024"),
        ("--threads 99999999", "--threads is 99999999: it should be at least 1 and at most 1,024"),
        ("--compile model", "--compile: invalid choice: 'model'"),
        ("--data-parallel 4 --data-parallel-replicate 3", "--data-parallel-replicate 3 does not divide the 4"),
        ("--sample-prompts x", "--sample-prompts is gone: give each text by --sample-prompt, or the file to"),
        ("--sample-temperature 0.5", "--sample-temperature is a setting of samples, and there are none"),
        ("--sample-every -1", "--sample-every is -1"),
        ("--sample-prompt é --vocabulary-size 150", "'é' has the token id 195, but the model's vocabulary has 150 ids"),
        ("--eval-task-every 5", "no --eval-task"),
        ("--eval-task squad:x", "no task 'squad'; known are"),
        ("--eval-task lambada", "names no file: write lambada:FILE"),
        ("--eval-task lambada:nowhere.jsonl", "can't read nowhere.jsonl"),
        ("--eval-task lambada:bad.jsonl", "bad.jsonl, line 2: no text"),
        ("--eval-task lambada,overlap=3:x", "unknown setting overlap"),
        ("--eval-task wikitext,overlap=many:x", "overlap should be a whole number, not 'many'"),
        ("--eval-task wikitext,overlap=-3:x", "overlap is -3: it should be at least 0"),
        ("--eval-task held-out-loss:nowhere", "nowhere"),
    ],
    "generate --checkpoint run --prompt x": [
        ("--tokens 0", "--tokens is 0: it should be at least 1"),
        ("--samples 0", "--samples is 0"),
        ("--top-k -1", "--top-k is -1"),
        ("--top-p 0", "--top-p is 0.0: it should be above 0 and at most 1"),
        ("--temperature -1", "--temperature is -1.0"),
        ("--temperature nan", "--temperature is nan"),
        ("--batch-size 0", "--batch-size is 0"),
        ("--seed -1", "--seed is -1"),
        ("--stop ''", "an empty --stop"),
        ("--logprobs -1", "--logprobs is -1"),
        ("--logprobs 1", "add --json"),
        ("--greedy --top-k 5", "leave out --temperature, --top-k and --top-p"),
        ("--greedy --samples 2", "would all be the same"),
        ("--prompts /nonexistent/x", "can't read the prompts /nonexistent/x"),
        ("--device cuda", "--device cuda"),
    ],
    "estimate": [
        ("--tokens 5 --steps 5", "given twice"),
        ("--price 2", "--price"),
        ("--layers 2", "--hidden and --heads missing"),
        ("--data-parallel-replicate 0", "--data-parallel-replicate is 0: it should be at least 1"),
    ],
    "estimate --model 345M": [
        ("--tensor-parallel 3", "--tensor-parallel 3 does not divide the model's heads (16)"),
        ("--tensor-parallel 0", "--tensor-parallel is 0: it should be at least 1"),
        ("--memory -1", "--memory is -1.0: it should be above 0"),
        ("--tflops nan", "--tflops is nan"),
        ("--tflops 50", "--tflops says how long a number of tokens takes: give --tokens or --steps, too"),
        ("--global-batch-size 7 --data-parallel 2", "--global-batch-size 7 can't be shared among 2"),
        ("--sequence-length 0", "sequence_length is 0"),
    ],
    "plot": [
        ("", "needs a RUN"),
        ("none", "holds no metrics.jsonl"),
        ("empty", "holds no metrics.jsonl"),
        ("early", "holds no measurement yet"),
    ],
    "convert": [
        ("run", "needs FROM and TO"),
        ("absent new", "no checkpoint absent"),
        ("empty new", "holds no checkpoint, nor a model of another format"),
        ("run new --to checkpoint", "--to checkpoint is gone: a checkpoint is a Hugging Face folder"),
        ("run new --to megatron", "--to megatron is gone: Megatron-LM's formats are read only"),
        ("run new --tensor-parallel 2", "--tensor-parallel is gone: Megatron-LM's formats are read only"),
        ("x.gguf new", "written only"),
        ("run m.gguf --card", "can hold no model card"),
        ("run x.bin", "x.bin is named as a file, and hf is a folder"),
    ],
    "": [
        ("evaluate lambda", "there is no task lambda (did you mean lambada?)"),
        ("trian", "there is no command trian (did you mean train?)"),
        ("checkpoint verify", "error:"),
        ("checkpoint verify nothing", "nothing"),
        ("checkpoint verify empty", "holds no checkpoint"),
        ("checkpoint diff a b", "error:"),
        ("serve --checkpoint run --tensor-parallel 2", "has the model in one process: leave out --tensor-parallel."),
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, run_folder: Path) -> Path:
    """A folder with what the command lines name."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "run").symlink_to(run_folder)
    with IndexedTokensWriter(folder / "text") as writer:
        for number in range(40):
            writer.add([*f"In the beginning was line {number} of a text. ".encode(), END])
    save_corpus_tokenizer(folder / "text", byte_tokenizer())
    (folder / "bad.jsonl").write_text('{"text": "fine enough"}\n{"txt": "x"}\n')
    (folder / "size.toml").write_text('[train]\nmicro_batch_size = "large"\n')
    (folder / "sink.toml").write_text('log_to = "tensorbord"')
    (folder / "x.gguf").write_bytes(b"GGUF....")
    rows = {"early": '{"step"', "bare": json.dumps({"step": 1, "tokens": 9, "valid_loss": 2.0, "valid_tokens": 5})}
    for name in ("empty", "folder.html", *rows):
        (folder / name).mkdir()
        if name in rows:
            (folder / name / "metrics.jsonl").write_text(f"{rows[name]}\n")
    return folder


@pytest.mark.parametrize(
    ("words", "sentence"), [(f"{base} {rest}", said) for base, rows in REFUSED.items() for rest, said in rows]
)
def test_what_cannot_be_is_said_in_a_sentence(
    words: str, sentence: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if "cuda" in words and torch.cuda.is_available():
        words, sentence = words.replace("cuda", "mps"), sentence.replace("cuda", "mps").replace("no GPU", "no Apple")
    monkeypatch.chdir(place)
    shutil.rmtree("new", ignore_errors=True)
    before = set(place.iterdir())
    try:
        status = main(shlex.split(words))
    except SystemExit as end:  # by the parser of flags, which shows them, too
        status = end.code  # type: ignore[assignment]
    out, err = capsys.readouterr()
    assert (status, out, err.count("error: "), "Traceback" in err) == (2, "", 1, False), err
    assert sentence in err
    assert set(place.iterdir()) - before <= {place / "new"}
    assert [path.name for path in place.glob("new/*")] in ([], ["cache"])
