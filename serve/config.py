"""What can be set about a server: from the command line, the environment, a file, or left as it is."""

from __future__ import annotations

import ipaddress
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from retrieval.cli import print_status
from retrieval.errors import InputError, did_you_mean
from serve.addresses import named
from serve.core.permissions import Permissions
from serve.http.credentials import PASSWORD, TOKEN, Credentials, read_credentials

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
_RATE = 50.0
_SECRETS = {"token": TOKEN, "password": PASSWORD}


@dataclass(frozen=True)
class Settings:
    """One server.

    Attributes:
        galleries: the folders it serves, by name; the first is what is meant where none is named.
        host: the address to listen on.
        port: the port; 0 takes a free one.
        workers: processes that share the address.
        page: whether people get a page, or programs the API alone.
        insecure: whether addresses that other machines reach are allowed although nobody signs in.
        credentials: who may come in; `None` lets everybody in.
        names: what a request's Host header may call the server; `*` for anything.
        origins: other sites whose pages may ask, `https://shop.example`.
        proxies: addresses and networks whose `X-Forwarded-` headers are believed.
        permissions: what visitors may do beyond looking.
        rate: requests a second and client; 0 for no limit.
        max_body: of a request, in MB (2^20 bytes).
        deadline: seconds that a request may take, and that the end of the server waits for one.
        log_level: error, warning, info or debug.
        log_format: text or json.
    """

    galleries: Mapping[str, Path]
    host: str = "127.0.0.1"
    port: int = 7860
    workers: int = 1
    page: bool = True
    insecure: bool = False
    credentials: Credentials | None = None
    names: tuple[str, ...] = LOCAL_NAMES
    origins: tuple[str, ...] = ()
    proxies: tuple[str, ...] = ()
    permissions: Permissions = field(default_factory=Permissions)
    rate: float = 0
    max_body: int = 32
    deadline: int = 30
    log_level: str = "warning"
    log_format: str = "text"


def settings(
    gallery: Sequence[str],
    *,
    host: str,
    page: bool,
    workers: int,
    token_file: Path | None,
    user: str | None,
    password_file: Path | None,
    insecure: bool,
    allow_host: Sequence[str],
    allow_origin: Sequence[str],
    trusted_proxy: Sequence[str],
    allow_changes: bool,
    allow_urls: bool,
    rate: float | None,
    **rest: Any,
) -> Settings:
    """The settings that the options of `lookalike serve` come to.

    Raises:
        InputError: options that cannot be used, or not with each other.
    """
    credentials = read_credentials(token_file, user, password_file)
    if page and workers > 1:
        print_status(
            f"{workers} workers serve the API alone: a visitor's page lives in one process (--workers 1)"
        )
        page = False
    if page and credentials and not credentials.pair:
        raise InputError("a token is for programs: add --user and --password-file for the page, or --no-page")
    proxies = tuple(_proxy(one) for one in trusted_proxy)
    if proxies and not credentials and not insecure:
        raise InputError(
            "--trusted-proxy: a proxy lets other machines in, and nobody signs in here; add --user with "
            "--password-file, or --insecure if the proxy sees to it"
        )
    alone = host.lower() in LOCAL_NAMES and not proxies
    return Settings(
        galleries=named(gallery),
        host=host,
        page=page,
        workers=workers,
        credentials=credentials,
        insecure=insecure,
        names=_names(host, allow_host, anyone=insecure or credentials is not None),
        origins=tuple(_origin(one) for one in allow_origin),
        proxies=proxies,
        permissions=Permissions(changes=allow_changes, urls=allow_urls),
        rate=rate if rate is not None else 0 if alone else _RATE,
        **rest,
    )


def read_file(file: Path, known: Collection[str], negated: Mapping[str, str]) -> dict[str, Any]:
    """The settings in a TOML file, by the names of the options with `_` for `-`.

    Args:
        known: these names.
        negated: names that say the contrary of one, which only the command line knows: "no_page" of "page".

    Raises:
        InputError: the file cannot be read, is no TOML, or sets something that is not `known`.
    """
    try:
        found = tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"--config {file}: cannot be read ({error.strerror})") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"--config {file}: not TOML ({error})") from error
    settings = {}
    for key, value in found.items():
        name = key.replace("-", "_")
        if name not in known:
            hint = hint_at(name, known)
            if name in negated:
                hint = f"it is written {negated[name].replace('_', '-')} = false"
            raise InputError(f"--config {file}: unknown setting {key!r}; {hint}")
        parts = value if isinstance(value, list) else [value]
        if not all(isinstance(part, str | int | float) for part in parts):
            raise InputError(f"--config {file}: {key} is to be text, a number, true, false, or a list")
        settings[name] = value
    return settings


def hint_at(name: str, known: Collection[str]) -> str:
    """What somebody may have meant who set something that is not `known`; names with `_` for `-`."""
    if name in _SECRETS:
        return f"a secret comes in {_SECRETS[name]}, or in a file that '{name}-file' names"
    names = [one.replace("_", "-") for one in sorted(known)]
    return did_you_mean(name.replace("_", "-"), names, "`lookalike serve --help` lists all settings")


def _names(host: str, listed: Sequence[str], anyone: bool) -> tuple[str, ...]:
    for name in listed:
        if "*" in name.removeprefix("*.") or not name:
            raise InputError(f"--allow-host {name}: a name such as search.example.com or *.example.com")
    if anyone and not listed:  # a site that calls itself ours finds nobody signed in
        return ("*",)
    return (*LOCAL_NAMES, host.lower(), *(name.lower() for name in listed))


def _origin(text: str) -> str:
    parts = urlsplit(text)
    plain = f"{parts.scheme}://{parts.netloc}".lower()
    if parts.scheme not in ("http", "https") or not parts.netloc or "*" in text or text.lower() != plain:
        raise InputError(f"--allow-origin {text}: one site a time, such as https://shop.example")
    return plain


def _proxy(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text))
    except ValueError as error:
        raise InputError(f"--trusted-proxy {text}: an address or network, such as 10.0.0.0/8") from error
