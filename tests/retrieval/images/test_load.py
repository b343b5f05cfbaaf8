"""Tests of the image loader with images of known content."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from retrieval import ImageError, Preprocess, load_image
from retrieval.images.load import MAX_BYTES, open_bytes, read_bytes
from tests.conftest import draw, unzip_shared


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation: int) -> None:
    upright = draw(0)
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # the transposition that a viewer would have to undo
    stored = upright.transpose(Image.Transpose(undo[orientation])) if orientation > 1 else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    loaded = load_image(encoded(stored, "PNG", exif=exif))
    assert loaded.size == upright.size
    np.testing.assert_array_equal(np.asarray(loaded), np.asarray(upright))


def test_invalid_orientation_and_broken_exif_are_ignored() -> None:
    exif = Image.Exif()
    exif[0x0112] = 200
    np.testing.assert_array_equal(load_image(encoded(draw(1), exif=exif)), draw(1))
    np.testing.assert_array_equal(
        load_image(encoded(draw(1), exif=b"Exif\0\0MM\0*\0\0\0\xff\xff\xff")), draw(1)
    )


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparency_is_blended_with_white(mode: str) -> None:
    image = Image.new(mode, (4, 4), (0,) * (len(mode) - 1) + (0,))
    image.putpixel((1, 2), (0,) * (len(mode) - 1) + (255,))
    loaded = load_image(encoded(image))
    assert loaded.getpixel((0, 0)) == (255, 255, 255)
    assert loaded.getpixel((1, 2)) == (0, 0, 0)


def test_transparent_palette_colour_is_blended_with_white() -> None:
    image = Image.new("P", (4, 4), 3)
    image.putpalette([0, 0, 0] * 3 + [10, 20, 30])
    image.putpixel((0, 0), 1)
    loaded = load_image(encoded(image, transparency=3))
    assert loaded.getpixel((0, 0)) == (0, 0, 0)
    assert loaded.getpixel((2, 2)) == (255, 255, 255)


def test_sixteen_bit_grey_keeps_its_brightness() -> None:
    """Pillow's own conversion would clip everything to white."""
    grey = np.linspace(0, 65535, 64 * 64).reshape(64, 64).astype(np.uint16)
    loaded = np.asarray(load_image(encoded(Image.fromarray(grey))))
    np.testing.assert_allclose(loaded[..., 0], grey / 257, atol=0.5)


def test_float_grey_keeps_its_brightness() -> None:
    """Pillow's own conversion would clip everything to black."""
    grey = np.linspace(0, 1, 64).reshape(8, 8).astype(np.float32)
    loaded = np.asarray(load_image(encoded(Image.fromarray(grey), "TIFF")))
    np.testing.assert_allclose(loaded[..., 1], grey * 255, atol=0.5)


@pytest.mark.parametrize(
    "mode", ["1", "L", "P", "RGB", "CMYK", "YCbCr", "HSV", "I;16", "I", "F", "LAB", "RGBa", "La"]
)
def test_every_mode_becomes_rgb(mode: str) -> None:
    image = Image.new(mode, (5, 3))
    assert load_image(image).mode == "RGB"
    assert load_image(image).size == (5, 3)


def test_first_frame_of_an_animation() -> None:
    frames = [Image.new("RGB", (6, 6), colour) for colour in ("red", "blue")]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert load_image(data).getpixel((0, 0)) == (255, 0, 0)


def test_path_bytes_pillow_image_and_array_give_the_same_pixels(tmp_path: Path) -> None:
    image = draw(3)
    path = tmp_path / "a.png"
    image.save(path)
    for source in (path, str(path), path.read_bytes(), image, np.asarray(image)):
        np.testing.assert_array_equal(np.asarray(load_image(source)), np.asarray(image))


def test_bomb_is_rejected_by_its_header() -> None:
    bomb = encoded(Image.new("1", (13_000, 13_000)))
    assert len(bomb) < 200_000
    with pytest.raises(ImageError, match="megapixels") as caught:
        load_image(bomb)
    assert caught.value.reason == ImageError.TOO_LARGE
    assert load_image(encoded(draw(0)), max_pixels=48 * 40).size == (48, 40)
    with pytest.raises(ImageError):
        load_image(encoded(draw(0)), max_pixels=48 * 40 - 1)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", ImageError.NOT_AN_IMAGE),
        (b"<html>404 not found</html>", ImageError.NOT_AN_IMAGE),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", ImageError.NOT_AN_IMAGE),
        (encoded(draw(0))[:200], ImageError.DAMAGED),
        (encoded(draw(0, (400, 400)), "JPEG")[:3000], ImageError.DAMAGED),
    ],
)
def test_unusable_bytes_have_a_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "x.jpg"
    path.write_bytes(content)
    with pytest.raises(ImageError) as caught:
        load_image(path)
    assert caught.value.reason == reason
    assert str(path) in str(caught.value)


def test_unreadable_files_have_a_reason(tmp_path: Path) -> None:
    with pytest.raises(ImageError) as caught:
        load_image(tmp_path / "nowhere.png")
    assert caught.value.reason == ImageError.MISSING
    with pytest.raises(ImageError) as caught:
        load_image(tmp_path)
    assert caught.value.reason == ImageError.NOT_AN_IMAGE
    if os.geteuid() != 0:  # root may read everything
        (tmp_path / "secret.png").touch(mode=0)
        with pytest.raises(ImageError) as caught:
            load_image(tmp_path / "secret.png")
        assert caught.value.reason == ImageError.PERMISSION


def test_array_of_wrong_type_or_shape_is_rejected() -> None:
    with pytest.raises(ImageError, match="uint8"):
        load_image(np.zeros((4, 4, 3), np.float32))
    with pytest.raises(ImageError, match="uint8"):
        load_image(np.zeros((4, 4, 2), np.uint8))


@given(st.binary(max_size=400), st.sampled_from(["PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP"]), st.data())
def test_damaged_files_raise_only_image_error(noise: bytes, kind: str, data: st.DataObject) -> None:
    whole = encoded(draw(0, (24, 24)), kind)
    at = data.draw(st.integers(0, len(whole) - 1))
    with contextlib.suppress(ImageError):
        assert load_image(whole[:at] + noise + whole[at + len(noise) :]).mode == "RGB"


@pytest.mark.slow
def test_unusual_files_load_or_raise_image_error(tmp_path: Path) -> None:
    """Files from the test suites of image libraries give an image or an ImageError."""
    folder = unzip_shared("bad_inputs.zip", tmp_path)
    images, errors = [], []
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix not in (".csv", ".txt")):
        try:
            images.append(load_image(path))
        except ImageError as error:
            errors.append((path, error))
    assert len(images) > 120
    assert len(errors) > 40
    assert all(image.mode == "RGB" for image in images)
    assert all(str(path) in str(error) and error.detail for path, error in errors)
    upright = load_image(folder / "exif_orientation" / "Landscape_1.jpg")
    for turned in ("Landscape_3.jpg", "Landscape_6.jpg"):
        other = load_image(folder / "exif_orientation" / turned)
        assert other.size == upright.size
        difference = np.abs(np.asarray(other, float) - np.asarray(upright, float)).mean()
        assert difference < 10, turned


def photograph(size: tuple[int, int], seed: int = 0) -> Image.Image:
    """Return shapes of all sizes with noise, about as detailed as a sharp photograph."""
    random = np.random.default_rng(seed)
    width, height = size
    layers = np.zeros((height, width, 3))
    for cells, weight in ((6, 60), (60, 30), (400, 20)):
        coarse = random.integers(-128, 128, (cells, cells, 3)).astype(np.int16) + 128
        layer = Image.fromarray(coarse.astype(np.uint8)).resize(size, Image.Resampling.BICUBIC)
        layers += (np.asarray(layer, float) - 128) * weight / 128
    return Image.fromarray(
        np.clip(128 + layers + random.normal(0, 4, (height, width, 1)), 0, 255).astype(np.uint8)
    )


@pytest.mark.parametrize("options", [{}, {"subsampling": 0}, {"progressive": True}, {"quality": 95}])
@pytest.mark.parametrize("size", [(1500, 1000), (1000, 1500)])
def test_reduced_decoding_of_a_large_jpeg_is_almost_identical(
    size: tuple[int, int], options: dict[str, int]
) -> None:
    data = encoded(photograph(size), "JPEG", **options)
    preprocess = Preprocess(size=112, resize=120)
    whole, smaller = load_image(data), load_image(data, side=preprocess.scaled)
    assert whole.size == size
    assert smaller.size == (size[0] // 4, size[1] // 4)
    difference = preprocess(whole).astype(int) - preprocess(smaller).astype(int)
    assert np.abs(difference).mean() <= 1
    assert np.abs(difference.mean()) <= 0.1, "no change of brightness"


@given(st.integers(1, 700), st.integers(1, 700), st.integers(1, 400))
def test_reduced_jpeg_has_at_least_twice_the_side(width: int, height: int, side: int) -> None:
    data = encoded(Image.new("RGB", (width, height)), "JPEG")
    loaded = load_image(data, side=side)
    assert loaded.size == (width, height) or min(loaded.size) >= 2 * side
    if min(width, height) >= 16 * side:
        assert min(loaded.size) <= -(-min(width, height) // 8)


def test_side_affects_only_jpegs() -> None:
    for kind in ("PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"):
        assert load_image(encoded(draw(0, (640, 480)), kind), side=10).size == (640, 480), kind


def test_reduced_jpeg_is_upright_and_keeps_its_full_size() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(draw(0, (801, 600)), "JPEG", exif=exif)
    pixels, size = open_bytes(data, "x", side=50).decode()
    assert size == (600, 801)
    assert pixels.shape == (201, 150, 3)


JPEGS = {
    "4:2:0": {},
    "4:4:4": {"subsampling": 0},
    "4:2:2": {"subsampling": 1},
    "progressive": {"progressive": True},
    "restarts": {"restart_marker_blocks": 3},
    "coarse": {"quality": 10},
    "RGB": {"keep_rgb": True},
}


@pytest.mark.parametrize("options", JPEGS.values(), ids=JPEGS)
@pytest.mark.parametrize("size", [(1, 1), (7, 9), (16, 17), (333, 250), (500, 375)])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_jpegs_have_the_pixels_of_pillow(mode: str, size: tuple[int, int], options: dict[str, int]) -> None:
    data = encoded(draw(2, size).convert(mode), "JPEG", **options)
    expected = Image.open(io.BytesIO(data)).convert("RGB")
    np.testing.assert_array_equal(load_image(data), expected)
    assert (open_bytes(data, "x")._by_turbojpeg() is None) == (mode == "CMYK")


@pytest.mark.parametrize("orientation", range(1, 9))
def test_jpegs_are_turned_as_by_pillow(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(draw(0, (80, 60)), "JPEG", exif=exif)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    np.testing.assert_array_equal(load_image(data), expected)


@given(st.data())
def test_damaged_jpegs_are_judged_by_pillow(data: st.DataObject) -> None:
    whole = bytearray(encoded(draw(4, (64, 48)), "JPEG", progressive=data.draw(st.booleans())))
    for _ in range(data.draw(st.integers(0, 3))):
        whole[data.draw(st.integers(2, len(whole) - 1))] = data.draw(st.integers(0, 255))
    content = bytes(whole[: data.draw(st.integers(2, len(whole)))])
    try:
        expected: object = np.asarray(Image.open(io.BytesIO(content), formats=("JPEG",)).convert("RGB"))
    except Exception:
        expected = None
    try:
        loaded: object = load_image(content)
    except ImageError as error:
        loaded = expected if error.reason == ImageError.TOO_LARGE else None
    np.testing.assert_array_equal(loaded, expected)


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_reduced_jpeg_of_other_modes_is_rgb(mode: str) -> None:
    data = encoded(Image.new(mode, (800, 800), 100 if mode == "L" else (0, 255, 255, 0)), "JPEG")
    loaded = load_image(data, side=50)
    assert (loaded.mode, loaded.size) == ("RGB", (100, 100))
    expected = (100, 100, 100) if mode == "L" else (255, 0, 0)
    np.testing.assert_allclose(loaded.getpixel((50, 50)), expected, atol=3)


def test_huge_file_is_rejected_before_reading(tmp_path: Path) -> None:
    path = tmp_path / "huge.jpg"
    path.touch()
    os.truncate(path, MAX_BYTES + 1)  # a sparse file
    with pytest.raises(ImageError, match="limit of 512 MB") as caught:
        load_image(path)
    assert caught.value.reason == ImageError.TOO_LARGE


def test_path_into_a_tar_file(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encoded(draw(5)))
    with tarfile.open(tmp_path / "s.tar", "w") as tar:
        tar.add(tmp_path / "a.png", "in/a.png")
    np.testing.assert_array_equal(np.asarray(load_image(tmp_path / "s.tar" / "in" / "a.png")), draw(5))
    for path in ("s.tar/in/b.png", "s.tar/in", "a.png/in", "other.tar/in/a.png"):
        with pytest.raises(ImageError) as caught:
            load_image(tmp_path / path)
        assert caught.value.reason == ImageError.MISSING
    with tarfile.open(tmp_path / "s.tar", "w") as tar:  # another file now, under the same name
        tar.add(tmp_path / "a.png", "b.png")
    assert load_image(tmp_path / "s.tar" / "b.png").size == draw(5).size


@pytest.mark.slow
def test_unusual_files_with_reduced_decoding(tmp_path: Path) -> None:
    folder = unzip_shared("bad_inputs.zip", tmp_path)
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        whole, smaller = outcome(path, None), outcome(path, 32)
        if isinstance(whole, str) or isinstance(smaller, str):
            assert whole == smaller, path
            continue
        difference = np.abs(whole.astype(int) - smaller.astype(int)).mean()
        assert difference <= 3, path


def outcome(path: Path, side: int | None) -> np.ndarray | str:
    """Return small pixels, or the reason of the error."""
    try:
        return Preprocess(size=32)(load_image(path, side=side))
    except ImageError as error:
        return error.reason


def test_image_from_a_named_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(encoded(draw(4)),))
    writer.start()
    np.testing.assert_array_equal(np.asarray(load_image(tmp_path / "pipe")), draw(4))
    writer.join()


def test_irregular_files_do_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.jpg")
    (tmp_path / "link.jpg").symlink_to(tmp_path / "x.jpg")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s.jpg"))
    found = []

    def read() -> None:
        for path in (tmp_path / "x.jpg", tmp_path / "link.jpg", tmp_path / "s.jpg", Path("/dev/zero")):
            with pytest.raises(ImageError) as error:
                read_bytes(path)
            found.append((error.value.reason, error.value.detail))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(timeout=10)
    kinds = ("FIFO", "FIFO", "socket", "character device")
    assert found == [(ImageError.NOT_AN_IMAGE, f"it is a {kind}, not an image file") for kind in kinds]


def test_loaded_image_is_not_the_given_one() -> None:
    given = Image.new("RGB", (4, 4), "red")
    loaded = load_image(given)
    loaded.putpixel((0, 0), (0, 0, 0))
    assert given.getpixel((0, 0)) == (255, 0, 0)
