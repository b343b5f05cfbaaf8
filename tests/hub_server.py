"""A server with the protocol of the Hugging Face Hub: repositories in memory, for tests without a network."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit


class HubServer:
    """Repositories by kind and name: each one a dict of files.

    Attributes:
        url: Address, for HF_ENDPOINT.
        files: Files of each repository, by ("models" or "datasets", USER/NAME).
        tokens: Tokens with write access.
    """

    def __init__(self) -> None:
        self.files: dict[tuple[str, str], dict[str, bytes]] = {}
        self.tokens: set[str] = set()
        self._large: dict[str, bytes] = {}
        self.private: set[str] = set()

    @contextmanager
    def running(self) -> Iterator[HubServer]:
        hub = self

        class Handler(_Handler):
            state = hub

        class Server(ThreadingHTTPServer):
            request_queue_size = 64  # the client opens several connections at once

        server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()

    def environment(self, folder: Path) -> dict[str, str]:
        """Return the variables with which huggingface_hub uses this server, and writes to a folder only."""
        paths = {"HF_HOME": "home", "HF_HUB_CACHE": "cache", "XDG_CACHE_HOME": "xdg"}
        settings = {"HF_ENDPOINT": self.url, "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}
        patience = {"HF_HUB_ETAG_TIMEOUT": "60", "HF_HUB_DOWNLOAD_TIMEOUT": "60", "NO_PROXY": "127.0.0.1"}
        return {**settings, **patience, **{name: str(folder / path) for name, path in paths.items()}}

    def commit_of(self, key: tuple[str, str]) -> str:
        """Return a commit id, 40 hexadecimal digits that change with the files."""
        files = sorted((name, hashlib.sha1(data).hexdigest()) for name, data in self.files[key].items())
        return hashlib.sha1(json.dumps(files).encode()).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    state: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None: ...

    # ---- reading

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if found := re.fullmatch(r"/api/(models|datasets)/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            self._repository(*found.groups())
        elif found := re.fullmatch(r"/api/(models|datasets)/([^/]+/[^/]+)/tree/([^/]+)(?:/(.+))?", path):
            self._tree(*found.groups())
        elif found := re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._file("datasets" if found[1] else "models", found[2], found[4])
        else:
            self._fail(404, "EntryNotFound")

    def _known(self, kind: str, name: str, revision: str | None) -> tuple[str, str] | None:
        key = (kind, name)
        if key not in self.state.files:
            self._fail(401 if name in self.state.private else 404, "RepoNotFound")
            return None
        if revision not in (None, "main", self.state.commit_of(key)):
            self._fail(404, "RevisionNotFound")
            return None
        return key

    def _repository(self, kind: str, name: str, revision: str | None) -> None:
        if key := self._known(kind, name, revision):
            siblings = [{"rfilename": file} for file in sorted(self.state.files[key])]
            commit = self.state.commit_of(key)
            facts = {"id": name, "sha": commit, "siblings": siblings, "private": False, "tags": []}
            self._json({**facts, "lastModified": "2026-01-01T00:00:00.000Z", "gated": False})

    def _tree(self, kind: str, name: str, revision: str, folder: str | None) -> None:
        if key := self._known(kind, name, revision):
            within = f"{folder}/" if folder else ""
            files = {f: data for f, data in self.state.files[key].items() if f.startswith(within)}
            folders = {f"{within}{f[len(within) :].split('/')[0]}" for f in files if "/" in f[len(within) :]}
            if "recursive=true" not in self.path.lower():
                files = {f: data for f, data in files.items() if "/" not in f[len(within) :]}
            entries = [{"type": "directory", "path": path, "size": 0, "oid": "0" * 40} for path in folders]
            self._json([*entries, *(_entry(file, data) for file, data in sorted(files.items()))])

    def _file(self, kind: str, name: str, file: str) -> None:
        key = self._known(kind, name, None)
        if key is None:
            return
        data = self.state.files[key].get(file)
        if data is None:
            self._fail(404, "EntryNotFound")
            return
        start, end = 0, len(data)
        if span := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            start, end = int(span[1]), min(int(span[2] or len(data)) + bool(span[2]), len(data))
        headers = {
            "X-Repo-Commit": self.state.commit_of(key),
            "ETag": f'"{hashlib.sha256(data).hexdigest()}"',
        }
        if start or end < len(data):
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        self._send(206 if "Content-Range" in headers else 200, data[start:end], headers)

    # ---- writing

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = unquote(urlsplit(self.path).path)
        if found := re.fullmatch(r"/api/(models|datasets)/([^/]+/[^/]+)/paths-info/([^/]+)", path):
            self._paths_info(found[1], found[2], body)
            return
        if path == "/api/validate-yaml":
            self._json({"errors": [], "warnings": []})
            return
        if self.headers.get("Authorization", "").removeprefix("Bearer ") not in self.state.tokens:
            self._fail(401, None)
        elif path == "/api/repos/create":
            wish = json.loads(body)
            name = f"{wish['organization']}/{wish['name']}" if wish.get("organization") else wish["name"]
            kind = f"{wish.get('type') or 'model'}s"
            self.state.files.setdefault((kind, name), {})
            self._json({"url": f"{self.state.url}/{name}", "name": name, "id": name})
        elif re.fullmatch(r"/api/models/[^/]+/[^/]+/preupload/[^/]+", path):
            wanted = json.loads(body)["files"]
            modes = [
                {"path": f["path"], "uploadMode": _mode(f["path"]), "shouldIgnore": False} for f in wanted
            ]
            self._json({"files": modes})
        elif found := re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            objects = [
                {**o, "actions": {"upload": {"href": f"{self.state.url}/large/{o['oid']}"}}}
                for o in json.loads(body)["objects"]
            ]
            self._json({"transfer": "basic", "objects": objects})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/([^/]+)", path):
            self._commit(found[1], body)
        else:
            self._fail(404, "EntryNotFound")

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        oid = self.path.rpartition("/")[2]
        assert hashlib.sha256(data).hexdigest() == oid
        self.state._large[oid] = data
        self._send(200, b"", {})

    def _commit(self, name: str, body: bytes) -> None:
        files = self.state.files[("models", name)]
        for line in body.splitlines():
            step = json.loads(line)
            if step["key"] == "file":
                files[step["value"]["path"]] = base64.b64decode(step["value"]["content"])
            elif step["key"] == "lfsFile":
                files[step["value"]["path"]] = self.state._large[step["value"]["oid"]]
        commit = self.state.commit_of(("models", name))
        self._json({"commitUrl": f"{self.state.url}/{name}/commit/{commit}", "commitOid": commit})

    def _paths_info(self, kind: str, name: str, body: bytes) -> None:
        if key := self._known(kind, name, None):
            is_json = "json" in self.headers.get("Content-Type", "")
            wish = (
                json.loads(body)
                if is_json
                else {"paths": re.findall(r"paths=([^&]+)", unquote(body.decode()))}
            )
            files = self.state.files[key]
            self._json([_entry(path, files[path]) for path in wish["paths"] if path in files])

    # ---- responses

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _fail(self, status: int, code: str | None) -> None:
        self._send(status, b"{}", {"X-Error-Code": code} if code else {})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _entry(path: str, data: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "type": "file",
        "path": path,
        "size": len(data),
        "oid": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest(),
    }
    if _mode(path) == "lfs":
        entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
    return entry


def _mode(path: str) -> str:
    return "lfs" if path.endswith((".onnx", ".zip", ".parquet")) else "regular"
