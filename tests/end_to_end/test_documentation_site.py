"""The quickstart's own web site: the same pages every time, and nothing of this machine in them."""

import ast
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from webtext_run import documentation_site
from webtext_run.documentation_site import docstrings, is_prose, paragraphs

SITE = Path(__file__).resolve().parents[2] / "pipelines" / "documentation_site.py"

NAMES = ["module/smtplib", "module/site", "module/numpy.lib._npyio_impl", "module/torch.optim.lr_scheduler"]
NAMES += ["module/sympy.core.expr", "topic/lambda", "topic/typesmapping"]


@contextlib.contextmanager
def served(site: Path = SITE, port: int = 0, **variables: str) -> Iterator[Callable[[str], str]]:
    """Gives what there is under a name while a site is served, with `BASE` for its address."""
    process = subprocess.Popen(
        [sys.executable, str(site), "--port", str(port), "--until-input-ends"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PATH": os.defpath, **variables},
        cwd=site.parent,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    base = process.stdout.readline().strip()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    yield lambda name: opener.open(f"{base}/{name}").read().decode().replace(base, "BASE")
    _, said = process.communicate()  # the site ends with its input
    assert process.returncode == 0
    assert said == "documentation_site.py: standard input ended, and the site with it.\n"


@pytest.fixture(scope="module")
def page() -> Iterator[Callable[[str], str]]:
    """`page(name)` is a page of the site."""
    with served(HOME="/elsewhere/else", TOKEN="hidden") as get:
        yield get


def test_pages_are_the_same_in_any_order_and_for_every_user_folder_and_port(page, tmp_path):
    """A page showed the port, the user's folder and where the clone lies: the tokens, and the loss, differed by run."""
    names = [*(f"{name}.html" for name in NAMES), "urls.txt", "robots.txt"]
    first = {name: page(name) for name in names}
    elsewhere = shutil.copy(SITE, tmp_path)
    shutil.copytree(Path(documentation_site.__file__).parent, tmp_path / "webtext_run")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with served(Path(elsewhere), port, HOME="/somewhere", LANG="C.UTF-8", PYTHONHASHSEED="7") as other:
        assert {name: other(name) for name in names[::-1]} == first
    assert "SMTPRecipientsRefused" in first["module/smtplib.html"]
    private = ("hidden", str(tmp_path), str(port), sys.prefix, sys.base_prefix)
    assert not [name for name in names[:-2] for word in private if word in first[name]]


def test_it_stays_up_in_the_background_of_a_shell_until_a_signal():
    """It waited for its standard input: started with `&` it stopped, and with none it ended at once."""
    words = [sys.executable, str(SITE), "--port", "0"]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, text=True, **quiet) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        base = process.stdout.readline().strip()
        assert "leave it running" in process.stderr.readline()
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        for _ in range(2):
            assert opener.open(f"{base}/robots.txt").status == 200
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0


def test_a_port_that_is_taken_is_a_sentence():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = subprocess.run([sys.executable, str(SITE), "--port", port], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"documentation_site.py: error: can't serve on port {port}")


def test_its_list_holds_hundreds_of_pages_and_what_the_blacklist_must_drop(page):
    urls = page("urls.txt").splitlines()
    assert sum(url.startswith("BASE/module/") for url in urls) > 1000
    assert sum(url.startswith("BASE/topic/") for url in urls) > 50
    assert "https://www.youtube.com/watch?v=dQw4w9WgXcQ" in urls


def test_its_list_leads_to_pages_that_each_stage_drops(page):
    """A funnel that loses nothing shows nothing: copies, printed versions, other languages."""
    urls = page("urls.txt").splitlines()
    copies = [url.removeprefix("BASE/") for url in urls if url.startswith(("BASE/mirror/", "BASE/print/"))]
    assert len(copies) == 24
    name = copies[0].removeprefix("mirror/")
    assert page(f"module/{name}") == page(f"mirror/{name}") != page(f"print/{name}")
    assert "Dokumentation" in page("about/de.html")
    assert page("about/fr.html")
    assert {"BASE/gone/0.html", "BASE/drafts/0.html", "BASE/data"} <= set(urls)


DOCSTRING = """Return the `sorted` list of :class:`~graph.Node` objects, see `the guide <https://x.org>`_.

    Each of the nodes is visited **once**,
    in the order in which it was added.

    Parameters
    ----------
    node : Node
        A node of the graph that is visited.

    Notes
    -----
    This is slower than a search that stops early.

    .. math:: x^2 + y^2

    >>> visit(1)
    | a | table |

    Too short."""


def test_pages_have_the_sentences_of_docstrings_and_nothing_else():
    """Half of a page was tables of pipes, which the model then wrote."""
    assert list(paragraphs(DOCSTRING)) == [
        "Return the sorted list of Node objects, see the guide.",
        "Each of the nodes is visited once, in the order in which it was added.",
        "This is slower than a search that stops early.",
    ]
    assert not is_prose("x = 1 is what the first of these lines says.")
    assert not is_prose("Begins as a sentence does but has no end")


def test_names_stand_before_what_is_said_of_them_and_private_ones_are_left_out():
    source = '"""A."""\nclass B:\n  """B."""\n  def c(self): "C."\n  def _d(self): "D."\nasync def e(): "E."'
    assert list(docstrings(ast.parse(source))) == [("", "A."), ("B", "B."), ("B.c", "C."), ("e", "E.")]
