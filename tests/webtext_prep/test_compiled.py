"""Machine code is kept on disk, and made again when any file changes that it comes from."""

import fcntl
import itertools
import json
import random
import shutil
import subprocess
import sys

from webtext_prep.text import compiled as module
from webtext_prep.text.compiled import PACKAGE, digest_of

INNER = "from webtext_prep.text.compiled import compiled\n@compiled\ndef inner(x):\n    return x + {}\n"
OUTER = "from webtext_prep.text.compiled import compiled\nfrom webtext_prep.inner import inner\n"
OUTER += "@compiled\ndef outer(x):\n    return inner(x)\n"


def test_one_process_compiles_the_others_load_and_a_change_in_another_file_is_noticed(tmp_path):
    """Every worker of a first run compiled the same functions for itself, 19 s each. And numba looks at a function's
    own file alone: code from the other file ran on as it was."""
    package = tmp_path / "webtext_prep"
    (package / "text").mkdir(parents=True)
    for name in ("__init__.py", "text/__init__.py", "text/compiled.py"):
        shutil.copy(PACKAGE / name, package / name)
    (package / "inner.py").write_text(INNER.format(1))
    (package / "outer.py").write_text(OUTER)
    code = "from webtext_prep.outer import outer; print(flush=True); print(outer(5), len(outer.stats.cache_hits))"
    command, pipes = [sys.executable, "-c", code], {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    folder = package / "__pycache__" / (module.PREFIX + digest_of(package))
    folder.mkdir(parents=True)
    with (folder / "compiling").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until both are about to compile
        processes = [subprocess.Popen(command, cwd=tmp_path, **pipes) for _ in range(2)]
        for process in processes:
            assert process.stdout.readline() == "\n"
    answers = [process.communicate() for process in processes]
    assert sorted(out.strip() for out, _ in answers) == ["6 0", "6 1"]
    assert sorted(err for _, err in answers) == ["", "compiling for this machine, the first time only, up to 15 s\n"]
    (package / "inner.py").write_text(INNER.format(20))
    found = subprocess.run(command, cwd=tmp_path, check=True, **pipes)
    assert found.stdout.split() == ["25", "0"]
    (folder,) = (package / "__pycache__").glob(module.PREFIX + "*")
    assert folder.name == module.PREFIX + digest_of(package)


def test_without_a_folder_it_compiles_all_the_same(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(module, "_parents", lambda: [tmp_path / "file"])
    module.kept_in.cache_clear()
    try:

        @module.compiled
        def double(x):
            return 2 * x

        assert double(21) == 42
    finally:
        module.kept_in.cache_clear()


def test_only_files_with_compiled_functions_count(tmp_path):
    (tmp_path / "a.py").write_text("from webtext_prep.text.compiled import compiled\n")
    before = digest_of(tmp_path)
    (tmp_path / "b.py").write_text("x = 1\n")
    assert digest_of(tmp_path) == before
    (tmp_path / "a.py").write_text("from webtext_prep.text.compiled import compiled\nx = 1\n")
    assert digest_of(tmp_path) != before


PROGRAM = """
import json, sys
from webtext_prep.cli import main
for command in json.loads(sys.argv[1]):
    assert main([*command, "--workers", "1"]) == 0
    assert "numba" not in sys.modules, command
"""


def test_a_small_corpus_is_made_without_the_compiler(tmp_path):
    """The first dedup of 1,135 documents compiled for 45 s of CPU before it did anything, clean and report for 5."""
    generator = random.Random(1)
    english, german = (
        "the bridge was repaired and people walked over it",
        "die Brücke wurde gebaut und keiner kam",
    )
    with (tmp_path / "texts.jsonl").open("w") as file:
        for number in range(40):
            words = generator.choices((german if number == 20 else english).split(), k=300)
            print(json.dumps({"url": f"http://a.org/{number % 30}", "text": " ".join(words)}), file=file)
    steps = ["texts.jsonl", "merge", "clean", "dedup", "tokenize"]
    commands = [[name, source, "--output", name] for source, name in itertools.pairwise(steps)]
    commands += [["index-tokens", "tokenize"], ["report", "tokenize", "--output", "report.html"]]
    words = [sys.executable, "-c", PROGRAM, json.dumps(commands)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
