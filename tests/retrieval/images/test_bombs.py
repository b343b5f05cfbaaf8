"""Tests of the decompression-bomb checks: bombs are rejected, files from cameras are accepted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from retrieval.errors import ImageError
from retrieval.images import load
from retrieval.images.bombs import bomb_reason
from retrieval.images.load import load_image
from tests.conftest import draw, unzip_shared
from tests.retrieval.images.bombs import BOMBS, COUNT, chunk, in_jpeg, in_png, of_scans, saved, tiff


@pytest.mark.parametrize("case", BOMBS)
def test_bomb_is_rejected_before_opening(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*_: object, **__: object) -> None:
        raise AssertionError("opened")

    if not case.startswith("scans"):  # these need the size of the image
        monkeypatch.setattr(load.Image, "open", opened)
    with pytest.raises(ImageError, match="save it") as caught:
        load_image(BOMBS[case])
    assert caught.value.reason == ImageError.TOO_LARGE


HONEST = {
    "many scans": of_scans((1000, 1000), 100),
    "a video after the image": saved(draw(0), "JPEG") + b"\xff\xda\0\x0c" * COUNT,
    "a preview within": in_jpeg(
        b"\xff\xed\xff\xff" + of_scans((2000, 2000), 800)[:65533].ljust(65533, b"\0")
    ),
    "a large profile": saved(draw(0), "JPEG", icc_profile=bytes(4 * 2**20)),
    "EXIF of the largest size": saved(draw(0), "JPEG", exif=b"Exif\0\0" + tiff(3, 65_000)),
    "a long comment": saved(draw(0), "GIF", comment=b"a" * 100_000),
    "small chunks": in_png(chunk(b"tEXt", b"a\0b") * 900),
    "few digits": b"P3 100 100 255 " + b"9 " * 3 * 100 * 100,
}


@pytest.mark.parametrize("case", HONEST)
def test_unusual_but_cheap_file_is_accepted(case: str) -> None:
    assert load_image(HONEST[case]).mode == "RGB"


def test_orientation_is_read_from_every_place() -> None:
    tags = ImageFileDirectory_v2()
    tags[0x0112] = 6
    exif = b"Exif\0\0" + b"II*\0\x08\0\0\0" + tags.tobytes(8)
    for form in ("JPEG", "PNG", "WEBP", "AVIF", "TIFF"):
        content = saved(draw(0, (40, 30)), form, exif=exif)
        assert bomb_reason(content) is None
        assert load_image(content).size == (30, 40), form


@pytest.mark.parametrize("name", ["cars196_256.zip", "cub20_val_256.zip"])
@pytest.mark.slow
def test_photographs_are_accepted(name: str, tmp_path: Path) -> None:
    files = [path for path in unzip_shared(name, tmp_path).rglob("*") if path.is_file()]
    assert len(files) > 100
    assert [path for path in files if bomb_reason(path.read_bytes())] == []


MODES = ["L", "LA", "La", "P", "RGB", "RGBA", "RGBa", "CMYK", "I", "I;16", "F", "1", "YCbCr", "LAB", "HSV"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("transparent", [False, True])
def test_number_of_bands_does_not_change_the_pixels(
    mode: str, transparent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)
    image = Image.fromarray(random.integers(0, 256, (37, 23, 4), np.uint8), "RGBA")
    if mode in ("I", "I;16", "F"):
        values = random.random((37, 23)) * (1 if transparent else 60_000)
        image = Image.fromarray(values.astype({"I": np.int32, "I;16": np.uint16, "F": np.float32}[mode]))
    elif mode in ("LAB", "HSV", "YCbCr", "P", "1", "CMYK"):
        rgb = image.convert("RGB")
        image = Image.frombytes(mode, rgb.size, rgb.tobytes()) if mode == "LAB" else rgb.convert(mode)
    else:
        image = image.convert("LA").convert(mode) if mode == "La" else image.convert(mode)
    if transparent and mode in ("L", "P", "RGB", "1"):
        image.info["transparency"] = 7 if mode != "RGB" else image.getpixel((0, 0))
    found = []
    for pixels in (1, 100, 10**9):
        monkeypatch.setattr(load, "_BAND", pixels)
        found.append(load_image(image.copy()))
    assert found[0].size == image.size
    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()


_PEAK = """
import sys
from retrieval import load_image

def peak():
    lines = [line.split() for line in open("/proc/self/status")]
    return next(int(line[1]) // 1024 for line in lines if line[0] == "VmHWM:")

before = peak()
load_image(open(sys.argv[1], "rb").read())
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA", "I;16", "F"])
def test_peak_memory_of_the_largest_image(mode: str, tmp_path: Path) -> None:
    file = tmp_path / "image"
    form = "TIFF" if mode == "F" else "PNG"
    Image.new(mode, (7000, 7000)).save(file, form, **({"compression": "tiff_deflate"} if mode == "F" else {}))
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, str(file)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 700
