"""The Hugging Face Hub: models published and fetched, data sets read; a local server has its protocol.

Each scenario is one process, since huggingface_hub reads its settings when it is imported.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from retrieval import Embedder, InputError
from retrieval.evaluation.report import Report
from retrieval.evaluation.score import Result
from retrieval.reports.model_card import write_pretrained
from tests.conftest import CHECKOUT, draw
from tests.e2e.test_readme import blocks, commands
from tests.hub_server import HubServer

DOCS = Path(CHECKOUT) / "docs"
datasets = pytest.importorskip("datasets", reason="datasets is not installed")

TRIED = """
import json, sys
from retrieval.errors import LookalikeError
def tried(call):
    try:
        return call()
    except LookalikeError as error:
        return [error.exit_code, str(error)]
"""


@pytest.fixture(scope="module")
def server() -> Iterator[HubServer]:
    with HubServer().running() as hub:
        hub.tokens.add("secret")
        hub.private.add("me/private")
        yield hub


def run(server: HubServer, folder: Path, program: str, *arguments: str, cwd: Path | str = CHECKOUT) -> Any:
    """Run a program with the settings of the server; return the JSON of its last line."""
    done = subprocess.run(
        [sys.executable, "-c", TRIED + program, *arguments],
        env={**os.environ, **server.environment(folder), "HF_TOKEN": "secret"},
        capture_output=True,
        text=True,
        cwd=cwd,
    )
    assert done.returncode == 0, done.stderr
    assert "Retrying" not in done.stderr
    return json.loads(done.stdout.splitlines()[-1])


MODELS = """
from pathlib import Path
from retrieval import Embedder
from retrieval.cli import cli
def command(*words):
    return tried(lambda: cli.main(["hub", *words], standalone_mode=False))
file, out = sys.argv[1:3]
found = {"push": command("push", file, "me/shop", "--json"), "pull": command("pull", "me/shop", "--out", out)}
found["fingerprint"] = Embedder.from_pretrained("me/shop").fingerprint
found["none"] = command("pull", "me/none", "--out", out)
found["private"] = command("pull", "me/private", "--out", out)
found["revision"] = command("pull", "me/shop", "--revision", "old", "--out", out)
found["other"] = command("pull", "you/other", "--out", out)
found["bad"] = command("pull", "shop", "--out", out)
found["folder"] = command("pull", "me/shop", "--out", str(Path(out).parent))
found["made"] = command("pull", "me/shop", "--out", str(Path(out).parent / "new" / "back.onnx"))
import os
os.environ["HF_TOKEN"] = "wrong"
found["denied"] = command("push", file, "me/shop")
print(json.dumps(found))
"""


def test_a_published_model_comes_back_unchanged(server: HubServer, tmp_path: Path, model_file: Path) -> None:
    server.files["models", "you/other"] = {"README.md": b"other", "config.json": b"{}"}
    found = run(server, tmp_path, MODELS, str(model_file), str(tmp_path / "back.onnx"))
    published = server.files["models", "me/shop"]
    assert published["model.onnx"] == model_file.read_bytes() == (tmp_path / "back.onnx").read_bytes()
    assert (tmp_path / "new" / "back.onnx").read_bytes() == model_file.read_bytes()
    assert found["fingerprint"] == Embedder(model_file).fingerprint
    assert set(published) == {"README.md", "config.json", "model.onnx"}
    for name, code, text in [
        ("none", 2, "me/none: there is no such repository"),
        ("private", 2, "HF_TOKEN"),
        ("revision", 2, "no such revision"),
        ("other", 2, "not a model of Lookalike"),
        ("bad", 2, "write USER/NAME"),
        ("folder", 2, "a folder, not a file"),
        ("denied", 2, "not permitted"),
    ]:
        assert found[name][0] == code
        assert text in found[name][1]
        assert "\n" not in found[name][1]


UNREACHABLE = """
import os
from pathlib import Path
from tests.hub_server import HubServer
file, out = sys.argv[1:3]
with HubServer().running() as stopped:
    os.environ.update(stopped.environment(Path(out).parent))
    stopped.files["models", "me/cached"] = {"words.txt": b"cached"}
    from retrieval.model import hub
    cached = hub.download("me/cached", ["*.txt"])
import huggingface_hub
huggingface_hub.close_session()  # its connection outlives the server
from retrieval.cli import cli
from train import data
def command(*words):
    return tried(lambda: cli.main(["hub", *words], standalone_mode=False))
print(json.dumps({
    "url": stopped.url,
    "pull": command("pull", "me/shop", "--out", out),
    "push": command("push", file, "me/shop"),
    "data": tried(lambda: str(data.load("hf:me/set"))),
    "cached": hub.download("me/cached", ["*.txt"]) == cached,
}))
"""


def test_unreachable_hub_is_an_error_at_once(server: HubServer, tmp_path: Path, model_file: Path) -> None:
    """Without it, files in the cache are used."""
    found = run(server, tmp_path, UNREACHABLE, str(model_file), str(tmp_path / "out.onnx"))
    assert found.pop("cached")
    url = found.pop("url")
    for code, text in found.values():
        assert code == 1
        assert f"the hub cannot be reached ({url}: [Errno" in text
        assert "check the network" in text


def test_model_card_states_the_report_and_no_folder(tmp_path: Path, model_file: Path) -> None:
    embedder = Embedder(model_file)
    values = {"recall_at_1": 0.625, "recall_at_2": 0.75, "map_at_r": 0.5}
    results = [
        Result("pixels", {"recall_at_1": 0.25}),
        Result("trained", values, intervals={"map_at_r": (0.4, 0.6)}),
    ]
    report = Report("folder:/home/me/birds", "leave one out", 1200, 30, embedder.fingerprint, results)
    (tmp_path / "report").mkdir()
    report.save(tmp_path / "report")
    write_pretrained(embedder, tmp_path / "card", "me/shop", tmp_path / "report")
    card = (tmp_path / "card" / "README.md").read_text()
    _, front, text = card.split("---\n", 2)
    facts = yaml.safe_load(front)
    assert facts["library_name"] == "lookalike"
    (result,) = facts["model-index"][0]["results"]
    assert result["dataset"]["name"] == "birds"
    assert {m["type"]: m["value"] for m in result["metrics"]}.items() >= {"recall_at_1": 0.625}.items()
    (row,) = (line for line in text.splitlines() if line.startswith("| trained"))
    assert [cell.strip() for cell in row.split("|")[2:4]] == ["62.5", "75.0"]
    assert "50.0 (40.0 to 60.0)" in row
    assert "/home" not in card
    assert str(tmp_path) not in card
    assert Embedder.from_pretrained(tmp_path / "card").fingerprint == embedder.fingerprint

    (tmp_path / "card" / "model.onnx").write_bytes(b"damaged")
    with pytest.raises(Exception, match="not the file that was published"):
        Embedder.from_pretrained(tmp_path / "card")
    (tmp_path / "other").mkdir()
    Report("x", "y", 1, 1, "0" * 64, results).save(tmp_path / "other")
    with pytest.raises(InputError, match="evaluates model 000000000000"):
        write_pretrained(embedder, tmp_path / "card2", "me/shop", tmp_path / "other")


DATA = """
from train import data
def facts(spec):
    found = data.load(spec)
    rows = [[[image.label, image.path.suffix, image.path.read_bytes().hex()[:16]] for image in part]
            for part in (found.train, found.test)]
    return [*rows, found.train[0].path.parent.name]
print(json.dumps({spec: tried(lambda: facts(spec)) for spec in sys.argv[1:]}))
"""


def parquet(count: int, first: int, label: str = "label") -> bytes:
    """Return images of two classes as a Parquet file, as the hub stores them."""
    kinds = {"image": datasets.Image(), label: datasets.ClassLabel(names=["red", "blue"])}
    features = datasets.Features({**kinds, "shop": datasets.Value("string")})
    rows: dict[str, list[Any]] = {"image": [], label: [], "shop": []}
    for seed in range(first, first + count):
        buffer = io.BytesIO()
        draw(seed, hue=seed % 2).save(buffer, "PNG" if seed % 3 else "JPEG")
        rows["image"].append({"bytes": buffer.getvalue(), "path": None})
        rows[label].append(seed % 2)
        rows["shop"].append(f"shop {seed % 3}")
    buffer = io.BytesIO()
    datasets.Dataset.from_dict(rows, features=features).to_parquet(buffer)
    return buffer.getvalue()


def test_data_sets_of_the_hub(server: HubServer, tmp_path: Path) -> None:
    """Split, labels and bytes as published; columns by name; problems in one line."""
    server.files["datasets", "me/set"] = {
        "data/train-00000-of-00001.parquet": parquet(6, 0),
        "data/validation-00000-of-00001.parquet": parquet(4, 6),
    }
    specs = ["hf:me/set", "hf:me/set?label=shop&test=validation", "hf:me/set?label=no", "hf:me/set?test=no"]
    found = run(server, tmp_path, DATA, *specs, "hf:me/none", "hf:me/set?colour=red")
    train, test, _ = found["hf:me/set"]
    assert [row[0] for row in train] == ["red", "blue"] * 3
    assert [row[1] for row in train] == [".png" if seed % 3 else ".jpg" for seed in range(6)]
    assert [row[0] for row in test] == ["red", "blue"] * 2
    assert train[1][2] == b"\x89PNG\r\n\x1a\n".hex()
    assert {row[0] for row in found[specs[1]][0]} == {"shop 0", "shop 1", "shop 2"}
    for spec, text in [
        ("hf:me/set?label=no", "it has image, label, shop"),
        ("hf:me/set?test=no", "it has train, validation"),
        ("hf:me/none", "me/none"),
        ("hf:me/set?colour=red", "unknown option 'colour'"),
    ]:
        assert found[spec][0] == 2
        assert text in found[spec][1]
        assert "\n" not in found[spec][1]


PAGE = """
from retrieval.cli import cli
for words in json.loads(sys.argv[1]):
    cli.main(words, standalone_mode=False)
for program in sys.argv[2:]:
    exec(program)
print("true")
"""


@pytest.mark.slow
def test_commands_of_the_page_run(server: HubServer, tmp_path: Path, model_file: Path, shop: Path) -> None:
    """Those with the hub, and the program; `tests/retrieval/ingest/test_remote.py` has remote storage."""
    server.files["datasets", "me/birds"] = {"data/train-00000-of-00001.parquet": parquet(8, 0, "species")}
    (tmp_path / "model.onnx").write_bytes(model_file.read_bytes())
    (tmp_path / "test").symlink_to(shop)
    short = ["--set", "epochs=1", "--set", "preprocess.size=32", "--set", "model.backbone=conv4"]
    text = (DOCS / "hub.md").read_text()
    ran = [shlex.split(line)[1:] for line in commands(text) if "://" not in line]
    for words in ran:
        if words[0] == "train":
            words += short
    assert len(ran) == 6
    arguments = json.dumps(ran).replace("revision=v1", "revision=main")
    assert run(server, tmp_path, PAGE, arguments, *blocks("python", text), cwd=tmp_path)
