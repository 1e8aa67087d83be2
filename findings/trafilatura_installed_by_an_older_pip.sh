#!/usr/bin/env bash
# Packages: trafilatura 2.3.1, jusText 3.0.2, lxml 6.1.3 (PyPI), installed by pip 23.0.1 (Debian 12's) and 24.0.
#
# Behaviour: jusText, which trafilatura needs, asks for `lxml[html_clean]`. lxml calls that extra `html-clean` in its
# metadata. pip compares the names of extras as they are written before 23.3, and in one form (PEP 685) from then on. So an
# older pip warns, leaves lxml_html_clean out, and ends with status 0, and `import trafilatura` fails.
#
# Why it matters here: whoever extracts with trafilatura on Debian 12, or with a Python 3.11 whose own pip is that old,
# has an installation that succeeds and an extractor that does not start. The remedy is to ask for lxml_html_clean too.
#
# Output seen:
#   pip 23.0.1: ImportError: lxml.html.clean module is now a separate project lxml_html_clean.
#   pip 24.0:   trafilatura 2.3.1
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
for version in 23.0.1 24.0; do
  python3 -m venv "$version"
  "$version/bin/pip" install --quiet --disable-pip-version-check "pip==$version"
  "$version/bin/pip" install --quiet --disable-pip-version-check trafilatura==2.3.1 justext==3.0.2 lxml==6.1.3 2>/dev/null
done
old=$(23.0.1/bin/python -c "import trafilatura" 2>&1 | grep -m1 '^ImportError') || true
new=$(24.0/bin/python -c "import trafilatura; print('trafilatura', trafilatura.__version__)")
echo "pip 23.0.1: $old"
echo "pip 24.0:   $new"
[[ $old == "ImportError: lxml.html.clean module is now a separate project"* ]]
[ "$new" = "trafilatura 2.3.1" ]
