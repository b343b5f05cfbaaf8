"""Fetching images by URL, from the public internet only (protection against SSRF).

A visitor who names a URL makes this server send a request. So the host name is resolved once and its
addresses are checked, the connection goes to a checked address, redirects are checked in the same way, and
every failure after the check of the URL has the same message.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING

from serve.core.errors import BusyError, FetchError

if TYPE_CHECKING:
    import httpx  # slow to import, and most servers fetch nothing

TIMEOUT_SECONDS = 10.0  # in total: DNS, redirects and a slow body
MAX_BYTES = 20 * 2**20
MAX_URL_LENGTH = 2048
MAX_CONCURRENT = 8  # fetches of this process
_MAX_REDIRECTS = 3
_MAX_ADDRESSES = 4  # of a host name that are tried
_CONNECT_SECONDS = 3.0
_PORTS = {"http": 80, "https": 443}
_HEADERS = {
    "Accept": "image/*",
    "Accept-Encoding": "identity",  # a small compressed response might expand to a large one
    "User-Agent": "Lookalike (image search; fetches an image at the request of a user)",
}
_REDIRECT_STATUSES = (301, 302, 303, 307, 308)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")  # IPv4 addresses in an IPv6 network
_GLOBAL_IPV6 = ipaddress.ip_network("2000::/3")
# IANA's special-purpose address registries; of IPv6, those within the global range.
_SPECIAL = [
    ipaddress.ip_network(network)
    for network in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/3",
        "168.63.129.16/32",  # not special to IANA: internal services of a large cloud
        "2001::/23",
        "2001:db8::/32",
        "2002::/16",
        "3fff::/20",
    )
]
_NOT_FETCHED = (
    "no image could be fetched from this URL: it must be public and respond within "
    f"{TIMEOUT_SECONDS:g} s with at most {MAX_BYTES // 2**20} MB"
)
_log = logging.getLogger("lookalike.serve")
_slots = threading.BoundedSemaphore(MAX_CONCURRENT)
# Not asyncio's default pool: DNS lookups cannot be interrupted, and asyncio waits for that pool at the end.
_dns_pool = ThreadPoolExecutor(MAX_CONCURRENT, thread_name_prefix="lookup")

Address = IPv4Address | IPv6Address
# Address and port to connect to.
Endpoint = tuple[str, int]


def is_public(address: Address) -> bool:
    """Return whether an address is on the public internet, and not of a private network or this machine."""
    if isinstance(address, IPv6Address) and address in _NAT64:
        address = IPv4Address(int(address) & 0xFFFFFFFF)
    if isinstance(address, IPv6Address) and address not in _GLOBAL_IPV6:
        return False
    return not any(address in network for network in _SPECIAL) and not _is_local(address)


def look_up(name: str, port: int) -> list[Endpoint]:
    """Return the addresses of a host name, best first; raise an `OSError` if there are none."""
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys((str(address[0]), int(address[1])) for *_, address in found))


async def fetch_image(
    url: str,
    *,
    is_allowed: Callable[[Address], bool] = is_public,
    look_up: Callable[[str, int], Sequence[Endpoint]] = look_up,
) -> bytes:
    """Return the bytes at a URL, unchecked, within `TIMEOUT_SECONDS`.

    Args:
        url: http or https URL with the default port and without user info.
        is_allowed: Whether to connect to an address.
        look_up: Resolver of host name and port, called once per redirect.

    Raises:
        FetchError: The URL is invalid, or nothing could be fetched; the latter always with the same message.
        BusyError: Too many fetches are in progress.
    """
    import httpx

    checked = _check(url)
    if not _slots.acquire(blocking=False):
        raise BusyError("too many images are being fetched: try again in a moment")
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await _follow_redirects(checked, is_allowed, look_up)
    except (httpx.HTTPError, httpx.InvalidURL, FetchError, OSError, ValueError) as error:
        _log.debug("nothing fetched: %s: %s", type(error).__name__, error)
        raise FetchError(_NOT_FETCHED) from None
    finally:
        _slots.release()


def _check(text: str) -> httpx.URL:
    """Return a URL without its port; raise a `FetchError` if it is not allowed."""
    import httpx

    try:
        url = httpx.URL(text.strip() if len(text) <= MAX_URL_LENGTH else "")
    except (httpx.InvalidURL, ValueError):
        url = httpx.URL("")
    if url.scheme not in _PORTS or not url.host:
        raise FetchError("invalid URL: it must begin with https:// or http://")
    if url.userinfo:
        raise FetchError("the URL must not contain a user name or password")
    if url.port not in (None, _PORTS[url.scheme]):
        raise FetchError("the URL must have no port, or the default one")
    return url.copy_with(port=None)


async def _follow_redirects(
    url: httpx.URL,
    is_allowed: Callable[[Address], bool],
    look_up: Callable[[str, int], Sequence[Endpoint]],
) -> bytes:
    loop = asyncio.get_running_loop()
    for _ in range(1 + _MAX_REDIRECTS):
        name = url.raw_host.decode("ascii")
        endpoints = await loop.run_in_executor(_dns_pool, look_up, name, _PORTS[url.scheme])
        allowed = [endpoint for endpoint in endpoints if is_allowed(ipaddress.ip_address(endpoint[0]))]
        answer = await _request(url, allowed[:_MAX_ADDRESSES])
        if isinstance(answer, bytes):
            return answer
        url = _check(str(url.join(answer)))
    raise FetchError("too many redirects")


async def _request(url: httpx.URL, endpoints: Sequence[Endpoint]) -> bytes | str:
    """Return the body from the first endpoint that accepts a connection, or the location of a redirect."""
    import httpx

    failure: Exception = FetchError("the host has no public address")
    for address, port in endpoints:
        try:
            # A new client each, so that no cookies are carried over; without proxies of the environment.
            async with (
                httpx.AsyncClient(
                    verify=_certificates(),
                    trust_env=False,
                    timeout=httpx.Timeout(TIMEOUT_SECONDS, connect=_CONNECT_SECONDS),
                ) as client,
                client.stream(
                    "GET",
                    url.copy_with(host=address, port=port),
                    headers={"Host": url.netloc.decode("ascii"), **_HEADERS},
                    extensions={"sni_hostname": url.raw_host.decode("ascii").rstrip(".")},
                ) as response,
            ):
                return await _read(response)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            failure = error
    raise failure


async def _read(response: httpx.Response) -> bytes | str:
    headers = response.headers
    if response.status_code in _REDIRECT_STATUSES and "location" in headers:
        return str(headers["location"])
    if response.status_code != 200 or headers.get("content-encoding", "identity") != "identity":
        encoding = headers.get("content-encoding", "not encoded")
        raise FetchError(f"status {response.status_code}, {encoding}")
    body = bytearray()
    async for part in response.aiter_raw():  # counted, independent of the Content-Length
        body += part
        if len(body) > MAX_BYTES:
            raise FetchError("too large")
    return bytes(body)


@cache
def _certificates() -> ssl.SSLContext:
    """Load the trusted certificates of httpx or SSL_CERT_FILE, which takes a while."""
    import httpx

    return httpx.create_ssl_context()


def _is_local(address: Address) -> bool:
    """Return whether an address belongs to this machine, whose firewall may not protect it from itself."""
    family = socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), 9))  # sends nothing
            return bool(ipaddress.ip_address(probe.getsockname()[0]) == address)
    except OSError:  # no route to it
        return False
