"""The quickstart's own web site: the same pages every time, and nothing of this machine in them."""

import os
import shutil
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

SITE = Path(__file__).resolve().parents[2] / "pipelines" / "documentation_site.py"
# Pages that hold defaults with memory addresses, platform details, or what other imports leave behind.
DELICATE = ["module/smtplib", "module/ctypes", "module/importlib", "module/sys", "module/json", "topic/lambda"]
DELICATE += ["module/os", "module/site", "module/wsgiref.handlers", "module/stat", "module/tempfile"]


def fetch(names: list[str], site: Path = SITE, port: int = 0, **variables: str) -> dict[str, str]:
    process = subprocess.Popen(
        [sys.executable, str(site), "--port", str(port)],
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
    pages = {name: opener.open(f"{base}/{name}").read().decode().replace(base, "BASE") for name in names}
    _, said = process.communicate()  # the site ends with its input
    assert process.returncode == 0
    assert said == "documentation_site.py: standard input ended, and the site with it.\n"
    return pages


def test_pages_are_the_same_in_every_run_whatever_the_order():
    names = [*(f"{name}.html" for name in DELICATE), "urls.txt", "robots.txt"]
    first, second = fetch(names), fetch(names[::-1])
    assert first == second
    assert "SMTPAuthenticationError" in first["module/smtplib.html"]
    # On the pages every interpreter lies in /usr, as the system's own does.
    places = {sys.prefix, sys.base_prefix} - {"/usr"}
    assert not [name for name, page in first.items() if any(place in page for place in places)]


def test_pages_are_the_same_for_every_user_folder_and_port(tmp_path):
    """A page showed the port, the user's folder and where the clone lies: the tokens, and the loss, differed by run."""
    names = [f"{name}.html" for name in DELICATE]
    elsewhere = shutil.copy(SITE, tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    other = fetch(names, Path(elsewhere), port, HOME="/somewhere", LANG="C.UTF-8", PYTHONHASHSEED="7")
    assert other == fetch(names, HOME="/elsewhere/else", TOKEN="hidden")
    assert not [name for name, page in other.items() if "hidden" in page or str(tmp_path) in page or str(port) in page]


def test_a_port_that_is_taken_is_a_sentence():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = subprocess.run([sys.executable, str(SITE), "--port", port], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"documentation_site.py: error: can't serve on port {port}")


def test_its_list_holds_hundreds_of_pages_and_what_the_blacklist_must_drop():
    urls = fetch(["urls.txt"])["urls.txt"].splitlines()
    assert sum(url.startswith("BASE/module/") for url in urls) > 200
    assert sum(url.startswith("BASE/topic/") for url in urls) > 50
    assert "https://www.youtube.com/watch?v=dQw4w9WgXcQ" in urls
