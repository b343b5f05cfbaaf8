"""Pictures by their address: fetched from the public internet, and from nowhere else.

Whoever may name an address makes this server send a request there. So the address is looked up once and
judged, the connection is made to exactly what was judged, every redirection goes through the same, and
whatever does not end with a picture's bytes is answered in the same words.
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

import httpx

from serve.core.errors import BusyError, FetchError

SECONDS = 10.0  # for all of it: looking up, redirections, and a body that trickles
MAX_BYTES = 20 * 2**20
AT_A_TIME = 8  # fetches of this process
_REDIRECTIONS = 3
LONGEST = 2048  # characters of an address
_PLACES = 4  # of a name that are tried
_CONNECT_SECONDS = 3.0
_PORTS = {"http": 80, "https": 443}
_ASKED_WITH = {
    "Accept": "image/*",
    "Accept-Encoding": "identity",  # else a small answer might unfold to a large one
    "User-Agent": "Lookalike (image search; fetches a picture that a visitor named)",
}
_MOVED = (301, 302, 303, 307, 308)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")  # IPv4 addresses as an IPv6 network reaches them
_GLOBAL_IPV6 = ipaddress.ip_network("2000::/3")
# IANA's registries of addresses for special purposes; of IPv6, those within what is global.
_SPECIAL = [
    ipaddress.ip_network(network)
    for network in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15"),
        *("198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3"),
        "168.63.129.16/32",  # not special to IANA: the inside of a large cloud answers there
        *("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"),
    )
]
_NOT_FETCHED = (
    "there is no picture to be had at this address: it has to be public, and to answer within "
    f"{SECONDS:g} s with no more than {MAX_BYTES // 2**20} MB"
)
_log = logging.getLogger("lookalike.serve")
_slots = threading.BoundedSemaphore(AT_A_TIME)
# Of our own, since nothing can interrupt a lookup and the event loop would wait for its own threads.
_looking_up = ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="lookup")

Address = IPv4Address | IPv6Address
# A place to connect to: the number of a machine, and a port.
Place = tuple[str, int]


def is_public(address: Address) -> bool:
    """Whether a machine of this number is anybody's to ask, and not one inside a network or this one."""
    if isinstance(address, IPv6Address) and address in _NAT64:
        address = IPv4Address(int(address) & 0xFFFFFFFF)
    if isinstance(address, IPv6Address) and address not in _GLOBAL_IPV6:
        return False
    return not any(address in network for network in _SPECIAL) and not _is_own(address)


def look_up(name: str, port: int) -> list[Place]:
    """Where a name leads, best first; an `OSError` where it leads nowhere."""
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys((str(place[0]), int(place[1])) for *_, place in found))


def fetch(address: str) -> bytes:
    """The same as `fetched`, for a thread that waits for it."""
    return asyncio.run(fetched(address))


async def fetched(
    address: str,
    *,
    allowed: Callable[[Address], bool] = is_public,
    look_up: Callable[[str, int], Sequence[Place]] = look_up,
) -> bytes:
    """The bytes at an address of the web, which nobody has looked into yet. Takes up to `SECONDS`.

    Args:
        address: http or https, at the usual port and without a user.
        allowed: whether a machine may be asked.
        look_up: where a name and port lead; asked once for each redirection.

    Raises:
        FetchError: the address is none, or nothing was to be had there; the latter always in the same words.
        BusyError: as many fetches are going on as may.
    """
    url = _checked(address)
    if not _slots.acquire(blocking=False):
        raise BusyError("too many pictures are being fetched: try again in a moment")
    try:
        async with asyncio.timeout(SECONDS):
            return await _followed(url, allowed, look_up)
    except (httpx.HTTPError, httpx.InvalidURL, FetchError, OSError, ValueError) as error:
        _log.debug("nothing fetched: %s: %s", type(error).__name__, error)
        raise FetchError(_NOT_FETCHED) from None
    finally:
        _slots.release()


def _checked(address: str) -> httpx.URL:
    """An address as far as its text goes; a `FetchError` that says what is wrong with it."""
    try:
        url = httpx.URL(address.strip() if len(address) <= LONGEST else "")
    except (httpx.InvalidURL, ValueError):
        url = httpx.URL("")
    if url.scheme not in _PORTS or not url.host:
        raise FetchError("this is no address of a picture: it begins with https:// or http://")
    if url.userinfo:
        raise FetchError("an address with a user name or password in it is not fetched")
    if url.port not in (None, _PORTS[url.scheme]):
        raise FetchError("an address with a port of its own is not fetched")
    return url.copy_with(port=None)


async def _followed(
    url: httpx.URL, allowed: Callable[[Address], bool], look_up: Callable[[str, int], Sequence[Place]]
) -> bytes:
    loop = asyncio.get_running_loop()
    for _ in range(1 + _REDIRECTIONS):
        name = url.raw_host.decode("ascii")
        places = await loop.run_in_executor(_looking_up, look_up, name, _PORTS[url.scheme])
        good = [place for place in places if allowed(ipaddress.ip_address(place[0]))]
        answer = await _asked(url, good[:_PLACES])
        if isinstance(answer, bytes):
            return answer
        url = _checked(str(url.join(answer)))
    raise FetchError("too many redirections")


async def _asked(url: httpx.URL, places: Sequence[Place]) -> bytes | str:
    """What the first of some places that can be reached says: a body, or where else to look."""
    last: Exception = FetchError("no machine that may be asked")
    for machine, port in places:
        there = url.copy_with(host=machine, port=port)
        try:
            # A client each: nothing that a server said is told to the next, and no proxy has a say.
            async with (
                httpx.AsyncClient(
                    verify=_trusted(),
                    trust_env=False,
                    timeout=httpx.Timeout(SECONDS, connect=_CONNECT_SECONDS),
                ) as client,
                client.stream(
                    "GET",
                    there,
                    headers={"Host": url.netloc.decode("ascii"), **_ASKED_WITH},
                    extensions={"sni_hostname": url.raw_host.decode("ascii").rstrip(".")},
                ) as answer,
            ):
                return await _read(answer)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            last = error
    raise last


async def _read(answer: httpx.Response) -> bytes | str:
    headers = answer.headers
    if answer.status_code in _MOVED and "location" in headers:
        return str(headers["location"])
    if answer.status_code != 200 or headers.get("content-encoding", "identity") != "identity":
        raise FetchError(f"status {answer.status_code}, {headers.get('content-encoding', 'not encoded')}")
    body = bytearray()
    async for part in answer.aiter_raw():  # whatever length was declared
        body += part
        if len(body) > MAX_BYTES:
            raise FetchError("too large")
    return bytes(body)


@cache
def _trusted() -> ssl.SSLContext:
    """Whose certificates are believed: httpx's list, or that of SSL_CERT_FILE; it takes a while to read."""
    return httpx.create_ssl_context()


def _is_own(address: Address) -> bool:
    """Whether a number is this machine's: what a firewall keeps from others, it may not keep from itself."""
    family = socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), 9))  # sends nothing
            return bool(ipaddress.ip_address(probe.getsockname()[0]) == address)
    except OSError:  # there is no way to it at all
        return False
