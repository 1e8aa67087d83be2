"""Makes a folder of pages of documentation, a sample of what each generator made, for `learn_extraction.py`.

    ./uvw run --group peers tools/documentation_pages.py FOLDER --packages work/packages

The pages are those of Debian packages (12, bookworm), in the versions that PACKAGES says, which `apt-get download`
fetches where they don't lie in `--packages` yet. Of each only the kind is known: `truth.json` has `page_type` and a
made-up `url` with one address for each generator (of those for examples, RFC 5737), so that folds over domains learn
from other generators alone. A page has the path that it has in its package below `doc` or `html`, which is what it has
where it is published.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

PACKAGES = {
    "apache": ("apache2-doc=2.4.71-1~deb12u1",),
    "asciidoc": ("git-doc=1:2.39.5-0+deb12u3",),
    "docbook": (
        "debian-reference-en=2.100",
        "installation-guide-amd64=20230508+deb12u1",
        "postgresql-doc-15=15.20-0+deb12u1",
    ),
    "doxygen": ("libeigen3-doc=3.4.0-4", "libsfml-doc=2.5.1+dfsg-2"),
    "erl_docgen": ("erlang-doc=1:25.2.3+dfsg-1+deb12u4",),
    "fpdoc": ("fp-docs-3.2.2=3.2.2+dfsg-20", "lazarus-doc-2.2=2.2.6+dfsg2-2"),
    "gi-docgen": ("libgtk-4-doc=4.8.3+ds-2+deb12u1", "libpango1.0-doc=1.50.12+ds-1"),
    "gtk-doc": ("libcairo2-doc=1.16.0-7", "libglib2.0-doc=2.74.6-2+deb12u9", "libgtk-3-doc=3.24.38-2~deb12u3"),
    "haddock": ("ghc-doc=9.0.2-4",),
    "javadoc": ("libcommons-lang3-java-doc=3.12.0-2+deb12u1", "openjdk-17-doc=17.0.21.1+2-1~deb12u1"),
    "latex2html": ("gnuplot-doc=5.4.4+dfsg1-2",),
    "mediawiki": ("cppreference-doc-en-html=20170409-2",),
    "nodejs": ("nodejs-doc=18.20.4+dfsg-1~deb12u3",),
    "qdoc": ("qtbase5-doc-html=5.15.8+dfsg-11+deb12u3", "qtdeclarative5-doc-html=5.15.8+dfsg-3"),
    "rustdoc": ("rust-doc=1.63.0+dfsg1-2",),
    "scaladoc": ("scala-doc=2.11.12-5",),
    "sphinx": ("python-django-doc=3:3.2.25-0+deb12u7", "python3.11-doc=3.11.2-6+deb12u9", "sphinx-doc=5.3.0-4"),
    "sqlite": ("sqlite3-doc=3.40.1-2+deb12u2",),
    "texinfo": ("maxima-doc=5.46.0-11", "octave-doc=7.3.0-2", "r-doc-html=4.2.2.20221110-2"),
}
"""By generator, packages with pages that it made. Those of apache, nodejs and sqlite have one of their own."""
PAGES = 60
"""Of each generator."""
PAGES_A_FOLDER = 6
"""Of each folder of a package, since some have thousands of pages alike."""
_SUFFIXES = (".html", ".htm", ".html.gz")


def unpacked(package: str, archives: Path, folder: Path) -> Path:
    """What a package holds, fetched where it is not among the archives yet."""
    name, _, version = package.partition("=")
    pattern = f"{name}_{version.replace(':', '%3a')}_*.deb"
    if not any(archives.glob(pattern)):
        subprocess.run(["apt-get", "download", package], cwd=archives, check=True)
    subprocess.run(["dpkg", "-x", next(archives.glob(pattern)), folder / name], check=True)
    return folder / name


def sampled(root: Path, number: int) -> list[Path]:
    """So many of a package's pages, by a hash of their names; of each folder PAGES_A_FOLDER."""
    found = [path for path in root.rglob("*") if path.name.endswith(_SUFFIXES) and path.is_file()]
    found.sort(key=lambda path: hashlib.sha256(str(path.relative_to(root)).encode()).digest())
    of_folder: Counter[Path] = Counter()
    chosen = []
    for path in found:
        of_folder[path.parent] += 1
        if of_folder[path.parent] <= PAGES_A_FOLDER or len(found) <= number:
            chosen.append(path)
    if len(chosen) < number:
        chosen += [path for path in found if path not in set(chosen)]
    return sorted(chosen[:number])


def published_path(path: Path, root: Path) -> str:
    """The path of a page below the last folder of its package that is called `doc` or `html`."""
    parts = path.relative_to(root).parts
    below = [at + 1 for at, part in enumerate(parts[:-1]) if part in ("doc", "html")]
    return "/".join(parts[below[-1] if below else 0 :]).removesuffix(".gz")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--packages", type=Path, required=True, help="where the packages lie, or are put")
    arguments = parser.parse_args()
    arguments.packages.mkdir(parents=True, exist_ok=True)
    (arguments.folder / "html").mkdir(parents=True)
    truth = {}
    for generator, packages in PACKAGES.items():
        for package in packages:
            with tempfile.TemporaryDirectory() as folder:
                root = unpacked(package, arguments.packages, Path(folder))
                for number, path in enumerate(sampled(root, PAGES // len(packages))):
                    name = f"{package.partition('=')[0]}-{number:03}.html.gz"
                    data = path.read_bytes()
                    body = gzip.decompress(data) if path.suffix == ".gz" else data
                    (arguments.folder / "html" / name).write_bytes(gzip.compress(body, mtime=0))
                    address = f"192.0.2.{list(PACKAGES).index(generator)}"
                    url = f"http://{address}/{published_path(path, root)}"
                    truth[name] = {"url": url, "page_type": "documentation", "package": package}
    (arguments.folder / "truth.json").write_text(json.dumps(truth, indent=1), encoding="utf-8")
    print(f"{len(truth):,} pages of {len(PACKAGES)} generators")


if __name__ == "__main__":
    main()
