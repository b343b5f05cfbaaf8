"""Sessions of ONNX Runtime: what it may print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime as ort
import pytest

from retrieval.machine.devices import Device
from retrieval.model import sessions
from retrieval.model.runtime import Runtime
from tests.serve.model import write_model


@pytest.mark.parametrize(("works", "levels"), [(True, [4]), (False, [4, 2])])
def test_the_logger_is_quiet_while_a_card_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, works: bool, levels: list[int]
) -> None:
    """Plans of cuDNN that fail are logged in the first runs, by the logger of the process."""
    file, given, real = write_model(tmp_path / "model.onnx"), list[int](), ort.InferenceSession

    class OnCard(real):  # type: ignore[misc, valid-type]
        def __init__(self, data: bytes, options: Any, providers: list[Any], **_: Any) -> None:
            on_card = providers != [sessions.CPU]
            if on_card and not works:
                raise RuntimeError("no kernel image is available for execution on the device")
            super().__init__(data, options, providers=[sessions.CPU])
            self.on_card = on_card

        def get_providers(self) -> list[str]:
            return [sessions.CUDA] if self.on_card else [sessions.CPU]

    monkeypatch.setattr(ort, "InferenceSession", OnCard)
    monkeypatch.setattr(ort, "get_available_providers", lambda: [sessions.CUDA, sessions.CPU])
    monkeypatch.setattr(ort, "preload_dlls", lambda: None, raising=False)
    monkeypatch.setattr(ort, "set_default_logger_severity", given.append)
    monkeypatch.setattr(sessions, "gpu_problem", lambda module, number: None)
    session = sessions.open_session(file, file.read_bytes(), Runtime(Device.parse("cuda")))
    assert session.get_providers() == [sessions.CUDA if works else sessions.CPU]
    assert given == levels
