"""Who may come in: a token for programs, name and password for people. Secrets are kept as digests only."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from retrieval.cli import print_status
from retrieval.errors import InputError

TOKEN, PASSWORD = "LOOKALIKE_TOKEN", "LOOKALIKE_PASSWORD"
_SHORTEST = {TOKEN: 16, PASSWORD: 8}
_MAKE_ONE = '`python -c "import secrets; print(secrets.token_urlsafe(24))"` makes one'


@dataclass(frozen=True)
class Credentials:
    """Who may come in, as SHA-256 digests, which are not printed either.

    Attributes:
        tokens: of every token that is accepted.
        user: the name that goes with the password, or `None`.
        pair: of `name:password`, or `None`.
    """

    tokens: tuple[bytes, ...] = field(default=(), repr=False)
    user: str | None = None
    pair: bytes | None = field(default=None, repr=False)

    def who(self, authorization: str) -> str | None:
        """The name of who sends this `Authorization` header, `None` where it is not right.

        Takes the same time for a secret that is nearly right as for one that is all wrong.
        """
        scheme, _, value = authorization.partition(" ")
        value = value.strip()
        if scheme.lower() == "bearer":
            found = _digest(value)
            return "token" if any(hmac.compare_digest(found, token) for token in self.tokens) else None
        if scheme.lower() == "basic" and self.pair is not None:
            try:
                found = hashlib.sha256(base64.b64decode(value, validate=True)).digest()
            except (binascii.Error, ValueError):
                return None
            return self.user if hmac.compare_digest(found, self.pair) else None
        return None


def read_credentials(
    token_file: Path | None, user: str | None, password_file: Path | None
) -> Credentials | None:
    """Tokens and password from files, or from the environment; `None` where nobody has to sign in.

    Args:
        token_file: one token a line; any of them is accepted, so that one can follow another.
        user: the name for the page.
        password_file: the password on its first line.

    Raises:
        InputError: a file that cannot be read or holds nothing usable, or a name without a password.
    """
    tokens = _secrets(token_file, TOKEN)
    passwords = _secrets(password_file, PASSWORD)
    if bool(passwords) != bool(user):
        raise InputError(f"--user needs a password and a password --user: --password-file FILE or {PASSWORD}")
    if len(passwords) > 1:
        raise InputError(f"{password_file}: more than one line; a password is one")
    if user and ":" in user:
        raise InputError(f"--user {user}: the name may hold no colon")
    pair = _digest(f"{user}:{passwords[0]}") if passwords else None
    return Credentials(tuple(map(_digest, tokens)), user, pair) if tokens or pair else None


def _secrets(file: Path | None, variable: str) -> list[str]:
    if file is None:
        where, text = variable, os.environ.get(variable, "")
    else:
        where, text = str(file), _read(file)
    found = [line.strip() for line in text.splitlines() if line.strip()]
    if file is not None and not found:
        raise InputError(f"{where}: empty; it is to hold a secret on a line of its own")
    shortest = _SHORTEST[variable]
    if any(len(secret) < shortest for secret in found):
        raise InputError(f"{where}: shorter than {shortest} characters; {_MAKE_ONE}")
    if variable == TOKEN and not all(secret.isascii() and secret.isprintable() for secret in found):
        raise InputError(f"{where}: a token travels as plain ASCII letters, digits and signs; {_MAKE_ONE}")
    return found


def _read(file: Path) -> str:
    try:
        if file.stat().st_mode & stat.S_IROTH:
            print_status(f"{file}: everybody on this machine can read it; chmod 600 {file}")
        return file.read_text("utf-8")
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror}); it is to hold a secret") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: not a text file") from error


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
