"""`clean --mask`: e-mail addresses and public IP addresses, what looks like them, and what stays."""

import re
import time
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from command_kit.errors import UsageError
from webtext_prep.documents.document import Document
from webtext_prep.running.tasks import Tally
from webtext_prep.stages.clean import Clean
from webtext_prep.text import masks
from webtext_prep.text.masks import EMAIL, IPV4, IPV6, mask_addresses, mask_emails
from webtext_prep.urls.urls import suffix_list, top_level_domains


def cases(*tables: str) -> list[str]:
    """The lines of files in `addresses/`: what is masked stands in double brackets, all else stays."""
    files = [Path(__file__).with_name("addresses") / f"{name}.txt" for name in tables]
    return [case for file in files for case in file.read_text(encoding="utf-8").strip().split("\n")]


def in_place(case: str, placeholder) -> tuple[str, str, int]:
    """A text, what it becomes, and how many addresses it has."""
    found = re.findall("⟦(.*?)⟧", case)
    return re.sub("[⟦⟧]", "", case), re.sub("⟦(.*?)⟧", lambda each: placeholder(each[1]), case), len(found)


@pytest.mark.parametrize("case", cases("emails", "no_emails"))
def test_of_emails_nothing_but_the_address_changes(case):
    text, wanted, number = in_place(case, lambda _: EMAIL)
    assert mask_emails(text) == (wanted, number)
    assert mask_emails(wanted) == (wanted, 0)


@pytest.mark.parametrize("case", cases("addresses", "no_addresses"))
def test_of_public_addresses_nothing_but_the_address_changes(case):
    text, wanted, number = in_place(case, lambda address: IPV6 if ":" in address else IPV4)
    assert mask_addresses(text) == (wanted, number)
    assert mask_addresses(wanted) == (wanted, 0)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("x" * 300 + "@corp.io", "x" * 300 + "@corp.io"),
        ("jane@" + "a." * 200 + "io", "jane@" + "a." * 200 + "io"),
        ("jane@corp.io\nbob@corp.io", f"{EMAIL}\n{EMAIL}"),
        ('"two\nlines"@corp.io', '"two\nlines"@corp.io'),
    ],
)
def test_what_is_too_long_for_an_address_stays(text, wanted):
    assert mask_emails(text)[0] == wanted


ANY_TEXT = st.text(st.characters(exclude_characters="@＠﹫%", exclude_categories=["Cs"]), max_size=20)


@given(ANY_TEXT, st.sampled_from(' 请はไ한，「(<["\n|,;*'), st.sampled_from(' 请はไ한，」)>]"\n|,;*!?…:'), ANY_TEXT)
def test_around_a_planted_email_nothing_changes(before, opening, closing, after):
    assume("://" not in before)
    assume(closing != ":" or after[:1] not in ("~", "/"))
    before, after = before + opening, closing + after
    assert mask_emails(f"{before}jane.doe+x@mail.corp.io{after}") == (f"{before}{EMAIL}{after}", 1)


@given(
    st.text("请はไ한，。 \n!x(:", max_size=20),
    st.sampled_from(' 请はไ한，「(<["\n|,;*-'),
    st.text("请はไ한，。 \n!)", max_size=20),
)
def test_around_a_planted_address_nothing_changes(before, opening, after):
    before += opening
    for address, wanted in (("93.184.216.34", IPV4), ("2001:4860:4860::8888", IPV6)):
        assert mask_addresses(f"{before}{address}{after}") == (f"{before}{wanted}{after}", 1)


UNITS = [
    *("a", "@", "a@", "a@a@a@", "a@a.", "a.", "@a.a", "%", "%40", "a%40", "a＠a.", "é@é.io", "汉@a.io", "汉", '"', "-"),
    *("a@b.co ", "a@b.co", "{a,", "a}@", "{,}@a.io", "://a@b.co/", "+a=b.io@c.io", "a@git:", "\\@", "@a.io.X", "a@x-"),
    *("1.", "1.1.1.1.", "8.8.8.8 ", "8.8.8.8-", "1-1.1.1.1", "version 1.1.1.1, ", "3.3.3.3 and ", ":", "::", "2000:"),
    *("2000::", "2001:4860:4860::8888 ", "2::2:"),
]


@pytest.mark.parametrize("unit", UNITS)
def test_the_time_grows_with_the_text(unit):
    """Quadratic would be a minute."""
    text = unit * (40_000 // len(unit)) + "@a.b 1.1.1.1"
    begin = time.process_time()
    mask_emails(text)
    mask_addresses(text)
    assert time.process_time() - begin < 1


def test_top_level_domains_are_those_of_the_public_suffix_list():
    """Read without tldextract, whose import takes long."""
    names = {name.rpartition(".")[2] for name in suffix_list().tlds}
    assert {name for name in top_level_domains() if not name.startswith("xn--")} == names
    assert {"xn--p1ai", "xn--fiqs8s", "com"} <= top_level_domains()


PARTS = [
    *"@.:- \n/0123af_%'\"{},\\=+&(请まй",
    *("é", "＠", "%40", "jane", "a.org", "A.It", ".com", "git", "://", "example.com"),
    *("8.8.8.8", "2607:f8b0::1", "::", "1.2", "version ", " and ", EMAIL, IPV4, IPV6),
]
PIECES = st.lists(
    st.sampled_from(PARTS),
    max_size=30,
)


@given(PIECES)
def test_masking_again_changes_nothing(pieces):
    for mask in (mask_emails, mask_addresses):
        once, _ = mask("".join(pieces))
        assert mask(once) == (once, 0)


@given(PIECES)
def test_what_is_looked_at_first_hides_no_address(pieces):
    text = "".join(pieces)
    found = mask_addresses(text)
    with pytest.MonkeyPatch.context() as patch:
        # Then every text is searched.
        patch.setattr(masks, "_DOTTED", re.compile(""))
        patch.setattr(masks, "_INNER_PARTS", 0)
        assert mask_addresses(text) == found


def test_clean_masks_text_and_title_and_counts():
    document = Document("http://a.org/jane@a.org", "Mail jane@a.org at 8.8.8.8. " * 3, {"title": "jane@a.org", "n": 1})
    stage, tally = Clean(language="any", min_tokens=0, mask=("email,ip",)), Tally()
    assert stage.mask == ("email", "ip")
    assert "tldextract" in stage.libraries
    (kept,) = stage.process([document], tally)
    assert kept.text == f"Mail {EMAIL} at {IPV4}. " * 3
    assert (kept.url, kept.metadata) == ("http://a.org/jane@a.org", {"title": EMAIL, "n": 1})
    assert tally.notes == {"masked_email": 4, "masked_ip": 3}


def test_a_mask_that_is_none_is_refused():
    with pytest.raises(UsageError, match="--mask phone is not known: choose among email, ip"):
        Clean(mask=("phone",))
