"""The page of `gpt2 serve` in a browser: a prompt is typed, a text appears, its words tell how likely they were.

These tests run where a Chromium is installed, and are skipped where none is.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.gpt2_train.served import NAME, Served, served
from tests.gpt2_train.small_models import END, constant_model, save
from tests.webtext_prep.support.browser import Browser, find_chromium

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium is installed (Debian: apt-get install chromium)"),
]

DONE = "document.querySelector('article:not(.writing)')"
DETAILS = "document.getElementById('details')"
WRITTEN = "[...document.querySelectorAll('article:first-child .token')].map(token => token.textContent)"
LETTERS = {ord(letter): 0.0 for letter in "<b>"}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A model that writes <, b and >, each as likely as the others, and so now and then a tag of HTML."""
    with served(save(tmp_path_factory.mktemp("run"), constant_model(LETTERS)), max_tokens=100_000) as found:
        yield found


@pytest.fixture
def page(browser: Browser, api: Served) -> Browser:
    browser.requests.clear()
    browser.messages.clear()
    browser.open(f"{api.url}/")
    browser.wait_for(f"document.title === '{NAME}'")
    browser.evaluate("localStorage.clear()")
    browser.evaluate("document.getElementById('prompt').value = ''")
    return browser


def press(page: Browser, key: str, code: int, *, control: bool = False) -> None:
    """Press a key."""
    values = {"key": key, "windowsVirtualKeyCode": code, "modifiers": 2 if control else 0}
    page.send("Input.dispatchKeyEvent", type="rawKeyDown", **values)
    page.send("Input.dispatchKeyEvent", type="keyUp", **values)


def point_at(page: Browser, selector: str) -> None:
    """Move the mouse over an element."""
    script = (
        f"(r => [r.x + r.width / 2, r.y + r.height / 2])(document.querySelector('{selector}').getBoundingClientRect())"
    )
    x, y = page.evaluate(script)
    page.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)


def write(page: Browser, prompt: str) -> None:
    """Type a prompt, and have it continued to its end."""
    page.evaluate("document.getElementById('tokens').value = 0")
    page.evaluate("document.getElementById('prompt').focus()")
    page.send("Input.insertText", text=prompt)
    press(page, "Enter", 13, control=True)
    page.wait_for(DONE)


def test_a_prompt_is_continued_and_its_words_tell_their_chances(page: Browser, api: Served) -> None:
    write(page, "a <i>x</i> ")
    assert page.evaluate("document.querySelector('article .given').textContent") == "a <i>x</i> "
    written = page.evaluate(WRITTEN)
    assert len(written) == 25 and set(written) == set("<b>")
    assert "25 tokens" in page.evaluate("document.querySelector('.status').innerText")
    point_at(page, ".token:nth-child(7)")
    details = page.wait_for(
        "!document.getElementById('details').hidden && document.getElementById('details').innerText"
    )
    assert details.split()[:2] == [written[5], "33.3%"]
    assert page.evaluate("document.querySelectorAll('#details .row').length") == 5
    assert page.evaluate("document.querySelector('#details .taken code').textContent") == written[5]
    # The keyboard shows the same.
    page.evaluate("document.querySelector('article .text').focus()")
    press(page, "ArrowRight", 39)
    assert page.evaluate("document.querySelector('.token.chosen').textContent") == written[0]
    press(page, "Escape", 27)
    assert page.evaluate("document.getElementById('details').hidden")
    assert page.messages == []
    assert all(request.startswith((api.url, "data:")) for request in page.requests)


def test_text_is_never_markup(page: Browser) -> None:
    write(page, "<b>a</b><img src=x onerror='window.ran = 1'>")
    assert page.evaluate("document.querySelectorAll('article b, article img, article i').length") == 0
    assert page.evaluate("typeof window.ran") == "undefined"


def test_a_text_can_be_stopped_and_continued(page: Browser, api: Served) -> None:
    page.evaluate("document.getElementById('tokens').value = 6")
    page.evaluate("document.getElementById('write').click()")
    page.wait_for("document.querySelectorAll('.token').length > 20")
    page.evaluate("document.getElementById('stop').click()")
    assert "stopped" in page.wait_for(f"{DONE} && document.querySelector('.status').innerText")
    api.wait_for(lambda health: health["writing"] == 0)
    text = "".join(page.evaluate(WRITTEN))
    # It is longer than what the model sees, which is its end.
    page.evaluate("document.getElementById('tokens').value = 0")
    page.evaluate("[...document.querySelectorAll('article button')].find(b => b.textContent === 'Continue').click()")
    page.wait_for(DONE + "?.matches(':first-child')")
    assert page.evaluate("document.querySelector('article .given').textContent") == text
    assert len(page.evaluate(WRITTEN)) == 25


def test_settings_stay_from_visit_to_visit(page: Browser, api: Served) -> None:
    page.evaluate(
        "(t => { t.value = 1.5; t.dispatchEvent(new Event('input')); })(document.getElementById('temperature'))"
    )
    page.evaluate("(p => { p.value = 0; p.dispatchEvent(new Event('input')); })(document.getElementById('top-p'))")
    page.open(f"{api.url}/")
    assert page.evaluate("document.getElementById('temperature-shown').value") == "1.50"
    assert page.evaluate("document.getElementById('top-p-shown').value") == "0, greedy"
    write(page, "a")
    assert len(set(page.evaluate(WRITTEN))) == 1  # Of three letters that are as likely, always the first.
    page.evaluate("localStorage.clear()")


def test_the_page_asks_for_the_token(browser: Browser, tmp_path: Path) -> None:
    with served(save(tmp_path, constant_model({END: 0.0})), token="sesame") as api:
        browser.open(f"{api.url}/")
        browser.wait_for("!document.getElementById('key-form').hidden")
        for word in ("wrong", "sesame"):
            browser.evaluate(f"document.getElementById('key').value = '{word}'")
            browser.evaluate("document.getElementById('key-form').requestSubmit()")
            if word == "wrong":
                browser.wait_for("document.getElementById('key-help').textContent.startsWith('a wrong token')")
        browser.wait_for(f"document.title === '{NAME}' && document.getElementById('key-form').hidden")
        # As the link that the command prints has it; no server sees it, and the address no longer shows it.
        browser.evaluate("sessionStorage.clear()")
        browser.open("about:blank")
        browser.open(f"{api.url}/#token=sesame")
        browser.wait_for(f"document.title === '{NAME}'")
        assert browser.evaluate("location.hash") == ""
        write(browser, "a")
        assert browser.evaluate(WRITTEN) == ["end of text"]


@pytest.mark.parametrize("width", [360, 1200])
def test_nothing_is_wider_than_the_window(page: Browser, width: int) -> None:
    page.resize(width, dark=True)
    write(page, "long" * 3)
    point_at(page, ".token:nth-child(7)")
    page.wait_for("!document.getElementById('details').hidden")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    box = page.evaluate("(r => [r.left, r.right])(document.getElementById('details').getBoundingClientRect())")
    assert box[0] >= 0 and box[1] <= width
    page.resize(1200)
