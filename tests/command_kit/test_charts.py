"""What pages and pictures are made of: markup that escapes what is put in, and numbers."""

import html
import re

from hypothesis import given
from hypothesis import strategies as st

from command_kit.charts.markup import Markup, escape, tag, visible
from command_kit.charts.numbers import brief, share, short


def test_characters_that_cannot_be_seen_are_named():
    assert (
        visible("a\x00b\x1b[31m\u202ec\u2066\ufeff\ud800") == "a⟨U+0000⟩b⟨U+001B⟩[31m⟨U+202E⟩c⟨U+2066⟩⟨U+FEFF⟩⟨U+D800⟩"
    )
    assert (
        visible("tab\t line\n joined \U0001f469\u200d\U0001f52c क्\u200dष")
        == "tab\t line\n joined \U0001f469\u200d\U0001f52c क्\u200dष"
    )


@given(st.text())
def test_nothing_that_is_put_in_becomes_markup(text):
    found = tag("p", text, title=text)
    assert re.fullmatch(r'<p title="[^"<>]*">[^<>]*</p>', found, re.DOTALL)
    assert html.unescape(escape(text)) == html.unescape(html.escape(visible(text)))
    assert tag("p", Markup("<b>")) == "<p><b></p>"


def test_numbers_are_short():
    assert [short(value) for value in (0, 7, 0.25, 999, 1234, 999_999, 1_234_567, 2e9)] == [
        "0", "7", "0.25", "999", "1.23k", "1M", "1.23M", "2B",
    ]  # fmt: skip
    assert [brief(value) for value in (99_999, 100_000)] == ["99,999", "100k"]
    assert [share(part, 1000) for part in (0, 1000, 999.9, 405, 60, 5.5, 0.05)] == [
        "0%", "100%", ">99.9%", "40.5%", "6%", "0.55%", "<0.01%",
    ]  # fmt: skip
