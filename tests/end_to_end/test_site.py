"""The documentation as a site: built without a warning, with every page in its navigation."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def test_every_page_is_in_the_navigation_once():
    listed = re.findall(r"^ +- ([\w/-]+\.md)$", SETTINGS, re.MULTILINE)
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert sorted(listed) == sorted(pages)


def test_the_site_builds_strictly(tmp_path):
    pytest.importorskip("zensical")
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    words = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    if "zensical-watch" in done.stderr and "Too many open files" in done.stderr:
        # Zensical watches files even for one build, ends with 0 where it can't, and has written nothing.
        # How many processes of a user may watch is the machine's limit; links are checked in test_guide.py too.
        pytest.skip("the limit of this machine on watching files (fs.inotify.max_user_instances) is reached")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stderr
    home = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert "From a list of URLs to a GPT-2 that writes" in home
    assert (tmp_path / "site" / "search.json").is_file()
    assert 'href="../example/report.html"' in (tmp_path / "site" / "example" / "index.html").read_text(encoding="utf-8")
    assert (tmp_path / "site" / "example" / "report.html").is_file()
    found = len(list((tmp_path / "site").rglob("index.html")))
    assert found == len(list((ROOT / "docs").rglob("*.md")))
