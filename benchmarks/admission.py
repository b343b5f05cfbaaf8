"""Near-duplicates at the door: how many altered copies are refused, and how many other pictures.

Each folder of pictures is one data set. All of its pictures are added to an empty gallery with
`duplicates="refuse"`: those refused are pictures of the data set that look like another one. Then a sample is
altered in each way, and the copies are added to a gallery of all pictures. Nothing is chosen on these sets:
the threshold is the default of `lookalike check duplicates`. The intervals are Wilson's, 95%.

    python -m benchmarks.admission birds/ products/ --model lite0 --json benchmarks/admission.json
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageEnhance

from retrieval import Embedder, Gallery
from retrieval.commands.default_model import chosen_model
from retrieval.ingest.admission import Admission, Arrival
from retrieval.metrics.statistics import wilson_interval
from retrieval.model.runtime import Runtime

SAMPLE = 300


def jpeg(quality: int) -> Callable[[Image.Image], Image.Image]:
    """Return a function that encodes an image again."""

    def encode(image: Image.Image) -> Image.Image:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=quality)
        return Image.open(buffer)

    return encode


def crop(share: float) -> Callable[[Image.Image], Image.Image]:
    """Return a function that cuts a share of width and height off, half of it at each side."""

    def cut(image: Image.Image) -> Image.Image:
        x, y = (round(side * share / 2) for side in image.size)
        return image.crop((x, y, image.width - x, image.height - y))

    return cut


def resized(scale: float) -> Callable[[Image.Image], Image.Image]:
    """Return a function that changes width and height by a factor."""
    return lambda image: image.resize(tuple(max(1, round(side * scale)) for side in image.size))


def hue(degrees: float) -> Callable[[Image.Image], Image.Image]:
    """Return a function that turns the hues."""

    def turn(image: Image.Image) -> Image.Image:
        bands = np.array(image.convert("HSV"))
        bands[..., 0] += np.uint8(round(degrees / 360 * 256))
        return Image.fromarray(bands, "HSV").convert("RGB")

    return turn


ALTERATIONS: dict[str, Callable[[Image.Image], Image.Image]] = {
    "JPEG, quality 75": jpeg(75),
    "JPEG, quality 30": jpeg(30),
    "half the width": resized(0.5),
    "5% cropped": crop(0.05),
    "10% cropped": crop(0.1),
    "20% cropped": crop(0.2),
    "20% brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.2),
    "30% less colour": lambda image: ImageEnhance.Color(image).enhance(0.7),
    "hue turned by 10 degrees": hue(10),
    "grey": lambda image: image.convert("L").convert("RGB"),
    "mirrored": lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
}


def measure(folder: Path, model: Embedder, pairs: Path | None) -> list[dict[str, Any]]:
    """Return a row for the pictures of a folder themselves, and one for each alteration."""
    files = sorted(
        path for path in folder.resolve().rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png")
    )
    with tempfile.TemporaryDirectory() as temporary:
        alone = Gallery.create(Path(temporary) / "alone", model)
        refused = alone.add([folder], duplicates="refuse").refused
        if pairs is not None:
            _show(pairs, folder.name, [(one.path, alone.item(one.id).path) for one in refused])
        rows = [_row(folder, "none: other pictures of the set", len(refused), len(refused), len(files))]
        gallery = Gallery.create(Path(temporary) / "all", model)
        gallery.add([folder])
        chosen = np.random.default_rng(0).choice(len(files), min(SAMPLE, len(files)), replace=False)
        for name, alter in ALTERATIONS.items():
            copies = []
            for number in chosen.tolist():
                buffer = io.BytesIO()
                with Image.open(files[number]) as image:
                    alter(image.convert("RGB")).save(buffer, "PNG")
                copies.append(buffer.getvalue())
            vectors = model.embed(copies)
            start = time.process_time()
            # Each alone, so that no copy of another picture is in its way.
            found = [Admission(gallery).review([Arrival(vector, "")])[0] for vector in vectors]
            spent = time.process_time() - start
            nearest = [one and Path(gallery.item(one.id({})).path) for one in found]
            own = sum(path == files[n] for path, n in zip(nearest, chosen.tolist(), strict=True))
            rows.append(_row(folder, name, sum(map(bool, nearest)), own, len(copies)))
            rows[-1]["ms_each"] = round(1000 * spent / len(copies), 3)
    for row in rows:
        print(json.dumps(row), flush=True)
    return rows


def _row(folder: Path, alteration: str, refused: int, own: int, count: int) -> dict[str, Any]:
    low, high = wilson_interval(refused, count)
    return {
        "set": folder.name,
        "alteration": alteration,
        "pictures": count,
        "refused": refused,
        "as_its_original": own,
        "share": refused / count,
        "low": low,
        "high": high,
    }


def _show(target: Path, name: str, pairs: list[tuple[str, str]]) -> None:
    """Write pictures of pairs side by side, for a person to judge."""
    target.mkdir(parents=True, exist_ok=True)
    for start in range(0, min(len(pairs), 200), 40):
        sheet = Image.new("RGB", (8 * 200, 10 * 100), "white")
        for place, both in enumerate(pairs[start : start + 40]):
            for side, path in enumerate(both):
                with Image.open(path) as image:
                    small = image.convert("RGB").resize((96, 96))
                sheet.paste(small, (place % 8 * 200 + side * 98, place // 8 * 100))
        sheet.save(target / f"{name}-{start}.png")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--model", default="lite0")
    parser.add_argument("--pairs", type=Path, metavar="FOLDER", help="Write pictures of the pairs.")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    model = Embedder(chosen_model(given.model, Runtime()))
    rows = [row for folder in given.folders for row in measure(folder, model, given.pairs)]
    if given.json is not None:
        given.json.write_text(json.dumps({"model": given.model, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
