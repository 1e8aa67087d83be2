#!/usr/bin/env bash
# Package: ftfy 6.3.1 (PyPI).
#
# Behaviour: `fix_text(text, decode_inconsistent_utf8=False)` ignores that setting, and so it is with `restore_byte_a0`
# and `replace_lossy_sequences`; the same settings in a `TextFixerConfig` are obeyed. Given as keywords, they are put
# into a configuration with `explain=False`, and with that `fix_and_explain` calls `fix_encoding(text)` without any
# configuration. So a `TextFixerConfig(..., explain=False)` is ignored, too, though `explain` is to change only speed.
#
# Why it matters here: who cleans a corpus and switches off the repairs that guess (pieces of a line are repaired beside
# text that is right) believes that they are off, and they are not. Settings that are obeyed, such as `uncurl_quotes`,
# hide it.
#
# Output seen:
#   keywords:              '“so” don’t'
#   TextFixerConfig:       '“so” donâ€™t'
#   ... and explain=False: '“so” don’t'
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check "ftfy==6.3.1"
PYTHONIOENCODING=utf-8 venv/bin/python - <<'PYTHON'
import ftfy

text, settings = "“so” donâ€™t", {"decode_inconsistent_utf8": False, "uncurl_quotes": False}
by_keywords = ftfy.fix_text(text, **settings)
by_configuration = ftfy.fix_text(text, ftfy.TextFixerConfig(**settings))
unexplained = ftfy.fix_text(text, ftfy.TextFixerConfig(**settings, explain=False))
print(f"keywords:              {by_keywords!r}")
print(f"TextFixerConfig:       {by_configuration!r}")
print(f"... and explain=False: {unexplained!r}")
assert (by_keywords, by_configuration, unexplained) == ("“so” don’t", text, "“so” don’t")
PYTHON
