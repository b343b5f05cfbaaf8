"""What a browser needs to embed pictures itself, so that they are not sent: ONNX Runtime, and the model."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from starlette.responses import StreamingResponse

from retrieval.errors import InputError
from retrieval.model.archive import IMAGE
from retrieval.model.embedder import Embedder
from serve.core.service import SearchService

VERSION = "1.30.0"  # of the package onnxruntime-web
WORKER = "embedder.js"  # the script that runs it, which alone may compile WebAssembly
_CHECKSUMS = {
    "ort.wasm.bundle.min.mjs": "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90",
    "ort-wasm-simd-threaded.wasm": "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
}
_KINDS = {".mjs": "text/javascript", ".wasm": "application/wasm"}
_LARGEST = 256 * 2**20  # bytes of a model: what a browser has in memory several times
_PART = 2**16  # bytes that are sent at once


@dataclass(frozen=True)
class RuntimeFile:
    """A file of ONNX Runtime for browsers.

    Attributes:
        name: Its name.
        content: Its bytes.
    """

    name: str
    content: bytes

    @property
    def kind(self) -> str:
        """Media type."""
        return _KINDS[Path(self.name).suffix]

    @cached_property
    def packed(self) -> bytes:
        """The bytes, compressed with gzip."""
        return gzip.compress(self.content, 9, mtime=0)


def read_runtime(folder: Path) -> dict[str, RuntimeFile]:
    """Return the files of ONNX Runtime for browsers by name, the script first.

    Args:
        folder: Folder with the files, or of the package, which has them in `dist`.

    Raises:
        InputError: A file is missing, or is not that of the version that this program knows.
    """
    where = folder / "dist" if (folder / "dist").is_dir() else folder
    found = {}
    for name, checksum in _CHECKSUMS.items():
        try:
            content = (where / name).read_bytes()
        except OSError as error:
            reason = f"{where / name}: cannot be read ({error.strerror})"
        else:
            if hashlib.sha256(content).hexdigest() == checksum:
                found[name] = RuntimeFile(name, content)
                continue
            reason = f"{where / name}: not the file of version {VERSION}, by its SHA-256"
        raise InputError(
            f"--on-device {reason}; `npm pack onnxruntime-web@{VERSION}` downloads the package, and "
            f"`tar -xf onnxruntime-web-{VERSION}.tgz` unpacks it into the folder `package`"
        )
    return found


class DeviceModel:
    """The image encoder of a gallery's model, for browsers.

    Args:
        embedder: The model.

    Attributes:
        fingerprint: Fingerprint of the model.
        content: The ONNX file.

    Raises:
        InputError: A browser cannot run it, or its file has changed.
    """

    def __init__(self, embedder: Embedder) -> None:
        self.fingerprint = embedder.fingerprint
        self._preprocess = embedder.preprocess.to_dict()
        if embedder.is_plugged:
            raise InputError("the model of this gallery is a plug-in, which browsers cannot run")
        if embedder.path.stat().st_size > _LARGEST and embedder.archive is None:
            raise InputError(_too_large())
        if embedder.archive is not None:
            self.content = embedder.archive.read(IMAGE)
        else:
            self.content = embedder.path.read_bytes()
            if hashlib.sha256(self.content).hexdigest() != self.fingerprint:
                raise InputError("the model of this gallery has just changed: try again")
        if len(self.content) > _LARGEST:
            raise InputError(_too_large())

    def describe(self, address: str, runtime: Mapping[str, RuntimeFile], runtime_at: str) -> dict[str, Any]:
        """Return what the page needs to know.

        Args:
            address: Path below which the model is served, by its fingerprint.
            runtime: Files of ONNX Runtime.
            runtime_at: Path below which these are served, by their names.
        """
        files = [
            {"address": f"{runtime_at}/{name}", "bytes": len(file.content)} for name, file in runtime.items()
        ]
        model = {"model": f"{address}/{self.fingerprint}", "bytes": len(self.content)}
        return {
            "fingerprint": self.fingerprint,
            **model,
            "runtime": files,
            "preprocess": self._preprocess,
        }


class DeviceModels:
    """The newest model of a gallery, which is read from disk once.

    Args:
        service: The gallery.
    """

    def __init__(self, service: SearchService) -> None:
        self._service = service
        self._model: DeviceModel | None = None

    def newest(self) -> DeviceModel:
        """Return the model of the gallery as it is now.

        Raises:
            InputError: A browser cannot run it.
            NoModelError: The gallery has none.
            UnavailableError: The gallery cannot be read.
        """
        embedder = self._service.model()
        if self._model is None or self._model.fingerprint != embedder.fingerprint:
            self._model = DeviceModel(embedder)
        return self._model


def streamed(content: bytes, kind: str, headers: Mapping[str, str]) -> StreamingResponse:
    """Return an answer of large content, of which no more than a part waits for a slow client.

    Args:
        content: The bytes, which are not copied as a whole.
        kind: Their media type.
        headers: Headers.
    """

    async def parts() -> AsyncIterator[bytes]:
        view = memoryview(content)
        for start in range(0, len(view), _PART):
            yield bytes(view[start : start + _PART])

    length = {"Content-Length": str(len(content))}
    return StreamingResponse(parts(), media_type=kind, headers={**headers, **length})


def _too_large() -> str:
    return f"the model of this gallery is over the limit of {_LARGEST // 2**20} MB for browsers"
