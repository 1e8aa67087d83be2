"""`gpt2 seen`: the steps in which documents were read, against reading every sample."""

import json

import numpy as np
import pytest
from tests.gpt2_train.conftest import write_corpus

from gpt2_train.cli import main
from gpt2_train.data import streams as blending_module
from gpt2_train.data.corpus import Corpus
from gpt2_train.data.index import IndexCache
from gpt2_train.data.streams import Blend, Stream


def stream_of(corpus: str, cache: IndexCache, length: int = 16, seed: int = 5) -> Stream:
    return Stream(Corpus(corpus, (1, 0, 0)), "train", length, seed, cache)


def samples_read(stream: Stream, sequence: int, count: int) -> list[int]:
    """The definition: each sample's pieces are looked at."""
    found = []
    for number in range(count):
        stream.prepare(number, number)
        if any(piece == sequence and length for piece, _, length in stream.pieces(number)):
            found.append(number)
    return found


@pytest.mark.parametrize("length", [4, 16, 200, 5000])
def test_a_stream_names_the_samples_that_hold_a_sequence(corpus, tmp_path, length):
    stream = stream_of(corpus, IndexCache(tmp_path), length)
    count = 2 * stream.per_epoch + 3
    for sequence in (0, 17, 59):
        assert stream.samples_with(np.array([sequence]), count).tolist() == samples_read(stream, sequence, count)


def test_a_blend_names_its_own_samples(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(blending_module, "BLEND_BLOCK", 16)
    other = write_corpus(tmp_path / "other", 20, seed=3)
    cache = IndexCache(tmp_path / "cache")
    blend = Blend([stream_of(corpus, cache), stream_of(other, cache)], [0.3, 0.7], cache)
    count = 150
    places = blend.locate(0, count)
    for number, stream in enumerate(blend.streams):
        for sequence in (0, 7):
            own = set(samples_read(stream, sequence, count))
            wanted = [at for at, (pick, sample) in enumerate(places) if pick == number and sample in own]
            assert blend.samples_with(number, np.array([sequence]), count).tolist() == wanted


def test_the_command_names_steps_and_checkpoints(gpt2, corpus, tmp_path, capsys):
    flags = ("--steps", 4, "--global-batch-size", 2, "--save-every", 2, "--keep-checkpoints", 0)
    assert gpt2(tmp_path / "run", *flags) == 0
    capsys.readouterr()
    assert main(["seen", "--run", str(tmp_path / "run"), "--documents", "0", "59", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    stream = Stream(Corpus(corpus, (8, 1, 1)), "train", 16, 1234, IndexCache(tmp_path / "again"))
    steps = sorted({sample // 2 + 1 for sample in samples_read(stream, 0, 8)})
    assert (found["steps"], found["documents"][0]) == (4, {"document": 0, "split": "train", "steps": steps})
    assert found["documents"][1] == {"document": 59, "split": "test", "steps": []}
    assert [entry["step"] for entry in found["checkpoints"]] == [2, 4]
    assert [entry["has_seen"] for entry in found["checkpoints"]] == [
        sum(step <= last for step in steps[:1]) for last in (2, 4)
    ]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--documents", "3"], "--run is missing"),
        (["--run", "RUN"], "no --documents"),
        (["--run", "RUN", "--documents", "999"], "has 60 documents, and none 999"),
        (["--run", "RUN", "--documents", "0", "--data", "elsewhere"], "the run was not trained on elsewhere"),
    ],
)
def test_what_is_missing_is_said(gpt2, tmp_path, capsys, flags, message):
    if "RUN" in flags:
        assert gpt2(tmp_path / "run", "--steps", 1) == 0
    capsys.readouterr()
    assert main(["seen", *(str(tmp_path / "run") if flag == "RUN" else flag for flag in flags)]) == 2
    assert message in capsys.readouterr().err
