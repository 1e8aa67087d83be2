#!/usr/bin/env bash
# Packages: deltalake 1.6.6, datasets 5.2.0, polars 2.1.0, pyarrow 26.0.1 (PyPI).
#
# Behaviour: a Delta table is a folder of Parquet files and a log that says which of them, and which of their rows, are
# the table. `load_dataset(FOLDER)` reads all Parquet files and no log: a row that was deleted comes back, and each other
# row of its file comes twice, from the file before the deletion and from the one that took its place. There is no
# error and no warning. Polars reads a pattern such as `FOLDER/*.parquet` in the same way, and refuses the folder itself.
#
# Why it matters here: rows are deleted on somebody's request, and corpora are kept as Delta tables. Whoever trains on
# the folder trains on what was to be forgotten, and on the rest twice.
#
# Output seen:
#   deltalake:       a b d
#   load_dataset:    a a b b c d d
#   polars, pattern: a a b b c d d
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export HF_HOME="$folder/cache" HF_HUB_OFFLINE=1
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check deltalake==1.6.6 datasets==5.2.0 polars==2.1.0 pyarrow==26.0.1
venv/bin/python - >seen.txt <<'PYTHON'
import datasets
import polars
import pyarrow
from deltalake import DeltaTable, write_deltalake

datasets.disable_progress_bars()
write_deltalake("table", pyarrow.table({"text": ["a", "b", "c", "d"]}))
DeltaTable("table").delete("text = 'c'")


def show(name, texts):
    print(f"{name + ':':16} {' '.join(sorted(texts))}")


show("deltalake", pyarrow.table(DeltaTable("table").to_pyarrow_table())["text"].to_pylist())
show("load_dataset", datasets.load_dataset("table", split="train")["text"])
show("polars, pattern", polars.read_parquet("table/*.parquet")["text"].to_list())
PYTHON
cat seen.txt
diff - seen.txt <<'SEEN'
deltalake:       a b d
load_dataset:    a a b b c d d
polars, pattern: a a b b c d d
SEEN
