"""Addresses: what belongs to the public internet, in every notation."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webtext_prep.web.addresses import BlockedAddressError, OddAddressError, check_host, is_public, literal_address


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
    with pytest.raises(OddAddressError):
        check_host(host, allow_private=True)


def test_names_are_left_to_the_resolver():
    for host in ("example.com", "10.example.com", "0xdeadbeef.com", "localhost"):
        assert literal_address(host) is None


def test_private_hosts_pass_only_where_allowed():
    check_host("127.0.0.1", allow_private=True)
    for host in ("127.0.0.1", "127.1", "2130706433", "0x7f000001", "[::1]", "0"):
        with pytest.raises(BlockedAddressError):
            check_host(host, allow_private=False)
