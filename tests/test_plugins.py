"""Plug-ins: an example package that is really installed, a file of one's own, and what goes wrong."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distribution
from multiprocessing import forkserver
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lookalike import Embedder, Gallery, InputError, LookalikeError, losses, metrics
from retrieval import plugins
from retrieval.metrics import table
from retrieval.metrics.table import all_metrics
from retrieval.stores.opening import find_driver
from tests.conftest import lookalike_here
from train.experiments.isolation import run_isolated
from train.losses import registry
from train.models.backbones import build_backbone

UV = Path(sys.executable).with_name("uv")
ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "tests" / "plugin_example"
KINDS = ("loss", "negatives", "mining", "regularizer")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is plugged in before and after a test."""
    before = {kind: dict(registry.entries(kind)) for kind in KINDS}
    modules = set(sys.modules)
    monkeypatch.setenv(plugins.VARIABLE, "")
    monkeypatch.setattr(plugins, "_registered", {kind: {} for kind in plugins.KINDS})
    monkeypatch.setattr(plugins, "_imported", set())
    plugins._entry_points.cache_clear()
    yield
    plugins._entry_points.cache_clear()
    forkserver._forkserver._stop()  # it has the variable, and so would all later processes
    for kind in KINDS:
        registry._ENTRIES[kind] = before[kind]
    for name in set(sys.modules) - modules:
        if name.startswith(("lookalike_example", "lookalike_import_", "broken_plugin")):
            del sys.modules[name]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the example package is installed into."""
    if not UV.is_file():
        pytest.skip("needs uv in the environment")
    folder = tmp_path_factory.mktemp("site")
    source = shutil.copytree(EXAMPLE, tmp_path_factory.mktemp("source") / "plugin_example")
    words = ["pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--python", sys.executable]
    subprocess.run([UV, *words, "--target", folder, source], check=True)
    return folder


@pytest.fixture
def package(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(installed)
    return installed


def distribution_in(folder: Path, name: str, entry_points: str) -> None:
    """Write the metadata of an installed distribution."""
    info = folder / f"{name}-3.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 3.0\n")
    (info / "entry_points.txt").write_text(entry_points)


# ---- the example package


def test_training_with_the_loss_miner_negatives_regularizer_and_backbone_of_a_package(
    package: Path, shop: Path, tmp_path: Path
) -> None:
    """One run; then it is measured with the metric of the package, as are our own."""
    short = ["--set", "epochs=1", "--set", "preprocess.size=16", "--set", "split.validation=0.0"]
    short += ["--set", "model.backbone=tiny", "--set", "model.embedding_dim=8"]
    spec = (
        "loss={name: triplet, mining: {name: second-hardest}, regularizers: [{name: centered, weight: 0.1}]}"
    )
    run = str(tmp_path / "run")
    words = ["train", "--recipe", "scratch", "--data", f"folder:{shop}", "--out", run, *short]
    lookalike_here(*words, "--set", spec)
    report = str(tmp_path / "report")
    printed = lookalike_here("evaluate", run, "--data", f"folder:{shop}", "--out", report)
    assert "MRR" in printed.stdout.splitlines()[0]
    (*_, result) = json.loads((tmp_path / "report" / "report.json").read_text())["results"]
    assert result["values"]["recall_at_1"] <= result["values"]["mrr"] <= 1
    low, high = result["intervals"]["mrr"]
    assert low <= result["values"]["mrr"] <= high
    assert "MRR" in (tmp_path / "report" / "report.html").read_text()


def test_values_of_the_loss_and_of_the_miner(package: Path) -> None:
    """Compared with loops over samples."""
    torch.manual_seed(0)
    x = torch.nn.functional.normalize(torch.randn(8, 6, dtype=torch.float64), dim=1)
    labels = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])
    cosine, gaps, triplets = x @ x.T, [], []
    for a in range(8):
        own = [cosine[a, b] for b in range(8) if labels[b] == labels[a] and b != a]
        other = sorted(cosine[a, b] for b in range(8) if labels[b] != labels[a])
        gaps.append(max(0.0, float(sum(other) / len(other) - sum(own) / len(own) + 0.7)))
        near, far = (float((2 - 2 * value) ** 0.5) for value in (max(own), other[-2]))
        triplets.append(max(0.0, near - far + 0.9))
    gap = losses.build({"name": "gap", "margin": 0.7})
    assert float(gap(x, labels)) == pytest.approx(np.mean(gaps), abs=1e-6)
    spec = {"name": "triplet", "margin": 0.9, "mining": {"name": "second-hardest"}, "reduction": "mean"}
    mined = losses.build({**spec, "normalize": True, "squared": False})
    assert float(mined(x, labels)) == pytest.approx(np.mean(triplets), abs=1e-6)


def test_parts_of_a_package_are_checked_as_ours_are(package: Path) -> None:
    x, labels = torch.nn.functional.normalize(torch.randn(8, 6), dim=1), torch.arange(8) // 2
    ours, theirs = (
        losses.build({"name": "n-pair", "negatives": name}) for name in ("optimal-segment", "mirrored")
    )
    assert float(ours(x, labels)) == float(theirs(x, labels))
    with pytest.raises(ValueError, match="no parameter 'margn'; did you mean 'margin'"):
        losses.build({"name": "gap", "margn": 1})
    with pytest.raises(ValueError, match="margin is 'wide'; it takes a finite number"):
        losses.build({"name": "gap", "margin": "wide"})
    with pytest.raises(ValueError, match="'gap' does not take mining 'second-hardest': it takes none"):
        losses.build({"name": "gap", "mining": {"name": "second-hardest"}})
    with pytest.raises(ValueError, match="no loss named 'gab'; did you mean 'gap'"):
        losses.build({"name": "gab"})


def test_list_names_distributions_and_imports_nothing(package: Path) -> None:
    text = lookalike_here("losses").stdout
    assert "\nPlug-ins\n\ngap: loss of lookalike-example 1.2\n" in text
    facts = json.loads(lookalike_here("losses", "--json").stdout)
    assert {"kind": "mining", "name": "second-hardest", "plug-in": "lookalike-example 1.2"} in facts
    assert "lookalike_example" not in sys.modules
    described = lookalike_here("losses", "gap").stdout
    assert "gap: Mean cosine with other classes" in described
    assert "[lookalike-example 1.2]" in described
    assert "margin=0.5" in described
    assert "gap: loss of" not in lookalike_here("losses").stdout, "it is one of the losses now"


def test_backbone_of_a_package(package: Path) -> None:
    assert build_backbone("tiny", None, 16)(torch.zeros(2, 3, 16, 16)).shape == (2, 8, 4, 4)
    with pytest.raises(InputError, match="unknown backbone 'tinny'; did you mean 'tiny'"):
        build_backbone("tinny", None, 16)


def test_gallery_of_the_embedder_of_a_package(package: Path, shop: Path, tmp_path: Path) -> None:
    """From the export to a search; the gallery stays as it is without the package, and says what it needs."""
    model, gallery = tmp_path / "colours.json", tmp_path / "shop.gallery"
    lookalike_here("export", "--from", "colours:8", "--out", str(model))
    lookalike_here("index", "build", str(gallery), str(shop), "--model", str(model))
    pixels = np.asarray(Image.open(shop / "red" / "0.png").convert("RGB").resize((32, 32)))
    embedder = Embedder(model)
    (vector,) = embedder.embed_pixels(pixels[None])
    counts = [np.histogram(pixels[..., c], bins=8, range=(0, 256))[0] / 32**2 for c in range(3)]
    assert vector == pytest.approx(np.sqrt(np.concatenate(counts) / 3), abs=1e-6)
    (answer,) = json.loads(
        lookalike_here("search", str(gallery), str(shop / "red" / "0.png"), "--json").stdout
    )
    assert answer["hits"][0]["path"].endswith("red/0.png")
    assert answer["hits"][0]["score"] == pytest.approx(1, abs=1e-5)
    assert lookalike_here("index", "verify", str(gallery)).returncode == 0
    assert "MRR" in lookalike_here("evaluate", str(gallery)).stdout
    refused = lookalike_here("teach", str(gallery), code=2).stderr
    assert "its model is an embedder of a plug-in, which can get no layer" in refused
    refused = lookalike_here("hub", "card", str(model), "--out", str(tmp_path / "card"), code=2).stderr
    assert "publish an ONNX file" in refused
    (gallery_model,) = (gallery / "model").glob("model.*")
    facts = json.loads(gallery_model.read_text())
    facts["lookalike.plug-in"]["fingerprint"] = "another histogram"
    model.write_text(json.dumps(facts))
    with pytest.raises(InputError, match=r"made of lookalike-example 1\.2, and lookalike-example 1\.2 gives"):
        Embedder(model)
    sys.path.remove(str(package))
    plugins._entry_points.cache_clear()
    with pytest.raises(InputError, match="no embedder 'colours' among the plug-ins; install its package"):
        _ = Gallery.open(gallery).embedder


# ---- a file of one's own


FILE = (ROOT / "docs" / "plugins.md").read_text().partition("```python\n")[2].partition("```")[0] + (
    "register_plugin('backbones', 'flat', lambda: nn.Sequential(nn.Conv2d(3, 4, 4, stride=4)))\n"
)


def test_file_of_ones_own(shop: Path, tmp_path: Path) -> None:
    """Whoever uses the run gives it again: a run does not say what code to execute."""
    (tmp_path / "mine.py").write_text(FILE)
    short = ["epochs=1", "preprocess.size=16", "split.validation=0.0", "model.embedding_dim=8"]
    short += ["model.backbone=flat", "loss={name: gap}"]
    settings = [word for setting in short for word in ("--set", setting)]
    train = ["train", "--recipe", "scratch", "--data", f"folder:{shop}", "--out", "run", *settings]
    assert (
        "a file of yours that defines one is given by --import"
        in lookalike_here(*train, code=2, cwd=tmp_path).stderr
    )
    done = lookalike_here(*train, "--import", "mine.py", cwd=tmp_path)
    assert "1 epoch" in done.stdout
    evaluate = ["--import=mine.py", "evaluate", "run", "--data", f"folder:{shop}"]
    assert "First" in lookalike_here(*evaluate, cwd=tmp_path).stdout
    assert run_isolated(plugins.plugin_names, "backbones") == {"flat": str(tmp_path / "mine.py")}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "there is no such Python file"),
        ("import nowhere_at_all", "it fails (ModuleNotFoundError: No module named 'nowhere_at_all')"),
        ("x = 1 +", "it fails (SyntaxError"),
        (
            "from lookalike import register_plugin\nregister_plugin('metric', 'a', 1)",
            "did you mean 'metrics'?",
        ),
    ],
)
def test_file_that_cannot_be_imported(text: str | None, message: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "mine.py").write_text(text)
    said = lookalike_here("losses", "--import", "mine.py", code=2, cwd=tmp_path).stderr
    assert said.startswith(f"lookalike: --import {tmp_path / 'mine.py'}: ")
    assert message in said
    assert said.count("\n") == 1


# ---- what goes wrong


def test_plugin_that_cannot_be_imported_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distribution_in(tmp_path, "broken", "[lookalike.losses]\nbad = broken_plugin:Bad\n")
    (tmp_path / "broken_plugin.py").write_text("import a_library_that_is_gone")
    monkeypatch.syspath_prepend(tmp_path)
    plugins._entry_points.cache_clear()
    assert losses.build({"name": "triplet"}) is not None
    lookalike_here("losses")
    with pytest.raises(
        LookalikeError, match=r"loss 'bad': the plug-in broken_plugin:Bad .*a_library_that_is_gone"
    ):
        losses.build({"name": "bad"})
    assert "repair broken 3.0, or uninstall it" in lookalike_here("losses", "bad", code=1).stderr


def test_name_of_two_distributions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        distribution_in(tmp_path, name, "[lookalike.stores]\nshelf = broken_plugin:Shelf\n")
    monkeypatch.syspath_prepend(tmp_path)
    plugins._entry_points.cache_clear()
    with pytest.raises(InputError, match=r"'shelf': given by one 3\.0 and two 3\.0; uninstall all but one"):
        find_driver("shelf")
    assert find_driver("qdrant").form.startswith("qdrant")


def test_metric_of_a_plugin_must_be_one_of_a_new_key(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins.register_plugin("metrics", "again", table.METRICS[0])
    with pytest.raises(LookalikeError, match=r"metric 'again' of .*: the key 'recall_at_.k.' is taken"):
        all_metrics()
    monkeypatch.setattr(plugins, "_registered", {kind: {} for kind in plugins.KINDS})
    plugins.register_plugin("metrics", "function", metrics.map_at_r)
    with pytest.raises(LookalikeError, match="is no Metric"):
        all_metrics()


def test_nothing_of_others_is_in_this_environment() -> None:
    """Other tests would measure it, too. One of them may have installed the store in memory."""
    assert {kind for kind in plugins.KINDS if plugins.plugin_names(kind)} <= {"stores"}
    found = set(plugins.plugin_names("stores").values()) - {"lookalike-memory 1"}
    assert found == {f"lookalike {distribution('lookalike').version}"}
