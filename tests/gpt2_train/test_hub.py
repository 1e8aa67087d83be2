"""Names of Hugging Face's hub where a model may stand, against a server that speaks its protocol."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from huggingface_hub import constants
from tests.gpt2_train.small_models import random_model, save

from gpt2_train.cli import main
from gpt2_train.config.errors import Gpt2Error, Gpt2UsageError
from gpt2_train.conversion.formats import open_weights
from gpt2_train.conversion.hub import fetch, hub_name

COMMIT = "5" * 40
NAME = "openai-community/gpt2-tiny"


class Hub(http.server.ThreadingHTTPServer):
    """A hub with some models.

    Attributes:
        models: the folder of each, by name; None for one that is gated.
        asked: the paths of all requests.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.models: dict[str, Path | None] = {}
        self.asked: list[str] = []


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, *, with_body: bool) -> None:
        path = urlsplit(self.path).path.strip("/")
        self.server.asked.append(path)
        name = next((name for name in self.server.models if f"{name}/" in f"{path}/"), None)
        folder = self.server.models[name] if name else None
        rest = path.partition(f"{name}/")[2]
        if name is None:
            self.send(404, b"", with_body, {"X-Error-Code": "RepoNotFound"})
        elif path in (f"api/models/{name}", f"api/models/{name}/revision/main"):
            kind = {"model_type": "llama"} if "Llama" in name else {"model_type": "gpt2"}
            files = [{"rfilename": file.name} for file in (folder.iterdir() if folder else [])]
            files += [{"rfilename": "model.safetensors"}] if folder is None else []
            self.send_json({"id": name, "sha": COMMIT, "config": kind, "siblings": files}, with_body)
        elif folder is None:
            self.send(403, b"", with_body, {"X-Error-Code": "GatedRepo"})
        elif rest.startswith("tree/"):
            files = [file for file in folder.rglob("*") if file.is_file()]
            rows = [{"type": "file", "path": str(file.relative_to(folder)), "size": file.stat().st_size,
                     "oid": tag_of(file)} for file in files]  # fmt: skip
            self.send_json(rows, with_body)
        elif (file := folder / rest.removeprefix("resolve/").partition("/")[2]).is_file():
            headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{tag_of(file)}"'}
            self.send(200, file.read_bytes(), with_body, headers)
        else:
            self.send(404, b"", with_body, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})

    def send_json(self, content: object, with_body: bool) -> None:
        self.send(200, json.dumps(content).encode(), with_body, {"Content-Type": "application/json"})

    def send(self, status: int, body: bytes, with_body: bool, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(key, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *arguments: object) -> None: ...


def tag_of(file: Path) -> str:
    return hashlib.sha1(file.read_bytes()).hexdigest()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub, an empty cache, and an empty working folder."""
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with contextlib.closing(server.socket):
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as the hub has it: with pickles and more next to the safetensors."""
    folder = tmp_path_factory.mktemp("hub") / "model"
    run = save(folder.parent / "run", random_model())
    assert main(["convert", str(run), str(folder), "--to", "hf"]) == 0
    (folder / "pytorch_model.bin").write_bytes(b"never read")
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(b"nor this")
    return folder


def test_a_name_of_the_hub_is_fetched_wherever_a_model_may_stand(
    hub: Hub, gpt2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The documentation promised it, and each command said that there is no such model."""
    hub.models = {"gpt2": gpt2, NAME: gpt2}
    options = ["--prompt", "ab", "--tokens", "4", "--seed", "1", "--device", "cpu", "--threads", "1"]
    assert main(["generate", "--checkpoint", NAME, *options]) == 0
    fetched = capsys.readouterr()
    assert main(["generate", "--checkpoint", str(gpt2), *options]) == 0
    assert capsys.readouterr().out == fetched.out
    assert f"{NAME}: no folder here, so the model of that name at http://127.0.0.1" in fetched.err
    # What is trained on, and converted.
    assert main(["convert", "gpt2", str(tmp_path / "ours")]) == 0
    assert {open_weights(place).digest() for place in ("gpt2", NAME, gpt2)} == {
        open_weights(tmp_path / "ours").digest()
    }
    # Nothing but what a GPT-2 needs: no pickle, and nothing of other programs.
    assert not [path for path in hub.asked if path.endswith((".bin", ".onnx"))]
    assert {path.name for path in fetch(NAME).iterdir()} == {
        "config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json",
        "merges.txt", "vocab.json", "tokenizer.json",
        "tokenizer_config.json", "special_tokens_map.json",
    }  # fmt: skip


def test_a_folder_of_that_name_wins(hub: Hub, gpt2: Path) -> None:
    Path("openai-community").mkdir()
    Path(NAME).symlink_to(gpt2)
    assert open_weights(NAME).origin == Path(NAME)
    # A path with a slip in it is no name, nor is anything that names a file or begins elsewhere.
    for path in (
        f"{NAME}x",
        "frist",
        "../a/b",
        "/a/b",
        "a/b/c",
        "./gpt2",
        "~/gpt2",
        "models/gpt2.pt",
        "a/",
        "-x/b",
        "",
    ):
        assert hub_name(path) is None, path
    assert hub_name("runs/first") == "runs/first"
    with pytest.raises(Gpt2UsageError, match=f"no checkpoint {NAME}x"):
        open_weights(f"{NAME}x")
    assert hub.asked == []


def test_what_the_cache_has_needs_no_hub(hub: Hub, gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with HF_HUB_OFFLINE, which is obeyed."""
    hub.models = {NAME: gpt2}
    folder = fetch(NAME)
    hub.asked.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch(NAME) == folder
    assert hub.asked == []
    with pytest.raises(Gpt2Error, match="HF_HUB_OFFLINE is set, and the cache does not have it"):
        fetch("gpt2")


@pytest.mark.parametrize(
    ("name", "code", "sentence"),
    [
        ("nobody/nothing", 2, "no model nobody/nothing: there is no such folder here, and http"),
        ("meta-llama/Llama-3", 2, "meta-llama/Llama-3 is a model of type llama: only GPT-2 can be read."),
        ("some/gated", 2, "some/gated is open only to people who ask for access: do that at http"),
        ("some/pickle", 2, "has no safetensors, and weights of another kind are not fetched"),
    ],
)
def test_what_cant_be_had_from_the_hub_is_one_sentence(
    hub: Hub, gpt2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, code: int, sentence: str
) -> None:
    (tmp_path / "pickle").mkdir()
    (tmp_path / "pickle" / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "pickle" / "pytorch_model.bin").write_bytes(b"")
    hub.models = {"meta-llama/Llama-3": None, "some/gated": None, "some/pickle": tmp_path / "pickle"}
    assert main(["generate", "--checkpoint", name, "--prompt", "a"]) == code
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("gpt2: error: ") and sentence in said
    assert all(path.startswith("api/") or "gated" in path for path in hub.asked)  # Nothing was fetched.


def test_a_hub_that_cant_be_reached_is_one_sentence(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", "http://127.0.0.1:9/{repo_id}/{revision}/{filename}")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(Gpt2Error, match=r"gpt2 can't be fetched: http://127\.0\.0\.1:9 can't be reached"):
        fetch("gpt2")


def test_without_huggingface_hub_the_command_that_downloads_is_named(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--checkpoint gpt2` told of the output of a `gpt2 train`, and not how to get the model."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert main(["generate", "--checkpoint", "openai-community/gpt2-medium", "--prompt", "a"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and 'pip install "webtext-gpt2[hub]"' in said
    assert (
        "`hf download openai-community/gpt2-medium --local-dir gpt2-medium`, and give the folder gpt2-medium." in said
    )
    assert hub.asked == []
