#!/usr/bin/env bash
# Package: wikiextractor 3.1.0 (PyPI).
#
# Behaviour: a template whose text a Lua module makes, such as `{{val|5.5|u=t}}` or `{{lang|fr|barrage}}` of Wikipedia,
# becomes nothing, and the sentence around it is written as if it were whole: only `convert` has a stand-in. The template
# is known (its page is in the dump), what its `#invoke` calls is not run, and nothing is counted or logged. A dump whose
# tags do not begin lines, though it is the same XML, gives no article at all, and the exit status is 0.
#
# Why it matters here: a corpus made of Wikipedia this way has sentences without their numbers and names, and a
# language model learns to write them. A filter does not see it: the sentences have their words and their full stop.
#
# Output seen:
#   lines:    'The dam is 30 m high, weighs, is called in French, and dates from 1890.'
#   one line: 0 articles, exit status 0
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check "wikiextractor==3.1.0"

page() { # namespace, number, title, text
  printf '<page>\n<title>%s</title>\n<ns>%s</ns>\n<id>%s</id>\n<revision>\n<id>1%s</id>\n<model>wikitext</model>\n' "$3" "$1" "$2" "$2"
  printf '<format>text/x-wiki</format>\n<text bytes="%s" xml:space="preserve">%s</text>\n</revision>\n</page>\n' "${#4}" "$4"
}
{
  printf '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="en">\n<siteinfo>\n'
  printf '<base>https://en.wikipedia.org/wiki/Main_Page</base>\n<namespaces>\n<namespace key="0" case="first-letter" />\n'
  printf '<namespace key="10" case="first-letter">Template</namespace>\n</namespaces>\n</siteinfo>\n'
  page 10 1 Template:Convert '{{#invoke:convert|convert}}'
  page 10 2 Template:Val '{{#invoke:val|main}}'
  page 10 3 Template:Lang '{{#invoke:Lang|lang}}'
  page 0 4 Dam 'The dam is {{convert|30|m}} high, weighs {{val|5.5|u=t}}, is called {{lang|fr|barrage}} in French, and dates from 1890.'
  printf '</mediawiki>\n'
} >lines.xml
tr -d '\n' <lines.xml >one-line.xml

text=$(venv/bin/wikiextractor --quiet --json --output - lines.xml | venv/bin/python -c 'import json; print(repr(json.loads(input())["text"]))')
echo "lines:    $text"
venv/bin/wikiextractor --quiet --json --output - one-line.xml >articles.jsonl
echo "one line: $(wc -l <articles.jsonl) articles, exit status 0"
[ "$text" = "'The dam is 30 m high, weighs, is called in French, and dates from 1890.'" ]
[ ! -s articles.jsonl ]
