"""Fetcher, with a local server: resume, checksums, and no partial data sets."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from retrieval import InputError, LookalikeError
from tests.conftest import draw, lookalike_here
from train import data
from train.data import arrays, unpack
from train.data.download import Archive

ROOT = Path(__file__).parents[3]


@dataclass
class Server:
    """HTTP file server with configurable faults."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    ranges: list[str] = field(default_factory=list)  # of the requests so far
    stop_after: int | None = None  # bytes of the file; then the connection is cut, or stalls
    stall: bool = False
    knows_ranges: bool = True
    stalled: threading.Event = field(default_factory=threading.Event)

    def archive(self, name: str, content: bytes) -> Archive:
        """Serve a file."""
        self.files[f"/{name}"] = content
        return Archive(f"{self.url}/{name}", name, hashlib.sha256(content).hexdigest(), len(content))


@pytest.fixture
def server() -> Iterator[Server]:
    serving, over = Server(), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range", "")
            serving.ranges.append(asked)
            content = serving.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            first = int(asked.removeprefix("bytes=").rstrip("-")) if serving.knows_ranges and asked else 0
            self.send_response(206 if serving.knows_ranges and asked else 200)
            if serving.knows_ranges and asked:
                self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - first))
            self.end_headers()
            self.wfile.write(content[first : serving.stop_after])
            if serving.stop_after is not None and serving.stall:
                self.wfile.flush()
                serving.stalled.set()
                over.wait(60)

        def log_message(self, *arguments: object) -> None:
            """Disable the request log."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    yield serving
    over.set()
    http.shutdown()
    thread.join()
    http.server_close()


def tar_of(files: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, target in (links or {}).items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def zip_of(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name, content in files.items():
            file.writestr(name, content)
    return out.getvalue()


def png(seed: int) -> bytes:
    out = io.BytesIO()
    noise = np.random.default_rng(seed).integers(0, 256, (48, 48, 3), np.uint8)  # does not compress
    Image.fromarray(noise).save(out, "PNG")
    return out.getvalue()


BIRDS = {
    "attributes.txt": b"1 has_bill_shape::curved_(up_or_down)\n",
    "CUB_200_2011/images.txt": b"1 001.A/a.png\n2 101.B/b.png\n",
    "CUB_200_2011/image_class_labels.txt": b"1 1\n2 101\n",
    "CUB_200_2011/images/001.A/a.png": png(1),
    "CUB_200_2011/images/101.B/b.png": png(2),
}


@pytest.fixture
def birds(server: Server, monkeypatch: pytest.MonkeyPatch) -> Archive:
    """`cub200`, with an archive of two images."""
    archive = server.archive("CUB_200_2011.tgz", tar_of(BIRDS))
    small = replace(data.KNOWN["cub200"], archives=(archive,), counts={"train": (1, 1), "test": (1, 1)})
    monkeypatch.setitem(data.KNOWN, "cub200", small)
    return archive


def visible_files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def assert_birds(root: Path) -> None:
    found = data.load(f"cub200:{root}")
    assert [image.label for image in found.train + found.test] == ["001.A", "101.B"]
    assert found.train[0].path.read_bytes() == BIRDS["CUB_200_2011/images/001.A/a.png"]
    assert sorted(os.listdir(root)) == [".fetching.lock", "CUB_200_2011"], "and nothing else is left"


def test_fetched_once(server: Server, birds: Archive, tmp_path: Path) -> None:
    data.fetch("cub200", tmp_path / "new" / "folder")
    assert_birds(tmp_path / "new" / "folder")
    assert len(server.ranges) == 1
    server.files.clear()
    data.fetch("cub200", tmp_path / "new" / "folder")
    assert len(server.ranges) == 1, "already present, so there is no request"


@pytest.mark.parametrize("knows_ranges", [True, False])
def test_interrupted_download_is_resumed(
    server: Server, birds: Archive, tmp_path: Path, knows_ranges: bool
) -> None:
    server.stop_after, server.knows_ranges = birds.size // 2, knows_ranges
    with pytest.raises(LookalikeError, match="run the same command again to resume"):
        data.fetch("cub200", tmp_path)
    assert visible_files(tmp_path) == []
    with pytest.raises(InputError, match="datasets fetch cub200"):
        data.load(f"cub200:{tmp_path}")
    server.stop_after = None
    data.fetch("cub200", tmp_path)
    assert server.ranges == ["bytes=0-", f"bytes={birds.size // 2}-"]
    assert_birds(tmp_path)


def test_killed_download_is_resumed(server: Server, birds: Archive, tmp_path: Path) -> None:
    server.stop_after, server.stall = birds.size // 2, True
    program = f"""
from dataclasses import replace
from train import data
from train.data.download import Archive
data.KNOWN["cub200"] = replace(data.KNOWN["cub200"], archives=({birds!r},))
data.fetch("cub200", __import__("pathlib").Path({str(tmp_path)!r}))
"""
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT) as child:
        assert server.stalled.wait(60)
        child.send_signal(signal.SIGKILL)
    assert visible_files(tmp_path) == []
    server.stop_after = None
    data.fetch("cub200", tmp_path)
    assert_birds(tmp_path)


def test_wrong_content_is_deleted(server: Server, birds: Archive, tmp_path: Path) -> None:
    right = server.files["/CUB_200_2011.tgz"]
    server.files["/CUB_200_2011.tgz"] = bytes(len(right))
    with pytest.raises(LookalikeError, match=f"SHA-256 is not {birds.sha256}"):
        data.fetch("cub200", tmp_path)
    assert visible_files(tmp_path) == []
    server.files["/CUB_200_2011.tgz"] = right[:-5]
    with pytest.raises(LookalikeError, match="the file has changed"):
        data.fetch("cub200", tmp_path)
    server.files["/CUB_200_2011.tgz"], server.stop_after = right, 1000
    with pytest.raises(LookalikeError, match="interrupted after 1,000 of"):
        data.fetch("cub200", tmp_path)
    server.files["/CUB_200_2011.tgz"], server.knows_ranges = b"<html>sorry", False
    with pytest.raises(LookalikeError, match="has 11 bytes"):
        data.fetch("cub200", tmp_path)
    server.files["/CUB_200_2011.tgz"], server.stop_after, server.knows_ranges = right, None, True
    data.fetch("cub200", tmp_path)
    assert server.ranges[3:] == ["bytes=1000-"] * 2, "nothing of the wrong files was kept"
    assert_birds(tmp_path)


def test_missing_file_on_the_server_is_reported(server: Server, birds: Archive, tmp_path: Path) -> None:
    server.files.clear()
    with pytest.raises(LookalikeError, match=r"CUB_200_2011\.tgz: cannot be downloaded \(HTTP Error 404"):
        data.fetch("cub200", tmp_path)
    data.KNOWN["cub200"] = replace(
        data.KNOWN["cub200"], archives=(replace(birds, url="http://127.0.0.1:9/x"),)
    )
    with pytest.raises(LookalikeError, match="cannot be downloaded"):
        data.fetch("cub200", tmp_path)


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("tar", tar_of({**BIRDS, "../escaped": b"x"})),
        ("tar", tar_of({**BIRDS, "out/escaped": b"x"}, links={"out": "../.."})),
        ("zip", zip_of({**BIRDS, "../escaped": b"x"})),
        ("zip", zip_of({**BIRDS, "/tmp/lookalike-escaped": b"x"})),
        ("zip", zip_of({**BIRDS, "a/..\\..\\escaped": b"x"})),
        ("zip", zip_of({**BIRDS, "C:/escaped": b"x"})),
    ],
    ids=["tar-parent", "tar-link", "zip-parent", "zip-absolute", "zip-backslash", "zip-drive"],
)
def test_archive_member_outside_the_folder_is_refused(
    server: Server, birds: Archive, tmp_path: Path, kind: str, content: bytes
) -> None:
    small = data.KNOWN["cub200"]
    unpack = small.unpack if kind == "tar" else data.KNOWN["sop"].unpack
    data.KNOWN["cub200"] = replace(small, archives=(server.archive("evil", content),), unpack=unpack)
    with pytest.raises(LookalikeError, match="refused"):
        data.fetch("cub200", tmp_path / "a" / "b")
    assert not list(tmp_path.rglob("escaped"))
    assert not Path("/tmp/lookalike-escaped").exists()
    assert visible_files(tmp_path / "a" / "b") == []


def test_absolute_names_of_a_tar_stay_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "a.tgz").write_bytes(tar_of({"/tmp/lookalike-escaped": b"x"}))
    unpack.tar_files([tmp_path / "a.tgz"], tmp_path / "out", False)
    assert (tmp_path / "out" / "tmp" / "lookalike-escaped").read_bytes() == b"x"
    assert not Path("/tmp/lookalike-escaped").exists()


@pytest.mark.parametrize("unpacker", [unpack.tar_files, unpack.zip_files])
def test_damaged_archive_is_reported(tmp_path: Path, unpacker: Callable[..., None]) -> None:
    whole = (tar_of if unpacker is unpack.tar_files else zip_of)(BIRDS)
    for content in (whole[: len(whole) // 2], b"garbage" * 999, b""):
        (tmp_path / "a").write_bytes(content)
        with pytest.raises(LookalikeError, match="a: cannot be unpacked"):
            unpacker([tmp_path / "a"], tmp_path / "out", False)


def test_interrupted_unpacking_restarts_without_a_download(
    server: Server, birds: Archive, tmp_path: Path
) -> None:
    small = data.KNOWN["cub200"]

    def interrupted(archives: object, target: Path, show_progress: bool) -> None:
        (target / "CUB_200_2011").mkdir()
        (target / "CUB_200_2011" / "images.txt").write_text("half")
        raise KeyboardInterrupt

    data.KNOWN["cub200"] = replace(small, unpack=interrupted)
    with pytest.raises(KeyboardInterrupt):
        data.fetch("cub200", tmp_path)
    assert visible_files(tmp_path) == []
    data.KNOWN["cub200"] = small
    data.fetch("cub200", tmp_path)
    assert len(server.ranges) == 1
    assert_birds(tmp_path)


def test_interrupted_move_is_resumed(tmp_path: Path) -> None:
    data.fetch("digits", tmp_path)
    ready = tmp_path / ".fetching-digits" / "ready"
    ready.mkdir(parents=True)
    (tmp_path / "test").rename(ready / "test")
    data.fetch("digits", tmp_path)
    assert visible_files(tmp_path) == ["test", "train"]
    assert len(data.load(f"digits:{tmp_path}").test) == 896


def test_existing_archive_is_used_and_checked(server: Server, birds: Archive, tmp_path: Path) -> None:
    given = tmp_path / "CUB_200_2011.tgz"
    given.write_bytes(b"something else")
    with pytest.raises(LookalikeError, match="wrong content"):
        data.fetch("cub200", tmp_path)
    given.write_bytes(server.files["/CUB_200_2011.tgz"])
    data.fetch("cub200", tmp_path)
    assert server.ranges == []
    assert visible_files(tmp_path) == ["CUB_200_2011", "CUB_200_2011.tgz"], "what people put there is theirs"


def test_existing_files_are_not_overwritten(server: Server, birds: Archive, tmp_path: Path) -> None:
    (tmp_path / "CUB_200_2011").mkdir()
    (tmp_path / "CUB_200_2011" / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="CUB_200_2011 is in the way"):
        data.fetch("cub200", tmp_path)
    assert server.ranges == []
    assert (tmp_path / "CUB_200_2011" / "mine.txt").read_text() == "mine"


def test_two_processes_at_once(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "lookalike", "datasets", "fetch", "digits", "--root", str(tmp_path)]
    both = [subprocess.Popen(words, cwd=ROOT) for _ in range(2)]
    assert [child.wait(60) for child in both] == [0, 0]
    assert len(data.load(f"digits:{tmp_path}").train) == 901


def photographs(side: int) -> list[np.ndarray]:
    return [np.asarray(draw(seed, (side, side), hue=seed)) for seed in range(4)]


def planes(image: np.ndarray, by_column: bool = False) -> bytes:
    """Return planar bytes of an image: red, green, then blue, by rows or by columns."""
    axes = (2, 1, 0) if by_column else (2, 0, 1)
    return image.transpose(axes).tobytes()


def cifar10_archive() -> tuple[bytes, Callable[..., None], int]:
    batches = {f"cifar-10-batches-bin/data_batch_{n}.bin": b"" for n in range(1, 6)}
    names = "airplane automobile bird cat deer dog frog horse ship truck"
    a, b, c, d = (planes(image) for image in photographs(32))
    batches["cifar-10-batches-bin/data_batch_1.bin"] = b"\x09" + a + b"\x00" + b
    batches["cifar-10-batches-bin/data_batch_5.bin"] = b"\x09" + c
    meta = {"cifar-10-batches-bin/batches.meta.txt": "\n".join([*names.split(), "\n"]).encode()}
    return (
        tar_of({**meta, **batches, "cifar-10-batches-bin/test_batch.bin": b"\x00" + d}),
        arrays.convert_cifar10,
        32,
    )


def cifar100_archive() -> tuple[bytes, Callable[..., None], int]:
    a, b, c, d = (planes(image) for image in photographs(32))
    names = ["airplane", *"bcdefghi", "truck"]  # the last is number 9
    train = b"\x05\x09" + a + b"\x06\x00" + b + b"\x05\x09" + c
    parts = {
        "train.bin": train,
        "test.bin": b"\x06\x00" + d,
        "fine_label_names.txt": "\n".join(names).encode(),
    }
    return (
        tar_of({f"cifar-100-binary/{n}": content for n, content in parts.items()}),
        arrays.convert_cifar100,
        32,
    )


def stl10_archive() -> tuple[bytes, Callable[..., None], int]:
    a, b, c, d = (planes(image, by_column=True) for image in photographs(96))
    names = "airplane bird car cat deer dog horse monkey ship truck"
    parts = {"class_names.txt": "\n".join(names.split()).encode(), "unlabeled_X.bin": bytes(999)}
    parts |= {
        "test_X.bin": d,
        "test_y.bin": b"\x01",
        "train_X.bin": a + b + c,
        "train_y.bin": b"\x0a\x01\x0a",
    }
    return tar_of({f"stl10_binary/{n}": content for n, content in parts.items()}), arrays.convert_stl10, 96


@pytest.mark.parametrize("make", [cifar10_archive, cifar100_archive, stl10_archive])
def test_binary_archives_are_converted_losslessly(
    tmp_path: Path, make: Callable[[], tuple[bytes, Callable[..., None], int]]
) -> None:
    content, write, side = make()
    (tmp_path / "archive.tar.gz").write_bytes(content)
    write([tmp_path / "archive.tar.gz"], tmp_path / "out", False)
    expected = ["train/truck/00000", "train/airplane/00001", "train/truck/00002", "test/airplane/00000"]
    for name, image in zip(expected, photographs(side), strict=True):
        np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "out" / f"{name}.png")), image)
    assert len(list((tmp_path / "out").rglob("*.png"))) == 4
    (tmp_path / "archive.tar.gz").write_bytes(content[: len(content) // 2])
    with pytest.raises(LookalikeError, match="cannot be read"):
        write([tmp_path / "archive.tar.gz"], tmp_path / "again", False)


def test_unfetchable_data_set_is_refused_with_instructions(tmp_path: Path) -> None:
    for name, where in (("cars196", "pytorch/vision"), ("inshop", "mmlab"), ("hotels50k", "GWUvision")):
        assert where in lookalike_here("datasets", "fetch", name, "--root", str(tmp_path), code=2).stderr
    assert list(tmp_path.iterdir()) == []
    listed = lookalike_here("datasets", "list").stdout
    assert all(name in listed for name in data.KNOWN)
