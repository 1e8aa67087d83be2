#!/usr/bin/env bash
# Packages: datasketch 1.10.0 and 2.0.0 (PyPI).
#
# Behaviour: datasketch 2 makes MinHash signatures by another scheme ("affine32") unless it is asked for the earlier one
# ("legacy"), so that seed, permutations and words alike give other values. A `MinHash` of an earlier version is known by
# the missing name of its scheme, and `jaccard` with a new one raises an error. A `MinHashLSH` index does not look: one
# that an earlier version filled and pickled is loaded, asked for the very words that it holds, and finds nothing. New
# signatures are then added beside the old ones.
#
# Why it matters here: who keeps the index of a corpus, and drops what a new crawl has in common with it, upgrades and
# drops nothing: every page passes for new, and no message says why. `MinHash(scheme="legacy")` finds them again.
#
# Output seen:
#   1.10.0 asks its own index: ['page']
#   2.0.0 asks it:             []
#   ... with scheme="legacy":  ['page']
#   2.0.0 compares signatures: ValueError
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv 1.10.0
1.10.0/bin/pip install --quiet --disable-pip-version-check datasketch==1.10.0
python3 -m venv 2.0.0
2.0.0/bin/pip install --quiet --disable-pip-version-check datasketch==2.0.0
cat >minhash_of.py <<'PYTHON'
from datasketch import MinHash


def minhash(**settings):
    signature = MinHash(num_perm=128, seed=1, **settings)
    for word in "the boats leave the harbour in the morning and come back at night".split():
        signature.update(word.encode())
    return signature
PYTHON
1.10.0/bin/python - <<'PYTHON' >first
import pickle

from datasketch import MinHashLSH
from minhash_of import minhash

index = MinHashLSH(threshold=0.8, num_perm=128)
index.insert("page", minhash())
pickle.dump((index, minhash()), open("index.pickle", "wb"))
print(index.query(minhash()))
PYTHON
2.0.0/bin/python - <<'PYTHON' >second
import pickle

from minhash_of import minhash

index, signature = pickle.load(open("index.pickle", "rb"))
print(index.query(minhash()), index.query(minhash(scheme="legacy")), sep="\n")
try:
    print(minhash().jaccard(signature))
except ValueError as error:
    print(type(error).__name__)
PYTHON
{ read -r new; read -r legacy; read -r compared; } <second
echo "1.10.0 asks its own index: $(cat first)"
echo "2.0.0 asks it:             $new"
echo "... with scheme=\"legacy\":  $legacy"
echo "2.0.0 compares signatures: $compared"
[ "$(cat first)" = "['page']" ] && [ "$new" = "[]" ] && [ "$legacy" = "['page']" ] && [ "$compared" = ValueError ]
