"""Sign-in by token and by password."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

from retrieval.errors import InputError
from serve.config import PASSWORD, TOKEN, Credentials, read_credentials
from serve.http.access_log import HEADERS
from serve.http.auth import AuthMiddleware
from serve.page.assets import files_path
from tests.serve.asgi_server import get
from tests.serve.serving import SERVE, Server, serving

OLD, NEW = "the-token-of-last-week", "the-token-of-this-week"
USER, SECRET = "ann", "correct horse: battery ☂"


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A token file and a password file."""
    folder = tmp_path_factory.mktemp("secrets")
    for name, text in (("tokens", f"{OLD}\n{NEW}\n"), ("password", f"{SECRET}\n")):
        (folder / name).write_text(text)
        (folder / name).chmod(0o600)
    return folder / "tokens", folder / "password"


@pytest.fixture(scope="module")
def credentials(files: tuple[Path, Path]) -> Credentials:
    found = read_credentials(files[0], USER, files[1])
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("header", "user"),
    [
        (f"Bearer {OLD}", "token"),
        (f"bearer  {NEW} ", "token"),
        (_basic(USER, SECRET), USER),
        (_basic(USER, SECRET).replace("Basic", "BASIC"), USER),
        (f"Bearer {SECRET}", None),
        (f"Bearer {OLD}{NEW}", None),
        (f"Bearer {OLD[:-1]}", None),
        ("Bearer", None),
        ("Bearer ", None),
        (_basic(USER, SECRET[:-1]), None),
        (_basic("bob", SECRET), None),
        (_basic("", f"{USER}:{SECRET}"), None),
        (_basic(USER, OLD), None),
        (f"Basic {USER}:{SECRET}", None),
        ("Basic ====", None),
        ("Basic \xff\xff", None),
        ("", None),
        (OLD, None),
    ],
)
def test_authorization_header_identifies_the_user(
    credentials: Credentials, header: str, user: str | None
) -> None:
    assert credentials.authenticate(header) == user


@given(scheme=st.sampled_from(["Bearer ", "Basic ", ""]), value=st.text())
def test_arbitrary_authorization_headers_are_rejected(
    credentials: Credentials, scheme: str, value: str
) -> None:
    assert credentials.authenticate(scheme + value) is None


def test_secrets_are_not_in_the_representation(credentials: Credentials) -> None:
    assert repr(credentials) == "Credentials(user='ann')"


@pytest.mark.parametrize(
    ("tokens", "user", "password", "message"),
    [
        ("", None, None, "empty"),
        ("hunter2", None, None, "16 characters"),
        (None, "ann", None, "without a password"),
        (None, None, "long enough", "without --user"),
        (None, "ann", "hunter2", "8 characters"),
        (None, "ann", "long enough\nlong enough", "more than one line"),
        (None, "a:b", "long enough", "colon"),
    ],
)
def test_unusable_secrets_are_refused(
    tmp_path: Path, tokens: str | None, user: str | None, password: str | None, message: str
) -> None:
    files = []
    for name, text in (("tokens", tokens), ("password", password)):
        files.append(None if text is None else tmp_path / name)
        if text is not None:
            (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message) as refused:
        read_credentials(files[0], user, files[1])
    assert not any(text and text in str(refused.value) for text in (tokens, password))


def test_missing_and_binary_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_credentials(tmp_path / "nothing", None, None)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not a text file"):
        read_credentials(tmp_path / "binary", None, None)


def test_world_readable_secret_file_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tokens").write_text(OLD)
    (tmp_path / "tokens").chmod(0o644)
    assert read_credentials(tmp_path / "tokens", None, None)
    assert "chmod 600" in capsys.readouterr().err


def test_credentials_are_read_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, files: tuple[Path, Path]
) -> None:
    assert read_credentials(None, None, None) is None
    monkeypatch.setenv(TOKEN, OLD)
    monkeypatch.setenv(PASSWORD, SECRET)
    found = read_credentials(None, USER, None)
    assert found is not None
    assert found.authenticate(f"Bearer {OLD}") == "token"
    assert found.authenticate(_basic(USER, SECRET)) == USER
    (files[0].parent / "other").write_text("a-token-in-a-file-comes-first")
    other = read_credentials(files[0].parent / "other", USER, None)
    assert other is not None
    assert other.authenticate(f"Bearer {OLD}") is None


async def _hello(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope.get("state", {}).get("user", "nobody").encode()})


def test_wrong_credentials_are_rate_limited_per_client(credentials: Credentials) -> None:
    app = AuthMiddleware(_hello, credentials)
    right, wrong = {"Authorization": f"Bearer {OLD}"}, {"Authorization": "Bearer wrong"}
    assert get(app, **right).text == "token"
    assert {get(app).status_code for _ in range(20)} == {401}  # requests without credentials do not count
    tries = [get(app, **wrong) for _ in range(12)]
    assert [found.status_code for found in tries] == [401] * 10 + [429] * 2
    assert 1 <= int(tries[-1].headers["retry-after"]) <= 6
    assert [get(app, **right).text for _ in range(20)] == ["token"] * 20  # another client of this address
    assert get(app, **wrong).status_code == 429
    assert get(app, client="192.0.2.9", **right).text == "token"
    assert get(app, "/healthz", **wrong).status_code == 200


def test_refusal_names_the_authentication_schemes(credentials: Credentials) -> None:
    both = get(AuthMiddleware(_hello, credentials)).headers["www-authenticate"]
    assert both == 'Basic realm="Lookalike", charset="UTF-8", Bearer realm="Lookalike"'
    programs = AuthMiddleware(_hello, Credentials(credentials.tokens))
    assert get(programs).headers["www-authenticate"] == 'Bearer realm="Lookalike"'


# ---- with a server process


@pytest.fixture(scope="module")
def locked(
    tmp_path_factory: pytest.TempPathFactory, shop_gallery: Path, files: tuple[Path, Path]
) -> Iterator[Server]:
    words = ["--token-file", str(files[0]), "--user", USER, "--password-file", str(files[1])]
    with serving(
        [*SERVE, str(shop_gallery), *words], tmp_path_factory.mktemp("scratch"), forked=True
    ) as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [
        *("/", "/config", "/parts/about", "/favicon.ico", "/metrics", "/readyz", "/nowhere"),
        *("/v1/gallery", "/v1/openapi.json", "/v1/items/1/thumbnail", "/gradio_api/heartbeat/x"),
        *("/gradio_api/info", "/gradio_api/queue/data", "/gradio_api/upload"),
    ],
)
def test_only_healthz_is_open_without_credentials(locked: Server, path: str) -> None:
    for method in ("GET", "POST", "HEAD", "OPTIONS"):
        found = httpx.request(method, locked.url + path, timeout=30)
        assert found.status_code == (404 if path == "/nowhere" else 401)
        assert {name: found.headers.get(name) for name in HEADERS} == HEADERS
        assert "shop" not in found.text
    assert httpx.get(f"{locked.url}/healthz", timeout=30).json() == {"status": "ok"}


@pytest.mark.slow
def test_password_gives_access_to_the_page(locked: Server, shop: Path) -> None:
    signed_in = httpx.BasicAuth(USER, SECRET)
    with httpx.Client(base_url=locked.url, auth=signed_in, timeout=30) as client:
        assert "Lookalike: shop" in client.get("/").text
        content = (shop / "red" / "1.png").read_bytes()
        (hit,) = client.post("/v1/search", params={"k": 1}, files={"image": content}).json()["hits"]
        assert hit["label"] == "red"
        assert client.get(f"{files_path()}/search.js").status_code == 200
    assert httpx.get(f"{locked.url}{files_path()}/search.js", timeout=30).status_code == 401
    with httpx.Client(base_url=locked.url, auth=signed_in, timeout=30) as client:
        assert client.get("/v1/items/1/thumbnail").status_code == 200


@pytest.mark.slow
def test_token_gives_access_to_the_api(locked: Server, shop: Path) -> None:
    image = (shop / "red" / "1.png").read_bytes()
    for token, status in ((OLD, 200), (NEW, 200), ("no-such-token-at-all", 401)):
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "image/png"}
        found = httpx.post(f"{locked.url}/v1/search?k=1", content=image, headers=headers, timeout=30)
        assert found.status_code == status
    assert found.headers["content-type"] == "application/problem+json"
    assert found.json()["code"] == "sign-in"


@pytest.mark.slow
def test_secrets_are_not_in_the_log_or_the_process_list(
    shop_gallery: Path, files: tuple[Path, Path], tmp_path: Path
) -> None:
    words = ["--no-page", "--log-level", "debug", "--token-file", str(files[0])]
    with serving([*SERVE, str(shop_gallery), *words], tmp_path) as server:
        for token in (OLD, "a-wrong-one-of-somebody"):
            url = f"{server.url}/v1/gallery?vector=secret"
            httpx.get(url, headers={"Authorization": f"Bearer {token}"}, timeout=30)
        line = Path(f"/proc/{server.process.pid}/cmdline")
        shown = line.read_text() if line.exists() else ""
        code, output = server.stop()
    assert code == 0
    assert " token GET /v1/gallery 200 " in output
    assert " - GET /v1/gallery 401 " in output
    for secret in (OLD, NEW, "a-wrong-one", "vector"):
        assert secret not in output + shown
