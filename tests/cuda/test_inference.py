"""Evaluating, generating and serving on GPUs that are not there: captured graphs, batches, several processes."""

import http.client
import json
import re
import signal
import sys
from pathlib import Path

import pytest
from tests.cuda.gpus import Gpus, Running, faults


def captures(done) -> list[str]:
    """The notes on the graphs that were captured, of all processes."""
    return [note for asked in done.asked for note in asked.notes if note.startswith("a capture ends")]


@pytest.mark.exhaustive
def test_tokens_are_generated_by_a_captured_graph(on_gpus, checkpoint):
    """Each token is one launch of a graph, not some hundred of kernels; nothing that CUDA forbids is in a capture."""
    done = on_gpus(["generate", "--checkpoint", checkpoint, "--prompt", "The cat", "--tokens", 20, "--device", "cuda"])
    assert captures(done)
    (asked,) = done.asked
    assert sum(row[0] for name, row in asked.of("launch").items() if name.startswith("graph of")) >= 15


def test_prompts_of_a_file_are_generated_together(on_gpus, checkpoint, tmp_path):
    """Rows come and go while the graph stays the same."""
    (tmp_path / "prompts.txt").write_text("".join(f"Prompt {number}\n" * (1 + number % 2) for number in range(12)))
    flags = ["--prompts", tmp_path / "prompts.txt", "--tokens", 8, "--batch-size", 4, "--json"]
    done = on_gpus(["generate", "--checkpoint", checkpoint, "--device", "cuda", *flags])
    assert len(json.loads(done.output)["samples"]) == 18
    assert len(captures(done)) <= 4


@pytest.mark.exhaustive
@pytest.mark.parametrize("command", ["generate", "evaluate"])
def test_a_model_in_several_processes(on_gpus, checkpoint, corpus, command):
    """Tensor parallel inference: each process on its own GPU."""
    more = {
        "generate": ["--prompt", "The cat", "--tokens", 8],
        "evaluate": ["held-out-loss", corpus, "--split", "test"],
    }
    words = [command, *more[command], "--checkpoint", checkpoint, "--device", "cuda", "--tensor-parallel", 2]
    done = on_gpus(words, Gpus(2), is_fork=False)
    assert sorted(gpu for asked in done.asked for gpu in asked.contexts) == ["0", "1"]


def test_serve_answers_and_stops(checkpoint, tmp_path):
    """A server whose model is on a GPU answers over HTTP, all graphs captured before, and ends well at SIGINT."""
    words = [sys.executable, "-m", "gpt2_train", "serve", "--checkpoint", checkpoint, "--device", "cuda", "--port", 0]
    running = Running(words, Gpus(), tmp_path)
    seen = ""
    while not (address := re.search(r"http://127.0.0.1:(\d+)/", seen)):
        line = running.started.stderr.readline()
        assert line, seen
        seen += line
    connection = http.client.HTTPConnection("127.0.0.1", int(address[1]), timeout=60)
    asked = json.dumps({"prompt": "The cat", "max_tokens": 8, "temperature": 0})
    connection.request("POST", "/v1/completions", asked, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 200
    assert json.loads(answer.read())["usage"]["completion_tokens"] == 8
    connection.close()
    running.started.send_signal(signal.SIGINT)
    done = running.end()
    assert faults(done) == []
    assert len(captures(done)) == 5  # of 1, 2, 4, 8 and 16 texts


def test_a_batch_is_read_while_a_graph_is_captured(tmp_path):
    """What another thread asks of CUDA, as the one that reads and pins batches does, leaves the capture alone."""
    program = Path(__file__).with_name("read_during_capture.py")
    done = Running([sys.executable, program], Gpus(), tmp_path).end()
    assert done.code == 0, done.errors
    assert json.loads(done.output) == {"read": 1, "failures": [], "warnings": []}
    assert faults(done) == []
