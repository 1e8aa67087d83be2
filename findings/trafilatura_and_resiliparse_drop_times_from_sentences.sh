#!/usr/bin/env bash
# Packages: trafilatura 2.3.1, lxml_html_clean 0.4.6, resiliparse 2.0.1 (PyPI).
#
# Behaviour: the words in a `<time>` or a `<label>` that stands in a sentence of the main text are left out, by trafilatura
# and by Resiliparse with `main_content=True`, and the sentence goes on as if they had never been there. trafilatura also
# ends the line behind a `<q>`, which HTML has for a quotation inside of a sentence.
#
# Why it matters here: `<time>` is how news and encyclopedias mark dates, so that "leaves on 3 May from the pier" becomes
# "leaves on from the pier" in a corpus, and a model learns to leave dates out. No filter sees it.
#
# Output seen:
#   trafilatura time: 'It leaves on from the pier of the town.'
#   trafilatura label: 'It leaves on from the pier of the town.'
#   trafilatura q: 'It leaves on 3 May' / 'from the pier of the town.'
#   resiliparse time: 'It leaves on from the pier of the town.'
#   resiliparse label: 'It leaves on from the pier of the town.'
#   resiliparse q: 'It leaves on 3 May from the pier of the town.'
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check trafilatura==2.3.1 lxml_html_clean==0.4.6 resiliparse==2.0.1
venv/bin/python - <<'PYTHON'
import re

from resiliparse.extract.html2text import extract_plain_text
from trafilatura import extract

around = "".join(f"<p>Paragraph {n} says a good deal about the boats and those who wait for them.</p>" for n in range(5))
extractors = {"trafilatura": extract, "resiliparse": lambda page: extract_plain_text(page, main_content=True)}
seen = {}
for name, text_of in extractors.items():
    for tag in ("time", "label", "q"):
        sentence = f"<p>It leaves on <{tag}>3 May</{tag}> from the pier of the town.</p>"
        text = text_of(f"<html><title>Boats</title><body><article><h1>Boats</h1>{around}{sentence}{around}</article></html>")
        lines = [re.sub(" +", " ", line) for line in text.split("\n") if re.search("leaves|pier", line)]
        seen[name, tag] = lines
        print(f"{name} {tag}:", " / ".join(map(repr, lines)))
torn, whole = ["It leaves on from the pier of the town."], ["It leaves on 3 May from the pier of the town."]
assert seen["trafilatura", "time"] == seen["trafilatura", "label"] == torn
assert seen["resiliparse", "time"] == seen["resiliparse", "label"] == torn
assert seen["trafilatura", "q"] == ["It leaves on 3 May", "from the pier of the town."] and seen["resiliparse", "q"] == whole
PYTHON
