#!/usr/bin/env bash
# Packages: datasets 5.2.0, deltalake 1.6.6, pyarrow 26.0.1 (PyPI).
#
# Behaviour: `load_dataset(FOLDER)` takes the Parquet files of a Delta table for a dataset. A row that was deleted stays
# in its file until the table is vacuumed, and the other rows of that file are written once more into another file; only
# the log beside them tells which file holds. So the deleted row comes back, and the others twice, with no error or
# warning. So it is with a pattern `table/*.parquet` in Polars and datatrove.
#
# Why it matters here: data lakes keep corpora in such tables, and what is deleted there is what somebody asked to have
# taken down. It is trained on all the same, beside copies of each page of the same file.
#
# Output seen:
#   table:    2 rows, without https://example.org/1
#   datasets: 5 rows, 1 of https://example.org/1
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check datasets==5.2.0 deltalake==1.6.6 pyarrow==26.0.1
HF_HOME="$folder/cache" HF_HUB_OFFLINE=1 venv/bin/python - 2>/dev/null <<'PYTHON'
import datasets
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

pages = [{"url": f"https://example.org/{number}", "text": f"Page {number}."} for number in range(3)]
write_deltalake("table", pa.Table.from_pylist(pages))
DeltaTable("table").delete("url = 'https://example.org/1'")
table = DeltaTable("table").to_pyarrow_table().column("url").to_pylist()
dataset = list(datasets.load_dataset("table", split="train")["url"])
print(f"table:    {len(table)} rows, without {', '.join({page['url'] for page in pages} - set(table))}")
print(f"datasets: {len(dataset)} rows, {dataset.count('https://example.org/1')} of https://example.org/1")
assert sorted(table) == ["https://example.org/0", "https://example.org/2"]
assert sorted(dataset) == sorted([page["url"] for page in pages] + table)
PYTHON
