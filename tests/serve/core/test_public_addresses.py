"""Public and private addresses, in every notation."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve.core import url_fetcher
from serve.core.errors import FetchError
from serve.core.url_fetcher import Address, Endpoint, fetch_image, is_public
from tests.serve.web_server import http, web

# IANA's special-purpose addresses, and IPv6 addresses that contain one.
INSIDE = """
    0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24
    192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4
    255.255.255.255/32 168.63.129.16/32
    ::/128 ::1/128 100::/64 fc00::/7 fe80::/10 fec0::/10 ff00::/8 5f00::/16 2001:db8::/32 3fff::/20
    2001::/32 2001:10::/28 2001:20::/28 2001:2::/48 ::ffff:0:0/96 ::/96 ::ffff:0:0:0/96 64:ff9b:1::/48
    2002::/16 64:ff9b::7f00:0/104 64:ff9b::a00:0/104 64:ff9b::a9fe:0/112 64:ff9b::c0a8:0/112
"""
HOSTS = """
    127.0.0.1 127.1 2130706433 0x7f000001 0x7f.1 017700000001 0177.0.0.1 0 0.0.0.0 localhost localhost.
    LOCALHOST [::1] [::] [::ffff:127.0.0.1] [::ffff:7f00:1] [::127.0.0.1] [64:ff9b::127.0.0.1] [2002:7f00:1::]
    [fe80::1%25lo] [0:0:0:0:0:0:0:1] 169.254.169.254 [fd00:ec2::254] 100.100.100.200 168.63.129.16
    192.168.0.1 10.1 %31%32%37.0.0.1 １２７.0.0.1 127。0。0。1 ①②⑦.0.0.1 ⓛocalhost 127.0.0.1%00.example
"""
NO_ADDRESSES = r"""
    a.png /a.png //a.example/b.png http: http:// http:///a.png https:a.example ftp://a.example/b.png
    file:///etc/passwd gopher://a.example/ data:image/png;base64,AAAA javascript:alert(1)
    blob:http://a.example/b unix:///run/x.sock jar:http://a.example!/b http://u@a.example/
    http://u:p@a.example/ http://a.example\@127.0.0.1/ http://@b.example@c/ http://a.example:8080/
    http://a.example:22/ https://a.example:80/ http://a.example:443/ http://a.example:0/
    http://a.example:99999/ http://a.example:x/ http://[::1/
"""
OTHERS = [
    "",
    " ",
    "http://a.example\r\nX: y/",
    "http://a.example/\0",
    "http://\ud800/",
    f"http://a/{2048 * 'a'}",
]


@pytest.mark.parametrize("network", INSIDE.split())
def test_special_purpose_networks_are_not_public(network: str) -> None:
    @settings(max_examples=30)
    @given(st.ip_addresses(network=network))
    def attempt(address: Address) -> None:
        assert not is_public(address)

    attempt()
    inside = ipaddress.ip_network(network)
    assert not is_public(inside[0])
    assert not is_public(inside[-1])


@settings(max_examples=500)
@given(st.ip_addresses())
def test_public_addresses_are_global_according_to_ipaddress(address: Address) -> None:
    if is_public(address):
        assert address.is_global
        assert not address.is_multicast
    elif isinstance(address, ipaddress.IPv4Address):  # Python knows all but a few of these networks
        known = not address.is_global or address.is_multicast
        few = ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32")
        assert known or any(address in ipaddress.ip_network(network) for network in few)


@pytest.mark.parametrize("text", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "64:ff9b::808:808"])
def test_internet_addresses_are_public(text: str) -> None:
    assert is_public(ipaddress.ip_address(text))


def test_own_address_is_not_public() -> None:
    assert url_fetcher._is_local(ipaddress.ip_address("127.0.0.1"))
    assert not url_fetcher._is_local(ipaddress.ip_address("192.0.2.1"))


@pytest.mark.parametrize("host", HOSTS.split())
def test_private_hosts_are_refused_in_every_spelling(host: str) -> None:
    with web(http(b"secret")) as trap:

        def look_up(name: str, port: int) -> Sequence[Endpoint]:
            """Resolve a name to a port with a listener."""
            return [(machine, trap.port) for machine, _ in url_fetcher.look_up(name, port)]

        with pytest.raises(FetchError):
            asyncio.run(fetch_image(f"http://{host}/", look_up=look_up))
        assert trap.heads == []
    with pytest.raises(FetchError):
        asyncio.run(fetch_image(f"https://{host}/"))


@pytest.mark.parametrize("address", [*NO_ADDRESSES.split(), *OTHERS])
def test_invalid_urls_are_refused_before_the_dns_lookup(address: str) -> None:
    def look_up(name: str, port: int) -> Sequence[Endpoint]:
        raise AssertionError(name)

    with pytest.raises(FetchError):
        asyncio.run(fetch_image(address, look_up=look_up))
