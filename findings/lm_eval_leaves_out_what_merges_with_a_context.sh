#!/usr/bin/env bash
# Packages: lm-eval 0.4.13, tokenizers 0.23.3 (PyPI).
#
# Behaviour: the likelihood of a continuation is that of the tokens of context and continuation, encoded together, from
# the place on at which the context's own tokens end. Where the last token of the context and the beginning of the
# continuation merge into one, this token takes the place of the context's last one, and nothing scores it: after "= 1"
# of the continuations "2 and" and "3 and", with a token "12", there is left only " and" of the first, and all of the
# second. No warning. Where all of it merges, nothing is left to score. A context of blanks alone leaves no token of
# context, since blanks at its end go to the continuation; an empty one is replaced by the end of text.
#
# Why it matters here: choices are ranked by these sums. One that merges (digits, a suffix, a letter after an apostrophe)
# is scored on fewer tokens than the others and wins, or ends the run where the model checks that (the `hf` model does,
# by an assertion, as it does for a context of blanks). Begin continuations with a space.
#
# Output seen:
#   '= 1' + '2 and': context ['=', 'Ġ', '1'], scored ['Ġ', 'a', 'n', 'd']
#   '= 1' + '3 and': context ['=', 'Ġ', '1'], scored ['3', 'Ġ', 'a', 'n', 'd']
#   '= 1' + '2': context ['=', 'Ġ', '1'], scored []
#   ' ' + 'a': context [], scored ['Ġ', 'a']
#   '' + 'a': context ['<|endoftext|>'], scored ['a']
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check lm-eval==0.4.13 tokenizers==0.23.3
PYTHONIOENCODING=utf-8 venv/bin/python - 2>log <<'PYTHON' || { tail -3 log; exit 1; }
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from tokenizers import Tokenizer, models, pre_tokenizers

END = "<|endoftext|>"
tokens = [*"=0123456789and", "Ġ", "12", END]
bpe = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, [("1", "2")]))
bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)

class Shown(TemplateLM):
    eot_token_id = tokens.index(END)

    def tok_encode(self, string, add_special_tokens=None, **options):
        return bpe.encode(string).ids

    def _loglikelihood_tokens(self, requests, **options):
        return [([tokens[number] for number in context], [tokens[number] for number in scored]) for _, context, scored in requests]

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        raise NotImplementedError

    generate_until = loglikelihood_rolling

pairs = [("= 1", "2 and"), ("= 1", "3 and"), ("= 1", "2"), (" ", "a"), ("", "a")]
found = Shown().loglikelihood([Instance("loglikelihood", {}, pair, 0) for pair in pairs])
for (before, after), (context, scored) in zip(pairs, found, strict=True):
    print(f"{before!r} + {after!r}: context {context}, scored {scored}")
given, rest = ["=", "Ġ", "1"], ["Ġ", *"and"]
assert found == [(given, rest), (given, ["3", *rest]), (given, []), ([], ["Ġ", "a"]), ([END], ["a"])]
PYTHON
