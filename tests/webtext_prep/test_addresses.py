"""Addresses: what belongs to the public internet, in every notation."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webtext_prep.crawl.http import client
from webtext_prep.crawl.http.client import host_and_origin, parse_url
from webtext_prep.crawl.http.connections import BlockedAddressError, check_host, is_allowed, is_public, literal_address
from webtext_prep.crawl.http.redirects import next_url
from webtext_prep.urls.urls import url_key, without_credentials


@pytest.mark.parametrize("address", ["8.8.8.8", "93.184.215.14", "2606:2800:21f:cb07::1", "::ffff:8.8.8.8"])
def test_public_addresses_pass(address):
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.255.0.9", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254",
        "100.64.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.192", "192.0.2.1", "198.18.0.1", "203.0.113.9",
        "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255", "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1",
        "fd00:ec2::254", "fec0::1", "ff02::1", "2001:db8::1", "2001::1", "100::1", "::ffff:127.0.0.1",
        "::ffff:10.0.0.1", "::127.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b:1::1", "2002:7f00:1::", "2002:a9fe:a9fe::1",
    ],
)  # fmt: skip
def test_other_addresses_do_not(address):
    assert not is_public(address)


@given(st.one_of(st.ip_addresses(v=4, network="10.0.0.0/8"), st.ip_addresses(v=4, network="127.0.0.0/8")))
def test_no_wrapping_makes_a_private_address_public(address):
    number = int(address)
    wrapped = [
        f"::ffff:{address}",
        f"64:ff9b::{address}",
        str(ipaddress.IPv6Address((0x2002 << 112) | (number << 80))),
    ]
    assert not any(is_public(text) for text in wrapped)


@given(st.ip_addresses(v=4))
def test_every_notation_of_an_address_is_the_same_address(address):
    number = int(address)
    a, b, c, d = address.packed
    notations = [
        str(number),
        hex(number),
        f"0{number:o}",
        f"{a}.{number & 0xFFFFFF}",
        f"0x{a:x}.{b}.0{c:o}.{d}",
        f"{address}.",
    ]
    assert {literal_address(text) for text in notations} == {str(address)}


@pytest.mark.parametrize("host", ["1.2.3.4.5", "999.1.1.1", "0x", "4294967296", "08.1.1.1", "12345::g"])
def test_numbers_that_are_no_address_are_refused(host):
    with pytest.raises(ValueError, match="is not a valid address"):
        check_host(host, private="all")


def test_names_are_left_to_the_resolver():
    for host in ("example.com", "10.example.com", "0xdeadbeef.com", "localhost"):
        assert literal_address(host) is None


def test_private_hosts_pass_only_where_allowed():
    check_host("127.0.0.1", private="all")
    for host in ("127.0.0.1", "127.1", "2130706433", "0x7f000001", "[::1]", "0"):
        with pytest.raises(BlockedAddressError):
            check_host(host, private="none")


def test_loopback_alone_opens_this_machine_and_nothing_else():
    """What a site on loopback needs also opened the metadata services of clouds and the whole private network."""
    for host in ("127.0.0.1", "127.1", "[::1]", "[::ffff:127.0.0.1]", "0x7f000001"):
        check_host(host, private="loopback")
    for host in ("169.254.169.254", "10.0.0.1", "192.168.1.1", "100.100.100.200", "[fe80::1]", "[fd00::1]", "0.0.0.0"):
        with pytest.raises(BlockedAddressError):
            check_host(host, private="loopback")
        check_host(host, private="all")
    assert is_allowed("8.8.8.8", "loopback") and not is_allowed("::1%lo", "loopback")


@pytest.mark.parametrize("host", ["%31%32%37%2e0.0.1", "%31%36%39.254.169.254", "127%2E0%2e0.1", "%3127.1"])
def test_a_host_in_percent_escapes_is_checked_as_what_it_is(host):
    """An address written as %31%32%37.0.0.1 passed the check of hosts, and only the resolver stood in its way."""
    with pytest.raises(BlockedAddressError):
        check_host(host, private="none")
    with pytest.raises(BlockedAddressError):
        parse_url(f"http://{host}/", "none")


def test_a_name_in_percent_escapes_is_asked_for_by_its_letters():
    assert str(parse_url("http://ex%61mple.com/a%62", "none")) == "http://example.com/ab"


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("http://user:secret@example.com/", "http://example.com/"),
        ("https://user@example.com:8443/a?b#c", "https://example.com:8443/a?b#c"),
        ("http://us@er:sec@ret@example.com", "http://example.com"),
        ("http://user:secret@[::1]/", "http://[::1]/"),
        ("HTTP://user:secret@example.com/~a@b", "HTTP://example.com/~a@b"),
        (" http://user:secret@example.com/", " http://example.com/"),
        ("http:\\\\user:secret@example.com", "http:\\\\example.com"),
        ("http:user:secret@example.com", "http:example.com"),
        ("ftp://user:secret@example.com/", "ftp://example.com/"),
        ("//user:secret@example.com/", "//example.com/"),
        ("http://example.com/user:secret@here", "http://example.com/user:secret@here"),
        ("http://example.com?q=a@b", "http://example.com?q=a@b"),
        ("mailto:somebody@example.com", "mailto:somebody@example.com"),
        ("no address", "no address"),
    ],
)
def test_user_and_password_are_taken_out_of_a_url_and_nothing_else(url, plain):
    assert without_credentials(url) == plain
    assert without_credentials(plain) == plain


def test_credentials_do_not_matter_for_which_page_a_url_names():
    assert url_key("http://user:secret@example.com/a") == url_key("http://example.com/a")


def test_a_redirect_carries_no_credentials_on():
    """A redirect to a URL with user and password put both into the document's metadata."""
    assert next_url("http://a.org/x", "http://user:secret@b.org/y#z") == "http://b.org/y"
    assert next_url("http://user:secret@a.org/x", "y") == "http://a.org/y"
    assert next_url("http://a.org/x", "//user:secret@b.org/y") == "http://b.org/y"
    assert "secret" not in str(parse_url("http://user:secret@a.org/", "none"))


@given(
    st.sampled_from(["http://", "https://", "HTTP://", "ftp://", "//", ""]),
    st.text(alphabet="aB9.-:@/%[]?#\\_é １\ud800\t\n", max_size=12),
    st.sampled_from(["", "/", "/é", "?a@b", "#x", ":80/a", ":443", ":99999/", ":/x", "/\ud800"]),
)
def test_the_host_and_origin_of_a_url_are_those_that_yarl_finds(scheme, host, rest):
    url = scheme + host + rest

    def found(function):
        try:
            return function(url)
        except ValueError:
            return "no origin"

    assert found(host_and_origin) == found(client._parsed)
