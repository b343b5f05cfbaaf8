"""Draw docs/demo.png from a finished `lookalike demo`: neighbours of queries before and after training.

    lookalike demo --data emoji --no-serve --out demo
    python docs/demo_image.py demo docs/demo.png

Needs Chromium. "Before" is the pretrained backbone as it is, with the preprocessing published for it: the
baseline of the demo's report, whose numbers the image states. The queries are drawn at random from four
groups, to show what was learnt and what was not; every neighbour is what the search returns.
"""

from __future__ import annotations

import base64
import html
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from playwright.sync_api import sync_playwright

from export.pretrained import PretrainedBackbone, export_backbone
from lookalike import Embedder
from retrieval.evaluation.report import Report

BACKBONE = PretrainedBackbone("timm", "tf_efficientnet_lite0", weights="lite0")
NEIGHBOURS = 5
SEED = 0
STYLE = """
* { box-sizing: border-box; margin: 0 }
body { width: 960px; padding: 26px 32px 20px; background: #fff; color: #1f2328;
  font: 15px/1.4 Inter, "Noto Sans", "DejaVu Sans", sans-serif }
table { border-collapse: collapse }
th { padding: 0 0 10px; text-align: left; font-weight: 600 }
th small { display: block; color: #59636e; font-size: 13px; font-weight: 400 }
td { padding: 5px 5px }
td:first-child { padding: 5px 14px 5px 0 }
td.gap { min-width: 34px }
.tile { position: relative; width: 60px; height: 60px; padding: 5px; border: 1px solid #e4e7eb;
  border-radius: 12px }
.tile img { display: block; width: 48px; height: 48px; mix-blend-mode: multiply }
.query { border-color: #cfd6de; background: #f2f5f8 }
.right { padding: 4px; border: 2px solid #1a7f37; background: #f0fbf3 }
.right::after { content: "✓"; position: absolute; right: -8px; top: -8px; width: 20px; height: 20px;
  border-radius: 50%; background: #1a7f37; color: #fff; font: 700 13px/20px sans-serif; text-align: center }
.name { width: 132px; color: #59636e; font-size: 13px; line-height: 1.25 }
footer { margin-top: 16px; padding-top: 12px; border-top: 1px solid #e4e7eb; color: #59636e; font-size: 12px }
"""


def search(embedder: Embedder, files: list[Path]) -> np.ndarray:
    """Return the nearest other files of each file, int [N, NEIGHBOURS]."""
    vectors = embedder.embed(files)
    scores = vectors @ vectors.T
    np.fill_diagonal(scores, -np.inf)
    nearest: np.ndarray = np.argsort(-scores, axis=1)[:, :NEIGHBOURS]
    return nearest


def choose(files: list[Path], before: np.ndarray, after: np.ndarray) -> list[int]:
    """Return the numbers of six queries, drawn at random from four groups.

    Three that only the trained network finds; one that it finds first and the network before found later; and
    two flags that it confuses with another flag, one found later and one not.
    """
    right = [
        np.array([[files[n].parent == f.parent for n in row] for f, row in zip(files, rows, strict=True)])
        for rows in (before, after)
    ]
    flag = np.array([f.parent.name.startswith("flag") or f.parent.name.endswith("flag") for f in files])
    confused = flag & flag[after[:, 0]] & ~right[1][:, 0]
    learnt = right[1][:, 0] & ~right[0][:, 0] & ~flag
    groups = [
        (learnt & ~right[0].any(1), 3),
        (learnt & right[0].any(1), 1),
        (confused & right[1].any(1), 1),
        (confused & ~right[1].any(1), 1),
    ]
    random = np.random.default_rng(SEED)
    return [int(n) for mask, count in groups for n in random.permutation(np.flatnonzero(mask))[:count]]


def tile(file: Path, kind: str) -> str:
    content = base64.b64encode(file.read_bytes()).decode()
    return f'<td><div class="tile {kind}"><img src="data:image/png;base64,{content}"></div></td>'


def page(folder: Path) -> str:
    """Return the HTML of the image for the folder of a demo."""
    files = sorted((folder / "emoji" / "test").glob("*/*.png"))
    with tempfile.TemporaryDirectory() as place:
        export_backbone(BACKBONE, Path(place) / "before.onnx")
        before = search(Embedder(Path(place) / "before.onnx"), files)
    after = search(Embedder(folder / "model.onnx"), files)
    pixels, untrained, trained = (
        100 * result.values["recall_at_1"] for result in Report.load(folder / "report").results
    )
    rows = []
    for number in choose(files, before, after):
        file, cells = files[number], []
        for neighbours in (before[number], after[number]):
            tiles = [tile(files[n], "right" if files[n].parent == file.parent else "") for n in neighbours]
            cells.append("".join(tiles))
        name = html.escape(file.parent.name.replace("-", " ").title())
        found = "<td class=gap></td>".join(cells)
        found = "<td class=gap></td>".join(cells)
        rows.append(f'<tr>{tile(file, "query")}<td class="name">{name}</td>{found}</tr>')
    emoji = len({file.parent for file in files})
    return f"""<!doctype html><meta charset="utf-8"><style>{STYLE}</style><table><tr>
<th colspan="2">Query<small>an emoji never seen</small></th>
<th colspan="{NEIGHBOURS}">Before training
<small>Recall@1 {untrained:.1f} % (raw pixels {pixels:.1f} %)</small></th>
<th class="gap"></th>
<th colspan="{NEIGHBOURS}">After training<small>Recall@1 {trained:.1f} %</small></th></tr>
{"".join(rows)}</table>
<footer>{emoji} unseen emoji, each drawn by two vendors: one of {len(files) - 1:,} images is right (✓).
Rows drawn at random: four of those that training brought to the first place, two of the flags confused
with another flag.
Drawings: Twemoji, © Twitter, Inc. and other contributors (CC BY 4.0); OpenMoji (CC BY-SA 4.0).
This image: CC BY-SA 4.0.</footer>"""


def main(folder: Path, out: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        tab = browser.new_page(viewport={"width": 960, "height": 100}, device_scale_factor=1.5)
        tab.set_content(page(folder))
        tab.screenshot(path=out, full_page=True)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
