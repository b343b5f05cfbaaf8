"""--device of the commands that train: it wins over the settings, and moves a run."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import draw_classes, lookalike_here
from train.loop.run_folder import Run

SMALL = ("epochs=0", "preprocess.size=24", "model.embedding_dim=8", "split.validation=0", "device=cuda:99")


def words(command: str, shop: Path, out: Path) -> list[str]:
    settings = [word for setting in SMALL for word in ("--set", setting)]
    return [command, "--recipe", "scratch", "--data", f"folder:{shop}", "--out", str(out), *settings]


def test_train_and_resume_take_the_device_of_the_option(tmp_path: Path, shop: Path) -> None:
    out = tmp_path / "run"
    refused = lookalike_here(*words("train", shop, out), code=2)
    assert "device: 'cuda:99' cannot be used here" in refused.stderr
    assert not out.exists()
    lookalike_here(*words("train", shop, out), "--device", "cpu")
    assert Run.open(out).config.device == "cpu"
    Run.open(out).move_to("cuda:99")
    resume = ("train", "--out", str(out), "--resume")
    assert "cuda:99" in lookalike_here(*resume, code=2).stderr
    lookalike_here(*resume, "--device", "cpu")
    assert Run.open(out).config.device == "cpu"


def test_runs_of_a_sweep_take_the_device_of_the_option(tmp_path: Path, shop: Path) -> None:
    divided = tmp_path / "divided"
    for split in ("train", "test"):
        draw_classes(divided / split, 3, 4, first=10 * len(split))
    given = [*words("sweep", divided, tmp_path), "--variant", "plain", "--seeds", "0,", "--no-baselines"]
    run = tmp_path / "plain" / "seed-0"
    lookalike_here(*given, code=1)
    assert "cuda:99" in (run / "failure.txt").read_text()
    lookalike_here(*given, "--device", "cpu")
    assert Run.open(run).config.device == "cpu"


def test_unknown_device_is_refused(shop: Path, tmp_path: Path) -> None:
    done = lookalike_here(*words("train", shop, tmp_path / "run"), "--device", "mps", code=2)
    assert "known: auto, cpu, cuda, cuda:N" in done.stderr
