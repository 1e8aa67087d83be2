#!/usr/bin/env bash
# Packages: text-dedup 0.4.0, datasets 5.2.0 (PyPI), and what they need.
#
# Behaviour: `text_dedup.minhash` leaves out each document with fewer words than `--min_length` (5 by default) before
# anything is compared. It does so before it counts, too: what it logs as "Before" are the documents that were left, so
# nothing says that any went. A word is what lies between characters that are no letters or numbers, or nothing
# where two of these follow one another: a full stop at the end counts. A text in Chinese has a word for each clause,
# so that one of some hundred characters may be dropped, though nothing is like it.
#
# Why it matters here: a corpus loses its short texts, and first those in languages without spaces, in a step that
# is there to drop copies. Counts of documents before and after show only the copies.
#
# Output seen:
#   given: 4 documents, two of which are equal
#   logged: Before 2, After 1
#   kept: boats
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export HF_HOME="$folder/cache" HF_HUB_OFFLINE=1
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check --no-deps text-dedup==0.4.0
venv/bin/pip install --quiet --disable-pip-version-check datasets==5.2.0 numpy==2.4.6 scipy==1.17.1 click==8.5.1 \
    click-option-group==0.5.10 rich==15.0.0 regex==2026.11.19 xxhash==4.1.0 ftfy==6.3.1 bitarray==3.12.3 \
    pybloom-live==4.0.0 psutil==7.2.2 setuptools==84.2.1
venv/bin/python - <<'PYTHON'
import json

texts = [
    ("boats", "The boats leave in the morning and come back at night."),
    ("boats", "The boats leave in the morning and come back at night."),
    ("four words", "Boats leave at dawn"),
    ("Chinese", "船在早晨离开港口去远处的岛屿捕鱼，晚上带着一天的收获回到村里，孩子们在岸边等着看今天捕到了什么"),
]
with open("texts.jsonl", "w") as file:
    for name, text in texts:
        file.write(json.dumps({"name": name, "text": text}) + "\n")
PYTHON
venv/bin/python -m text_dedup.minhash --path json --data_files texts.jsonl --split train --cache_dir cache --output out \
    --column text --batch_size 100 --num_proc 1 >log.txt 2>&1
venv/bin/python - >seen.txt <<'PYTHON'
import re

import datasets

log = re.sub(r"\S+\.py:\d+", "", open("log.txt").read())
before, after = (re.search(rf"{name}\s*:\s*(\d+)", log)[1] for name in ("Before", "After"))
print("given: 4 documents, two of which are equal")
print(f"logged: Before {before}, After {after}")
print(f"kept: {', '.join(datasets.load_from_disk('out')['name'])}")
PYTHON
cat seen.txt
diff - seen.txt <<'SEEN'
given: 4 documents, two of which are equal
logged: Before 2, After 1
kept: boats
SEEN
