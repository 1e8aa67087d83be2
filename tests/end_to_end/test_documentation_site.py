"""The quickstart's own web site: the same pages every time, and nothing of this machine in them."""

import os
import subprocess
import sys
import urllib.request
from pathlib import Path

SITE = Path(__file__).resolve().parents[2] / "pipelines" / "documentation_site.py"
# Pages that hold defaults with memory addresses, platform details, or what other imports leave behind.
DELICATE = ["module/smtplib", "module/ctypes", "module/importlib", "module/sys", "module/json", "topic/lambda"]


def fetch(names: list[str]) -> dict[str, str]:
    process = subprocess.Popen(
        [sys.executable, str(SITE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PYTHONHASHSEED": "0", "PATH": os.defpath},
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    base = process.stdout.readline().strip()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    pages = {name: opener.open(f"{base}/{name}").read().decode().replace(base, "BASE") for name in names}
    process.stdin.close()  # the site ends with its input
    assert process.wait() == 0
    return pages


def test_pages_are_the_same_in_every_run_whatever_the_order():
    names = [*(f"{name}.html" for name in DELICATE), "urls.txt", "robots.txt"]
    first, second = fetch(names), fetch(names[::-1])
    assert first == second
    assert "SMTPAuthenticationError" in first["module/smtplib.html"]
    assert not any(sys.base_prefix in page for page in first.values())


def test_its_list_holds_hundreds_of_pages_and_what_the_blacklist_must_drop():
    urls = fetch(["urls.txt"])["urls.txt"].splitlines()
    assert sum(url.startswith("BASE/module/") for url in urls) > 200
    assert sum(url.startswith("BASE/topic/") for url in urls) > 50
    assert "https://www.youtube.com/watch?v=dQw4w9WgXcQ" in urls
