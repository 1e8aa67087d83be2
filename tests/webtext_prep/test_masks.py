"""`clean --mask`: e-mail addresses and public IP addresses, what looks like them, and what stays."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_kit.errors import UsageError
from webtext_prep.documents.document import Document
from webtext_prep.running.tasks import Tally
from webtext_prep.stages.clean import Clean
from webtext_prep.text import masks
from webtext_prep.text.masks import EMAIL, IPV4, IPV6, mask_addresses, mask_emails

WITH_EMAILS = {
    "Write to jane.doe@uni.edu.": "Write to {}.",
    "mailto:jane@a.org?subject=x": "mailto:{}?subject=x",
    "<jane@a.org>, 'bob+list@b.co.uk';x=c@d.info": "<{}>, '{}';x={}",
    "JANE@SUB-DOMAIN.ORG and müller@exämple.de": "{} and {}",
    "o'brien@a.org a..b@c.org": "{} {}",
    "jane@a.org-or jane@b.org/path": "{}-or {}/path",
}
WITHOUT_EMAILS = [
    "git clone git@github.com:me/it",
    "a@b, you@@a.org, @jane.doe, twitter.com/@jack.dorsey",
    "icon@2x.png sprite@3x.webp",
    "user@example.com, root@localhost.localhost, me@host.test, me@mail.example.org",
    "5 @ 3.50 each",
]
WITH_ADDRESSES = {
    "8.8.8.8, (1.1.1.1:53) and http://9.9.9.9/x.": "{4}, ({4}:53) and http://{4}/x.",
    "from 8.8.4.0/24": "from {4}/24",
    "[2607:f8b0::1]:80 or 2001:4860:4860:0:0:0:0:8888": "[{6}]:80 or {6}",
}
WITHOUT_ADDRESSES = [
    "10.0.0.1 192.168.1.1 127.0.0.1 169.254.169.254 192.0.2.7",
    "version 1.2.3.4, v1.2.3.4, release 11.2.0.4, section 4.4.4.4, § 4.4.4.4",
    "1.2.3.4.5 999.1.1.1 8.8.8.8-9 01.02.03.04 8.8.8.8a",
    "12:34:56, 2024:01:02:03:04:05:06:07:08, std::vector, fe80::1, ::1, 2001:db8::7",
    "3.14.15 and 2.7.18",
]


@pytest.mark.parametrize(("text", "wanted"), WITH_EMAILS.items())
def test_emails_are_replaced_and_counted(text, wanted):
    assert mask_emails(text) == (wanted.replace("{}", EMAIL), wanted.count("{}"))


@pytest.mark.parametrize(("text", "wanted"), WITH_ADDRESSES.items())
def test_public_addresses_are_replaced_and_counted(text, wanted):
    found = wanted.replace("{4}", IPV4).replace("{6}", IPV6)
    assert mask_addresses(text) == (found, wanted.count("{"))


@pytest.mark.parametrize("text", WITHOUT_EMAILS)
def test_what_is_no_email_stays(text):
    assert mask_emails(text) == (text, 0)


@pytest.mark.parametrize("text", WITHOUT_ADDRESSES)
def test_what_is_no_public_address_stays(text):
    assert mask_addresses(text) == (text, 0)


PIECES = st.lists(
    st.sampled_from([*"@.:- \n/0123af", "jane", "a.org", "8.8.8.8", "2607:f8b0::1", "::", "1.2", "é", EMAIL]),
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
        patch.setattr(masks, "pairwise", lambda _: [(True, True)])
        patch.setattr(masks, "_INNER_PARTS", 0)
        assert mask_addresses(text) == found


def test_clean_masks_text_and_title_and_counts():
    document = Document("http://a.org/jane@a.org", "Mail jane@a.org at 8.8.8.8. " * 3, {"title": "jane@a.org", "n": 1})
    stage, tally = Clean(language="any", min_tokens=0, mask=("email,ip",)), Tally()
    assert stage.mask == ("email", "ip")
    judged = stage.judge_again(document, with_values=True)
    (kept,) = stage.process([document], tally)
    assert kept.text == f"Mail {EMAIL} at {IPV4}. " * 3
    assert (kept.url, kept.metadata) == ("http://a.org/jane@a.org", {"title": EMAIL, "n": 1})
    assert tally.notes == {"masked_email": 4, "masked_ip": 3}
    assert (judged.values["masked_email"], judged.values["masked_ip"], judged.values["repaired"]) == (3, 3, False)


def test_a_mask_that_is_none_is_refused():
    with pytest.raises(UsageError, match="--mask phone is not known: choose among email, ip"):
        Clean(mask=("phone",))
