"""Server settings: command-line options, TOML file and credentials."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import os
import stat
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from retrieval.cli import print_status
from retrieval.commands.device_options import join_runtime
from retrieval.errors import InputError, did_you_mean
from retrieval.model.runtime import Runtime
from serve.addresses import parse_galleries
from serve.core.permissions import Permissions

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
TOKEN, PASSWORD = "LOOKALIKE_TOKEN", "LOOKALIKE_PASSWORD"  # environment variables
# Limits of a client of a server that other machines can reach.
PUBLIC_RATE = 50.0
PUBLIC_CONNECTIONS = 128  # a quarter of all
_SECRETS = {"token": TOKEN, "password": PASSWORD}
_MIN_LENGTH = {TOKEN: 16, PASSWORD: 8}
_GENERATE = '`python -c "import secrets; print(secrets.token_urlsafe(24))"` generates one'


@dataclass(frozen=True)
class Credentials:
    """Accepted credentials as SHA-256 digests, which the representation leaves out.

    Attributes:
        tokens: Digests of the accepted tokens.
        user: User name that belongs to the password, or None.
        pair: Digest of `name:password`, or None.
    """

    tokens: tuple[bytes, ...] = field(default=(), repr=False)
    user: str | None = None
    pair: bytes | None = field(default=None, repr=False)

    def authenticate(self, authorization: str) -> str | None:
        """Return the user of an `Authorization` header, or None if its credentials are wrong.

        Compares in constant time.
        """
        scheme, _, value = authorization.partition(" ")
        value = value.strip()
        if scheme.lower() == "bearer":
            digest = _digest(value)
            matches = [hmac.compare_digest(digest, token) for token in self.tokens]  # all of them
            return "token" if any(matches) else None
        if scheme.lower() == "basic" and self.pair is not None:
            try:
                digest = hashlib.sha256(base64.b64decode(value, validate=True)).digest()
            except (binascii.Error, ValueError):
                return None
            return self.user if hmac.compare_digest(digest, self.pair) else None
        return None


@dataclass(frozen=True)
class Settings:
    """Settings of one server.

    Attributes:
        galleries: Gallery folders by name; the first is served at the root.
        host: Address to listen on.
        port: Port to listen on; 0 picks a free one.
        workers: Processes that share the address.
        page: Whether to serve the page beside the API.
        show: Metadata columns that the page shows with each image.
        insecure: Whether a host that other machines can reach is allowed without sign-in.
        credentials: Accepted credentials; None requires no sign-in.
        names: Accepted names in the Host header; `*` accepts any.
        origins: Sites allowed to send cross-origin requests, such as `https://shop.example`.
        proxies: Addresses and networks of trusted proxies.
        permissions: Permissions of visitors beyond searching.
        query_log: Folder of the log of searches; None for no log.
        against: Gallery whose hits are mixed into those of recorded searches; None for none.
        rate: Requests per second and client; 0 for no limit.
        connections: Open connections of one client; 0 for no limit.
        max_body: Size of the largest request body, in MB (2^20 bytes).
        max_pixels: Megapixels that the images of one request may have to decode.
        detector: ONNX model that finds objects in a picture; None for the embedding map.
        deadline: Seconds within which a request is answered, also at shutdown.
        runtime: Device, provider and batch size of the models.
        on_device: Folder of ONNX Runtime for browsers, to which the models are given; None for neither.
        log_level: error, warning, info or debug.
        log_format: text or json.
    """

    galleries: Mapping[str, Path]
    host: str = "127.0.0.1"
    port: int = 7860
    workers: int = 1
    page: bool = True
    show: tuple[str, ...] = ()
    insecure: bool = False
    credentials: Credentials | None = None
    names: tuple[str, ...] = LOCAL_NAMES
    origins: tuple[str, ...] = ()
    proxies: tuple[str, ...] = ()
    permissions: Permissions = field(default_factory=Permissions)
    query_log: Path | None = None
    against: Path | None = None
    rate: float = 0
    connections: int = 0
    max_body: int = 32
    max_pixels: int = 200
    detector: Path | None = None
    deadline: int = 30
    runtime: Runtime = Runtime()  # noqa: RUF009
    on_device: Path | None = None
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
    share_pictures: int,
    rate: float | None,
    connections: int | None,
    device: Runtime,
    provider: str | None,
    batch_size: int | None,
    on_device: Path | None = None,
    query_log: Path | None = None,
    against: Path | None = None,
    **unchanged: Any,
) -> Settings:
    """Build and check the settings from the options of `lookalike serve`, one argument per option.

    Args:
        unchanged: Options that are settings of the same name and type.

    Raises:
        InputError: An option is invalid, or invalid in combination with another.
    """
    credentials = read_credentials(token_file, user, password_file)
    if page and credentials and not credentials.pair:
        raise InputError("a token is for programs: add --user and --password-file for the page, or --no-page")
    if on_device and not page:
        raise InputError("--on-device: it is the page that searches on the device; leave out --no-page")
    proxies = tuple(_proxy(address) for address in trusted_proxy)
    if proxies and not credentials and not insecure:
        raise InputError(
            "--trusted-proxy: a proxy lets other machines in, and nobody signs in here; add --user with "
            "--password-file, or --insecure if the proxy handles sign-in"
        )
    galleries = parse_galleries(gallery)
    if against is not None:
        if query_log is None:
            raise InputError("--against: the log of searches says which gallery won; add --query-log FOLDER")
        if on_device is not None:
            raise InputError("--against: both models must see the picture, so not with --on-device")
        if len(galleries) > 1:
            raise InputError("--against: give one gallery, which is compared with it")
    is_local = host.lower() in LOCAL_NAMES and not proxies
    return Settings(
        galleries=galleries,
        host=host,
        page=page,
        workers=workers,
        credentials=credentials,
        insecure=insecure,
        names=_host_names(host, allow_host, any_name=insecure or credentials is not None),
        origins=tuple(_origin(url) for url in allow_origin),
        proxies=proxies,
        permissions=Permissions(changes=allow_changes, urls=allow_urls, sharing=share_pictures),
        rate=rate if rate is not None else 0 if is_local else PUBLIC_RATE,
        connections=connections if connections is not None else 0 if is_local else PUBLIC_CONNECTIONS,
        runtime=join_runtime(device, provider, batch_size),
        on_device=on_device,
        query_log=query_log,
        against=against,
        **unchanged,
    )


def read_file(file: Path, known: Collection[str], negated: Mapping[str, str]) -> dict[str, Any]:
    """Read settings from a TOML file, keyed by option name with `_` for `-`.

    Args:
        file: TOML file.
        known: Names of the options.
        negated: Options by the name of their negation on the command line, such as "page" by "no_page".

    Raises:
        InputError: The file cannot be read, is not TOML, or has an unknown setting.
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
            hint = setting_hint(name, known)
            if name in negated:
                hint = f"write {negated[name].replace('_', '-')} = false"
            raise InputError(f"--config {file}: unknown setting {key!r}; {hint}")
        parts = value if isinstance(value, list) else [value]
        if not all(isinstance(part, str | int | float) for part in parts):
            raise InputError(f"--config {file}: {key} must be text, a number, true, false, or a list")
        settings[name] = value
    return settings


def setting_hint(name: str, known: Collection[str]) -> str:
    """Return a hint for an unknown setting.

    Args:
        name: The unknown setting, with `_` for `-`.
        known: Names of the options.
    """
    if name in _SECRETS:
        return f"set {_SECRETS[name]}, or name a file with '{name}-file'"
    names = [option.replace("_", "-") for option in sorted(known)]
    return did_you_mean(name.replace("_", "-"), names, "`lookalike serve --help` lists all settings")


def read_credentials(
    token_file: Path | None, user: str | None, password_file: Path | None
) -> Credentials | None:
    """Read credentials from files, or from the environment. Return None if there are none.

    Args:
        token_file: File with one token per line; all are accepted, which allows rotation.
        user: User name for the password.
        password_file: File with the password on its only line.

    Raises:
        InputError: A file cannot be read or has no usable secret, or a name comes without a password.
    """
    tokens = _read_secrets(token_file, TOKEN)
    passwords = _read_secrets(password_file, PASSWORD)
    if bool(passwords) != bool(user):
        given, missing = (
            ("--user", f"a password (--password-file or {PASSWORD})") if user else ("a password", "--user")
        )
        raise InputError(f"{given} is given without {missing}; sign-in needs both")
    if len(passwords) > 1:
        raise InputError(f"{password_file}: more than one line; write the password on a single line")
    if user and ":" in user:
        raise InputError(f"--user {user}: the name must not contain a colon")
    pair = _digest(f"{user}:{passwords[0]}") if passwords else None
    return Credentials(tuple(map(_digest, tokens)), user, pair) if tokens or pair else None


def _read_secrets(file: Path | None, variable: str) -> list[str]:
    if file is None:
        source, text = variable, os.environ.get(variable, "")
    else:
        source, text = str(file), _read_secret_file(file)
    found = [line.strip() for line in text.splitlines() if line.strip()]
    if file is not None and not found:
        raise InputError(f"{source}: empty; write a secret on a line of its own")
    min_length = _MIN_LENGTH[variable]
    if any(len(secret) < min_length for secret in found):
        raise InputError(f"{source}: shorter than {min_length} characters; {_GENERATE}")
    if variable == TOKEN and not all(secret.isascii() and secret.isprintable() for secret in found):
        raise InputError(f"{source}: a token must be printable ASCII; {_GENERATE}")
    return found


def _read_secret_file(file: Path) -> str:
    try:
        if file.stat().st_mode & stat.S_IROTH:
            print_status(f"{file}: all users of this machine can read it; chmod 600 {file}")
        return file.read_text("utf-8")
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror}); it must contain a secret") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: not a text file") from error


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _host_names(host: str, listed: Sequence[str], any_name: bool) -> tuple[str, ...]:
    for name in listed:
        if "*" in name.removeprefix("*.") or not name:
            raise InputError(
                f"--allow-host {name}: not a host name; use one such as search.example.com or *.example.com"
            )
    if any_name and not listed:  # DNS rebinding gains nothing: the other site has no credentials
        return ("*",)
    return (*LOCAL_NAMES, host.lower(), *(name.lower() for name in listed))


def _origin(text: str) -> str:
    parts = urlsplit(text)
    plain = f"{parts.scheme}://{parts.netloc}".lower()
    if parts.scheme not in ("http", "https") or not parts.netloc or "*" in text or text.lower() != plain:
        raise InputError(f"--allow-origin {text}: one site at a time, such as https://shop.example")
    return plain


def _proxy(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text))
    except ValueError as error:
        raise InputError(f"--trusted-proxy {text}: an address or network, such as 10.0.0.0/8") from error
