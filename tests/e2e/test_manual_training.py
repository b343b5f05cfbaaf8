"""Commands of the pages on training, tuning and teaching, with small networks, few images and few steps."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import lookalike_here
from tests.e2e.test_manual import DOCS, GALLERY_PAGES, LEFT_OUT, PROGRAMS, REASONS
from tests.e2e.test_readme import CONTINUED, blocks, commands
from tests.serve.model import DIM, write_model

PAGES = (
    "training",
    "training_options",
    "tuning",
    "teach",
    "unlabelled",
    "pairs",
    "losses",
    "backbones",
    "recipes",
)
OTHER_PAGES = ("tutorial", "stores", "hub")  # in test_readme.py, test_manual.py and test_hub.py
# In place of data sets and weights to download, and of much work.
REPLACED = {
    "cars196:ROOT": "folder:divided",
    "timm:vit_base_patch14_dinov2.lvd142m --set model.weights=imagenet": "timm:test_vit "
    "--set model.weights=null --recipe catalogue",
    "model.embedding_dim=1280": f"model.embedding_dim={DIM}",  # of the teacher
    "--trials 20 --seeds 10": "--trials 2 --seeds 1",
    "--out rates.svg": "--out rates.svg --steps 30",
    "info model.onnx": "info model.onnx --no-latency",
}
# Settings for pages that name no backbone, and others for all.
SMALL = ("model.backbone=timm:test_resnet", "model.weights=weights.safetensors")
SHORT = ("epochs=1", "preprocess.size=32", "batch.per_epoch=1", "batch.classes=8")
TEACHING = ("steps=40", "batch.classes=12", "folds=2", "powers=[0.0]", "blends=[0.0, 0.5]")


def write_images(folder: Path, colours: np.ndarray) -> None:
    """Write an image of 4 x 4 places for each row of colours [N, 48], in deviations from grey."""
    folder.mkdir(parents=True)
    for number, pixels in enumerate(np.clip(128 + 25 * colours, 0, 255).astype(np.uint8)):
        image = Image.fromarray(pixels.reshape(4, 4, 3))
        image.resize((32, 32), Image.Resampling.BICUBIC).save(folder / f"{number}.png")


def write_classes(folder: Path, classes: int, each: int) -> None:
    """Write images whose classes differ in a few colours, with more noise in the others."""
    random = np.random.default_rng(0)
    for number in range(classes):
        center = np.pad(random.normal(size=8), (0, 40))
        noise = np.repeat([0.3, 0.5, 2.5], [8, 32, 8]) * random.normal(size=(each, 48))
        write_images(folder / f"{number:02d}", center + noise)


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the pages assume: images with and without labels, model files, a gallery, tables."""
    import timm
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("material")
    write_classes(folder / "shop", 40, 8)
    for part in ("train", "test"):
        write_classes(folder / "divided" / part, 8, 4)
    random = np.random.default_rng(0)
    brightness, bands = random.normal(size=(80, 1)), random.normal(size=(80, 4, 1, 3))  # as copies have them
    write_images(folder / "photos", 2 + brightness + 0.6 * bands.repeat(4, 2).reshape(80, 48))
    for name in ("model.onnx", "large.onnx"):
        write_model(folder / name)
    save_file(timm.create_model("test_resnet").state_dict(), folder / "weights.safetensors")
    paths = [path.relative_to(folder / "shop") for path in sorted(folder.glob("shop/*/*.png"))]
    (folder / "corrections.csv").write_text("".join(["path,label\n", *(f"{p},{p.parent}\n" for p in paths)]))
    rows = [f"shop/{path},{path.parent},department {int(path.parent.name) % 4}\n" for path in paths]
    for table in ("shop.csv", "domains.csv"):
        (folder / table).write_text("".join(["path,label,coarse\n", *rows]))
    pairs = [
        f"shop/{a},shop/{b},{int(a.parent == b.parent)}\n" for a, b in zip(paths, paths[4:], strict=False)
    ]
    (folder / "compared.csv").write_text("".join(["image_a,image_b,label\n", *pairs]))
    (methods,) = blocks("yaml", (DOCS / "tuning.md").read_text())
    (folder / "methods.yaml").write_text(methods)
    lookalike_here("index", "build", "shop.gallery", "shop", "--model", "model.onnx", cwd=folder)
    return folder


@pytest.fixture
def place(material: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, with caches of its own; the latency of exported files is measured once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("export.cost._SECONDS", 0.0)
    return Path(shutil.copytree(material, tmp_path / "reader"))


def replaced(command: str) -> str:
    for text, other in REPLACED.items():
        command = command.replace(text, other)
    return command


def shortened(command: str) -> list[str]:
    """Return the words of a command, with settings for less work."""
    words = shlex.split(command, comments=True)[1:]
    if words[0] == "teach" and "--undo" not in words:
        return words + settings(*TEACHING)
    if "--data" in words and words[0] in {"train", "sweep", "tune", "analyze"}:
        at = words.index("--data")  # the settings of the command itself come later, and count
        small = () if "model.backbone" in command else SMALL
        words[at:at] = settings(*small, "model.embedding_dim=16")
        words += settings(*SHORT)
    return words


def settings(*texts: str) -> list[str]:
    return [word for text in texts for word in ("--set", text)]


def of_page(page: Path) -> list[str]:
    """Return the commands of Lookalike on a page, with what replaces data and weights."""
    return [replaced(line) for line in commands(page.read_text()) if "lookalike " in line]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_commands_of_pages_on_training_run(page: str, place: Path) -> None:
    ran = [command for command in of_page(DOCS / f"{page}.md") if not LEFT_OUT.search(command)]
    assert ran
    for command in ran:
        lookalike_here(*shortened(command), cwd=place)


def test_other_commands_have_a_reason_not_to_run() -> None:
    run = {*PAGES, *GALLERY_PAGES, *OTHER_PAGES, *(page.stem for page in CONTINUED)}
    texts = {page.stem: of_page(page) for page in DOCS.glob("*.md")}
    left = [command for page, found in texts.items() if page not in run for command in found]
    assert not [command for command in left if not LEFT_OUT.search(command)]
    everything = [*(text for part in (texts, PROGRAMS) for found in part.values() for text in found)]
    assert not [reason for reason in REASONS if not any(map(re.compile(reason).search, everything))]
