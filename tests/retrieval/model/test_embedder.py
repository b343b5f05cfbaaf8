"""Tests of the embedder: vectors, invalid model files, execution providers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from retrieval import Embedder, Gallery, ImageError, InputError, LookalikeError
from retrieval.model.run_sizes import padded_sizes
from tests.conftest import draw

ROOT = Path(__file__).parents[3]
SIDE = 8


# ---- vectors


def test_batches_of_any_size_give_the_same_vectors(model_file: Path, shop: Path) -> None:
    embedder, paths = Embedder(model_file), sorted(shop.rglob("*.png"))
    whole = embedder.embed(paths)
    assert whole.shape == (24, embedder.dim)
    assert whole.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(whole, axis=1), 1, atol=1e-6)
    for size in (1, 5, 32):
        np.testing.assert_allclose(embedder.embed(paths, batch_size=size), whole, atol=1e-6)
    np.testing.assert_allclose(embedder.embed(str(paths[0])), whole[:1], atol=1e-6)
    with pytest.raises(InputError, match="batch_size must be at least 1"):
        embedder.embed(paths, batch_size=0)


class OnlyDLPack:
    """What is left of a tensor whose library nobody has."""

    def __init__(self, array: np.ndarray, device: int = 1) -> None:
        self._array, self._device = array, device

    def __dlpack__(self, **options: object) -> object:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device, 0


def test_arrays_and_tensors_are_embedded_as_the_images_that_they_hold(model_file: Path) -> None:
    torch = pytest.importorskip("torch")
    embedder, images = Embedder(model_file), [draw(seed) for seed in range(3)]
    batch = np.stack([np.asarray(image) for image in images])
    expected = embedder.embed(images)
    made = torch.from_numpy(batch)
    transposed = torch.from_numpy(np.ascontiguousarray(batch.transpose(0, 3, 1, 2))).permute(0, 2, 3, 1)
    for given in (batch, made, transposed, list(made), list(batch), [made[0], images[1], batch[2]]):
        np.testing.assert_array_equal(embedder.embed(given), expected)
    np.testing.assert_array_equal(embedder.embed(OnlyDLPack(batch)), expected)
    for one in (batch[1], made[1], OnlyDLPack(batch[1])):
        np.testing.assert_array_equal(embedder.embed(one), expected[1:2])
    assert embedder.embed(batch[:0]).shape == (0, embedder.dim)


def test_columns_of_paths_are_embedded(model_file: Path, shop: Path) -> None:
    pandas = pytest.importorskip("pandas")
    embedder, paths = Embedder(model_file), sorted(map(str, shop.rglob("*.png")))
    expected = embedder.embed(paths)
    for column in (np.array(paths), pandas.Series(paths), pandas.Series(paths, index=range(9, 33))):
        np.testing.assert_array_equal(embedder.embed(column), expected)


@pytest.mark.parametrize(
    ("shape", "dtype", "hint"),
    [
        ((3, 40, 48), "uint8", "channels last"),
        ((2, 3, 40, 48), "uint8", "channels last"),
        ((40, 48, 3), "float32", "grey levels from 0 to 255"),
        ((7, 40, 48), "uint8", r"list of \[H, W\]"),
        ((2, 2, 40, 48, 3), "uint8", "got uint8"),
    ],
)
def test_tensors_of_another_layout_are_refused(
    model_file: Path, shape: tuple[int, ...], dtype: str, hint: str
) -> None:
    torch = pytest.importorskip("torch")
    for make in (np.zeros, torch.zeros):
        with pytest.raises(ImageError, match=hint):
            Embedder(model_file).embed(
                make(shape, dtype=getattr(torch if make is torch.zeros else np, dtype))
            )


def test_tensor_on_a_gpu_and_other_things_are_refused(model_file: Path) -> None:
    embedder, pixels = Embedder(model_file), np.zeros((8, 8, 3), np.uint8)
    with pytest.raises(ImageError, match=r"OnlyDLPack: .*another device; copy it to the CPU"):
        embedder.embed(OnlyDLPack(pixels, device=2))
    for other in ([7], 7, None):
        with pytest.raises(ImageError, match="neither a path"):
            embedder.embed(other)


def test_a_file_is_refused_as_one_image(model_file: Path, shop: Path) -> None:
    """Its lines, and the numbers of its bytes, are no images."""
    embedder, path = Embedder(model_file), shop / "red" / "0.png"
    with path.open("rb") as file, pytest.raises(ImageError, match=r"pass what its read\(\) returns"):
        embedder.embed(file)
    for data in (bytearray(path.read_bytes()), memoryview(path.read_bytes())):
        with pytest.raises(ImageError, match=r"pass bytes\(...\) of it"):
            embedder.embed(data)


def test_tensor_is_embedded_without_torch(model_file: Path) -> None:
    program = (
        "import sys, numpy as np\nfrom retrieval import Embedder\n"
        "class Tensor:\n"
        "    pixels = np.zeros((2, 8, 8, 3), np.uint8)\n"
        "    def __dlpack__(self, **options): return self.pixels.__dlpack__(**options)\n"
        "    def __dlpack_device__(self): return 1, 0\n"
        f"print(len(Embedder({str(model_file)!r}).embed(Tensor())), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.split() == ["2", "False"], done.stderr


def test_pixels_of_any_number_give_the_same_vectors(model_file: Path) -> None:
    embedder = Embedder(model_file)
    pixels = np.random.default_rng(0).integers(0, 256, (201, 32, 32, 3), np.uint8)
    one_by_one = np.concatenate([embedder.embed_pixels(image[None]) for image in pixels])
    np.testing.assert_allclose(embedder.embed_pixels(pixels), one_by_one, atol=1e-6)
    np.testing.assert_allclose(embedder.embed_pixels(list(pixels)), one_by_one, atol=1e-6)
    mirrored = pixels[:, :, ::-1]  # not contiguous
    np.testing.assert_allclose(
        embedder.embed_pixels(mirrored), embedder.embed_pixels(mirrored.copy()), atol=1e-6
    )


@pytest.mark.parametrize("batch_size", [None, 1, 6])
def test_padded_runs_give_the_same_vectors(
    model_file: Path, monkeypatch: pytest.MonkeyPatch, batch_size: int | None
) -> None:
    """The runs of an accelerator, on the CPU: few sizes, and the vectors of single images."""
    embedder = Embedder(model_file, device="cpu", batch_size=batch_size)
    pixels = np.random.default_rng(0).integers(0, 256, (300, 32, 32, 3), np.uint8)
    expected = np.concatenate([embedder.embed_in_one_run(pixels[i : i + 1]) for i in range(300)])
    sizes, run = [], embedder.embed_in_one_run
    monkeypatch.setattr(
        embedder, "embed_in_one_run", lambda images: (sizes.append(len(images)), run(images))[1]
    )
    monkeypatch.setattr(embedder, "_run_size", None)
    for count in (1, 3, 37, 300):
        np.testing.assert_allclose(embedder.embed_pixels(pixels[:count]), expected[:count], atol=1e-6)
    assert max(sizes) == embedder.batch_size == (batch_size or 256)
    assert set(sizes) <= {1, 2, 4, 8, 16, 32, 64, 128, 256, embedder.batch_size}
    sizes.clear()
    embedder.warm_up(64)
    assert sizes == [*padded_sizes(min(64, embedder.batch_size))]


@pytest.mark.parametrize("batch_size", [1, 5, 40])
def test_a_given_batch_size_is_that_of_the_runs(
    model_file: Path, monkeypatch: pytest.MonkeyPatch, batch_size: int
) -> None:
    embedder = Embedder(model_file, device="cpu", batch_size=batch_size)
    pixels = np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3), np.uint8)
    expected = embedder.embed_in_one_run(pixels)
    sizes, run = [], embedder.embed_in_one_run
    monkeypatch.setattr(
        embedder, "embed_in_one_run", lambda images: (sizes.append(len(images)), run(images))[1]
    )
    np.testing.assert_allclose(embedder.embed_pixels(pixels), expected, atol=1e-6)
    assert max(sizes) == batch_size
    sizes.clear()
    embedder.warm_up(64)
    assert not sizes, "a CPU prepares nothing"


def test_empty_input_gives_no_vectors(model_file: Path) -> None:
    embedder = Embedder(model_file)
    for empty in (
        embedder.embed([]),
        embedder.embed_pixels([]),
        embedder.embed_pixels(np.empty((0, 32, 32, 3), np.uint8)),
    ):
        assert empty.shape == (0, 16)
        assert empty.dtype == np.float32


def test_large_batches_run_in_parts(tmp_path: Path) -> None:
    """The graph returns its batch size."""
    nodes = [
        *batch_size_nodes(),
        helper.make_node("Cast", ["n"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Expand", ["number", "shape"], ["embedding"]),
    ]
    embedder = Embedder(write(tmp_path / "m.onnx", nodes))
    sizes = embedder.embed_pixels(np.zeros((1000, SIDE, SIDE, 3), np.uint8))
    assert sizes.shape == (1000, 1)
    assert sizes.max() <= 64
    assert embedder.embed_pixels(np.zeros((3, SIDE, SIDE, 3), np.uint8)).tolist() == [[3], [3], [3]]


@pytest.mark.parametrize("fastest", [1, 4, 32])
def test_runs_have_the_fastest_size(model_file: Path, monkeypatch: pytest.MonkeyPatch, fastest: int) -> None:
    """A run of n images takes n (1 + |log2(n / fastest)|) seconds, the first one of each size 100 more."""
    now = 0.0
    sizes: list[int] = []

    def run(pixels: np.ndarray) -> np.ndarray:
        nonlocal now
        now += len(pixels) * (1 + abs(np.log2(len(pixels) / fastest))) + 100 * (len(pixels) not in sizes)
        sizes.append(len(pixels))
        return np.zeros((len(pixels), 1), np.float32)

    embedder = Embedder(model_file)
    monkeypatch.setattr(embedder, "embed_in_one_run", run)
    monkeypatch.setattr("retrieval.model.embedder.time", SimpleNamespace(thread_time=lambda: now))
    pixels = np.zeros((384, 32, 32, 3), np.uint8)
    for size in (1, 8, 15):
        embedder.embed_pixels(pixels[:size])
    assert max(sizes) == 8, "too few images to measure"
    sizes.clear()
    for start in range(0, 80, 20):
        embedder.embed_pixels(pixels[start : start + 20])
    embedder.embed_pixels(pixels[:256])
    assert set(sizes) == {1, 2, 4, 8, 16, 32}, "12 groups of 20 or 32, two of each size"
    sizes.clear()
    embedder.embed_pixels(pixels)
    embedder.embed_pixels(pixels[:31])
    assert set(sizes[:-1]) == {fastest}
    assert sum(sizes) == 415


@pytest.mark.parametrize(
    ("pixels", "got"),
    [
        (np.zeros((2, 32, 32, 3), np.float32), r"float32 \[2, 32, 32, 3\]"),
        (np.zeros((2, 3, 32, 32), np.uint8), r"uint8 \[2, 3, 32, 32\]"),
        (np.zeros((2, 31, 32, 3), np.uint8), r"uint8 \[2, 31, 32, 3\]"),
        (np.zeros((32, 32, 3), np.uint8), r"uint8 \[32, 32, 3\]"),
        ([np.zeros((32, 32, 3), np.uint8), np.zeros((16, 16, 3), np.uint8)], "different shapes"),
    ],
    ids=["type", "channels first", "size", "no batch", "ragged"],
)
def test_pixels_of_wrong_type_or_shape_are_rejected(model_file: Path, pixels: Any, got: str) -> None:
    with pytest.raises(InputError, match=rf"pixels must be uint8 \[N, 32, 32, 3\], got {got}"):
        Embedder(model_file).embed_pixels(pixels)


def test_unreadable_image_raises(model_file: Path, tmp_path: Path) -> None:
    with pytest.raises(ImageError):
        Embedder(model_file).embed([draw(0), tmp_path / "missing.png"])


def test_failure_at_run_time_is_reported_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    nodes = [
        *batch_size_nodes(),
        helper.make_node("Cast", ["images"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Flatten", ["numbers"], ["flat"]),  # [N, 192]
        helper.make_node("Slice", ["flat", "zero", "one", "one"], ["first"]),  # [N, 1]
        helper.make_node("Gather", ["first", "n"], ["embedding"], axis=1),  # column n does not exist
    ]
    embedder = Embedder(write(tmp_path / "m.onnx", nodes))
    with pytest.raises(LookalikeError, match=r"m\.onnx: the model failed on CPU.* with 2 images") as caught:
        embedder.embed_pixels(np.zeros((2, SIDE, SIDE, 3), np.uint8))
    assert not isinstance(caught.value, InputError), "the input is valid"
    assert len(str(caught.value).splitlines()) == 1
    assert capfd.readouterr() == ("", "")


def test_output_width_is_checked_at_run_time(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["images"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Flatten", ["numbers"], ["flat"]),  # [N, 192]
        helper.make_node("ReduceMax", ["flat", "zero"], ["brightest"], keepdims=0),  # [192]
        helper.make_node("Cast", ["brightest"], ["lit"], to=TensorProto.BOOL),
        helper.make_node("Compress", ["flat", "lit"], ["embedding"], axis=1),  # [N, lit]
    ]
    embedder = Embedder(write(tmp_path / "m.onnx", nodes))
    pixels = np.zeros((2, SIDE, SIDE, 3), np.uint8)
    pixels[:, 0, 0, 0] = 9
    assert embedder.embed_pixels(pixels).tolist() == [[9], [9]]
    with pytest.raises(InputError, match=r"output is \[2, 192\] for 2 images, but the metadata has dim 1"):
        embedder.embed_pixels(pixels + np.uint8(1))


# ---- files


def test_fingerprint_is_the_sha256_of_the_file(model_file: Path) -> None:
    assert Embedder(model_file).fingerprint == sha256(model_file.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda model: b"", "not a complete ONNX model"),
        (lambda model: b"not a model", "not a complete ONNX model"),
        (lambda model: model.read_bytes()[:5000], "not a complete ONNX model"),
        (lambda model: without_metadata(model), "not one written by"),
        (lambda model: changed(model, format={"version": 2}), "format 2 .*update lookalike"),
        (lambda model: changed(model, format={"version": 2}, embedding=[]), "format 2 .*update lookalike"),
        (lambda model: changed(model, format={}), r"metadata is damaged \(no 'version'\)"),
        (lambda model: changed(model, format=1), "metadata is damaged"),
        (lambda model: changed(model, preprocess={"size": "32"}), "metadata is damaged"),
        (lambda model: changed(model, preprocess={"side": 32}), "metadata is damaged .*'side'"),
        (lambda model: changed(model, embedding={}), r"metadata is damaged \(no 'dim'\)"),
        (lambda model: changed(model, embedding={"dim": "many"}), "metadata is damaged"),
        (lambda model: changed(model, provenance=["a list"]), "metadata is damaged"),
        (lambda model: changed(model, provenance=None), r"metadata is damaged \(no 'provenance'\)"),
        (lambda model: cut_metadata(model), "metadata is damaged"),
        (
            lambda model: changed(model, embedding={"dim": 17}),
            r"embedding should be .*\[N, 17\], but is .*16",
        ),
        (lambda model: changed(model, preprocess={"size": 64}), r"images should be .*\[N, 64, 64, 3\]"),
        (lambda model: fixed_batch(model), r"images should be .*\[N, 32, 32, 3\], but is .*\[1, 32"),
        (lambda model: renamed_output(model), "embedding should be .*, but is missing"),
    ],
)
def test_invalid_model_file_is_rejected_with_the_reason(
    tmp_path: Path, model_file: Path, content: Callable[[Path], bytes], message: str
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content(model_file))
    with pytest.raises(InputError, match=message) as caught:
        Embedder(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["", "model.onnx"])
def test_a_gallery_in_place_of_its_model_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "g" / "model").mkdir(parents=True)
    (tmp_path / "g" / "model" / "model.onnx").touch()
    with pytest.raises(InputError, match=r"lookalike export RUN"):
        Embedder(tmp_path / "g" / name)
    (tmp_path / "g" / "gallery.db").touch()
    with pytest.raises(InputError, match=r"the model of this gallery is \S+/g/model/model.onnx$"):
        Embedder(tmp_path / "g" / name)


@pytest.mark.parametrize(("name", "message"), [("m.onnx", "no such model file"), ("", "a folder")])
def test_missing_model_file_hints_at_export(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(InputError, match=f"{message}.*lookalike export"):
        Embedder(tmp_path / name)


def test_model_without_a_map_embeds_and_searches(model_file: Path, tmp_path: Path, shop: Path) -> None:
    model = onnx.load(model_file)
    del model.graph.output[1]
    onnx.save(model, tmp_path / "m.onnx")
    plain, full = Embedder(tmp_path / "m.onnx"), Embedder(model_file)
    assert (plain.has_map, full.has_map) == (False, True)
    paths = sorted(shop.rglob("*.png"))
    np.testing.assert_allclose(plain.embed(paths), full.embed(paths), atol=1e-6)
    gallery = Gallery.create(tmp_path / "g", plain)
    gallery.add([shop])
    assert gallery.search(paths[5], 1)[0].path == str(paths[5])


# ---- execution providers


def test_missing_accelerator_falls_back_to_the_cpu(model_file: Path) -> None:
    """Requested twice, it prints one line, with the requirements."""
    program = (
        "import sys; from retrieval import Embedder\n"
        "for name in sys.argv[2:]: print(name, Embedder(sys.argv[1], provider=name).provider)"
    )
    names = ["cuda", "coreml", "openvino", "cpu"]
    command = [sys.executable, "-c", program, str(model_file), *names, *names]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    runs_on = dict(line.split() for line in done.stdout.splitlines())
    assert list(runs_on) == names
    missing = [name for name, kind in runs_on.items() if name != "cpu" and kind == "CPUExecutionProvider"]
    assert len(done.stderr.splitlines()) == len(missing)
    for name, line in zip(missing, done.stderr.splitlines(), strict=True):
        assert line.startswith(f"{name} does not work here, so the CPU runs the model; it needs ")


@pytest.mark.parametrize("name", [pytest.param("cuda", marks=pytest.mark.gpu), "coreml", "openvino"])
def test_accelerators_agree_with_the_cpu(model_file: Path, name: str) -> None:
    cpu, other = Embedder(model_file, device="cpu"), Embedder(model_file, provider=name)
    if other.provider == cpu.provider:
        pytest.skip(f"needs a device for {name}, and the ONNX Runtime for it")
    pixels = np.random.default_rng(0).integers(0, 256, (300, 32, 32, 3), np.uint8)
    expected = cpu.embed_pixels(pixels)
    for count in (1, 3, 70, 300):
        assert (other.embed_pixels(pixels[:count]) * expected[:count]).sum(1).min() > 0.999
    with ThreadPoolExecutor(other.concurrency) as pool:
        parts = pool.map(other.embed_pixels, np.split(pixels, 10))
    assert (np.concatenate([*parts]) * expected).sum(1).min() > 0.999


def test_auto_uses_the_cpu_without_accelerators(model_file: Path) -> None:
    if {"CUDAExecutionProvider", "CoreMLExecutionProvider", "OpenVINOExecutionProvider"} & set(
        ort.get_available_providers()
    ):
        pytest.skip("needs an ONNX Runtime for the CPU alone")
    assert Embedder(model_file).provider == "CPUExecutionProvider"


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs a system that lists threads")
def test_number_of_threads(model_file: Path) -> None:
    program = (
        "import os, sys, time; from retrieval import Embedder\n"
        "count = lambda: time.sleep(0.2) or len(os.listdir('/proc/self/task'))\n"  # ended threads are gone
        "for threads in (1, 4):\n"
        "    before = count(); kept = Embedder(sys.argv[1], provider='cpu', threads=threads)\n"
        "    print(count() - before + 1)\n"  # the caller's thread works too
    )
    command = [sys.executable, "-c", program, str(model_file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == ["1", "4"]


def test_invalid_arguments_are_rejected(model_file: Path) -> None:
    with pytest.raises(InputError, match=r"provider 'gpu': .*known: auto, cuda, coreml"):
        Embedder(model_file, provider="gpu")
    with pytest.raises(InputError, match="threads must be at least 1"):
        Embedder(model_file, threads=0)


# ---- model files


def batch_size_nodes() -> list[onnx.NodeProto]:
    """Return nodes that compute the batch size `n` [1] and the shape [n, 1] from `images`."""
    return [
        helper.make_node("Shape", ["images"], ["all"]),
        helper.make_node("Slice", ["all", "zero", "one"], ["n"]),
        helper.make_node("Concat", ["n", "one"], ["shape"], axis=0),
    ]


def write(path: Path, nodes: list[onnx.NodeProto]) -> Path:
    """Write a model of dim 1 from nodes that lead from `images` to `embedding`."""
    numbers = {"zero": [0], "one": [1]}
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("images", TensorProto.UINT8, ["N", SIDE, SIDE, 3])],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["M", 1])],
        [helper.make_tensor(name, TensorProto.INT64, [len(v)], v) for name, v in numbers.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    facts = {
        "format": {"version": 1},
        "preprocess": {"size": SIDE},
        "embedding": {"dim": 1},
        "provenance": {},
    }
    helper.set_model_props(model, {f"lookalike.{name}": json.dumps(value) for name, value in facts.items()})
    onnx.save_model(model, path)
    return path


def changed(model_file: Path, **parts: object) -> bytes:
    """Return the model with parts of its metadata replaced; `None` deletes a part."""
    model = onnx.load(model_file)
    kept = {p.key: p.value for p in model.metadata_props}
    kept |= {f"lookalike.{name}": json.dumps(value) for name, value in parts.items()}
    helper.set_model_props(model, {key: text for key, text in kept.items() if text != "null"})
    return model.SerializeToString()


def without_metadata(model_file: Path) -> bytes:
    model = onnx.load(model_file)
    del model.metadata_props[:]
    return model.SerializeToString()


def cut_metadata(model_file: Path) -> bytes:
    model = onnx.load(model_file)
    for entry in model.metadata_props:
        entry.value = entry.value[:-1]
    return model.SerializeToString()


def fixed_batch(model_file: Path) -> bytes:
    model = onnx.load(model_file)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    return model.SerializeToString()


def renamed_output(model_file: Path) -> bytes:
    """Return the model with the embedding map as its only output."""
    model = onnx.load(model_file)
    del model.graph.output[0]
    return model.SerializeToString()


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file whose disk fails")
def test_a_disk_that_fails_is_no_wrong_input() -> None:
    """Reading the first page of a process's memory is an I/O error."""
    with pytest.raises(LookalikeError, match=r"cannot be read \(Input/output error\)") as caught:
        Embedder(Path("/proc/self/mem"), device="cpu")
    assert caught.value.exit_code == 1
