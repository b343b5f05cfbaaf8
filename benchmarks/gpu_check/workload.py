"""Work of the checks: backbones, images and runs, large for a GPU and small for a trial on a CPU."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks._photographs import write_photographs

FEW = 8  # classes of the images that a model is exported with


@dataclass(frozen=True)
class Workload:
    """What the checks run on.

    Attributes:
        device: Device under test.
        folder: Folder for the files of the checks.
        backbones: Name -> side of the images in pixels. All begin with random weights.
        batches: Images of a training step, smallest first.
        classes: Classes of the image folder, of four images each.
        vectors: Vectors of the FAISS checks.
        models: Model files of the user; empty for untrained networks.
        given_images: Folder of images of the user.
    """

    device: torch.device
    folder: Path
    backbones: dict[str, int]
    batches: tuple[int, ...]
    classes: int
    vectors: int
    models: tuple[Path, ...] = ()
    given_images: Path | None = None

    @classmethod
    def on(
        cls,
        device: torch.device,
        folder: Path,
        models: tuple[Path, ...] = (),
        given_images: Path | None = None,
    ) -> Workload:
        """Return the work for a device."""
        given = {"models": models, "given_images": given_images}
        if device.type == "cuda":
            backbones = {
                "resnet50": 224,
                "timm:vit_small_patch16_224": 224,
                "timm:vit_base_patch16_224": 224,
            }
            return cls(device, folder, backbones, batches=(128, 512), classes=1000, vectors=200_000, **given)
        return cls(device, folder, {"conv4": 32}, batches=(16,), classes=8, vectors=2000, **given)

    @property
    def batch(self) -> int:
        """Images of a training step where one size is measured."""
        return self.batches[0]

    @property
    def main_backbone(self) -> tuple[str, int]:
        """Name and side of the backbone that is exported."""
        return next(iter(self.backbones.items()))

    def images(self, classes: int | None = None) -> Path:
        """Return a folder with one sub-folder of four JPEG files of 500 x 375 pixels per class."""
        classes = classes or self.classes
        folder = self.folder / f"images-{classes}"
        if not folder.exists():
            write_photographs(folder, classes, 4)
        return folder

    def model(self, precision: str = "fp32", backbone: str | None = None) -> Path:
        """Return a model file of a backbone, by default the main one, in a precision."""
        backbone = backbone or self.main_backbone[0]
        name, side = backbone.rpartition(":")[2], self.backbones[backbone]
        file = self.folder / f"{name}-{precision}.onnx"
        if file.exists():
            return file
        run, images = self.folder / f"{name}-run", self.images(FEW)
        if not run.exists():
            lookalike(
                *("train", "--recipe", "scratch", "--data", f"folder:{images}", "--out", str(run)),
                *settings(
                    device=self.device,
                    epochs=1,
                    split__validation=0,
                    batch__per_epoch=2,
                    model__backbone=backbone,
                ),
                *settings(preprocess__size=side, preprocess__resize=side),
            )
        data = ("--data", f"folder:{images}", "--accept-loss")
        lookalike("export", str(run), "--out", str(file), "--precision", precision, *data)
        return file


def settings(**values: object) -> list[str]:
    """Return values as --set options; `a__b` stands for a.b."""
    return [part for key, value in values.items() for part in ("--set", f"{key.replace('__', '.')}={value}")]


def lookalike(*arguments: str, check: bool = True) -> subprocess.Popen[str]:
    """Run a command in a process of its own.

    Args:
        arguments: Arguments of `lookalike`.
        check: Wait for its end and raise an error with its last lines if it fails.
    """
    return module("lookalike", *arguments, check=check)


def module(*words: str, check: bool = True) -> subprocess.Popen[str]:
    """Run a module, whose name comes first, as `lookalike` runs its commands."""
    command = [sys.executable, "-m", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if check:
        output, _ = process.communicate()
        if process.returncode:
            tail = " ".join(output.split()[-40:])
            raise RuntimeError(f"{' '.join(words[:3])} failed: ... {tail}")
    return process
