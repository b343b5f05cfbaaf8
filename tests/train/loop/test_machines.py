"""Training over several machines: two agents of torchrun with their own folders; agreement, messages."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import HashStore

from retrieval import InputError
from tests.conftest import CHECKOUT, SCRIPT, wait_until
from tests.train.forking import start_lookalike, start_torchrun
from tests.train.loop.test_trainer import SMALL, trainer
from tests.train.loop.test_watching import WATCHED, splits
from train import data, settings
from train.config import Config
from train.data import DataSet
from train.loop import agreement
from train.loop.agreement import check_agreement
from train.loop.process_group import ProcessGroup
from train.loop.processes import Messages, OtherProcessError, Processes
from train.loop.run_copies import find_furthest, refuse_begun
from train.loop.run_folder import Run
from train.loop.training_data import TrainingData

__all__ = ["splits"]

# Batch norms and the state of Adam would depend on the share of the batch that a process has.
CHOSEN = ["model.batch_norm=frozen", "optimizer.name=sgd", "batch.classes=2", *WATCHED, "epochs=8"]
CHOSEN += ["checkpoints.every=3", "save_every=1", "batch.hard_classes=1.0", "batch.group=2"]


def folders(machine: Path) -> dict[str, str]:
    """Return the variables that give a machine its own temporary files and caches."""
    return {"TMPDIR": str(machine), "XDG_CACHE_HOME": str(machine), "PYTHONPATH": CHECKOUT}


def agent(machine: Path, number: int, port: str, *words: str) -> BaseProcess:
    """Start torchrun on a machine with one process, which writes its number to the file `pid`."""
    launcher = ["--nnodes", "2", "--nproc-per-node", "1", "--node-rank", str(number)]
    launcher += ["--master-addr", "127.0.0.1", "--master-port", port]
    # torchrun replaces $$ by $.
    shell = ["--no-python", "sh", "-c", 'echo $$$$ > pid; exec "$0" "$@"', SCRIPT]
    own = {"OMP_NUM_THREADS": "1", **folders(machine)}  # other processes must sum in the same order
    return start_torchrun(machine, *launcher, *shell, *words, variables=own)


def process(machine: Path, number: int, port: str, *words: str) -> BaseProcess:
    """Start the process of a machine with the variables that torchrun would set."""
    both = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2"}
    own = {"RANK": str(number), "GROUP_RANK": str(number), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    return start_lookalike(machine, *words, variables={**folders(machine), **both, **own})


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


@pytest.mark.slow
def test_two_machines_equal_one_process_also_when_one_is_killed(tmp_path: Path, splits: Path) -> None:
    """Each machine has its own run folder and data; after the resumption the other one has rank 0."""
    machines = [tmp_path / "a", tmp_path / "b"]
    for machine in machines:
        shutil.copytree(splits, machine / "images")
        (machine / "train.py").write_text("raise SystemExit('the wrong train.py')")
    words = [
        "train",
        "--recipe",
        "scratch",
        "--out",
        "run",
        "--data",
        "folder:images",
        *(w for s in [*SMALL, *CHOSEN] for w in ("--set", s)),
    ]
    first, second = (Run(machine / "run") for machine in machines)
    port = free_port()
    agents = [agent(machine, i, port, *words) for i, machine in enumerate(machines)]
    try:
        wait_until(lambda: first.has_checkpoint("last") and first.checkpoint_state("last")["step"], 120)
        os.kill(int((machines[1] / "pid").read_text()), signal.SIGKILL)
        for one in agents:
            one.join(60)
            assert one.exitcode
    finally:
        for one in agents:
            one.kill()
    assert f"rank 1 ({socket.gethostname()}) ended without a message" in (machines[0] / "stderr").read_text()
    assert not second.has_checkpoint("last"), "only the main process writes"

    port, words = free_port(), ["train", "--out", "run", "--resume", "--json"]
    processes = [process(machine, i, port, *words) for i, machine in enumerate(machines[::-1])]
    for each in processes:
        each.join(120)
        assert each.exitcode == 0, (machines[1] / "stderr").read_text()
    output = (machines[1] / "stdout").read_text()
    one = trainer(tmp_path / "one", f"folder:{splits}", *CHOSEN)
    facts = one.train()
    assert json.loads(output)["steps"] == facts["steps"] == 24
    assert second.kept_steps == one.run.kept_steps
    assert json.dumps(second.watched()) == json.dumps(one.run.watched())
    for name, value in one.run.trained("last").state_dict().items():
        torch.testing.assert_close(value, second.trained("last").state_dict()[name], rtol=1e-3, atol=1e-5)
    assert first.checkpoint_digest("last") == second.checkpoint_digest("last"), "the copies are equal"
    assert first.metrics() == second.metrics()


def on_machines(function: Callable[[Processes], Any], count: int = 2) -> list[Any]:
    """Call a function as each process of a group, with one process a machine; return results and errors."""
    store = HashStore()

    def call(rank: int) -> Any:
        try:
            own = Processes(rank, count, 0, 1, rank, count, Messages(store, rank, count))
            with own.failing_together():
                return function(own)
        except Exception as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(call, range(count)))


@pytest.fixture(scope="module")
def agreed(splits: Path) -> tuple[Config, DataSet]:
    config = settings.resolve(f"folder:{splits}", None, SMALL)
    return config, data.load(config.data)


def test_machines_with_the_same_images_elsewhere_agree(
    agreed: tuple[Config, DataSet], tmp_path: Path
) -> None:
    config, dataset = agreed
    moved = shutil.copytree(Path(config.data.partition(":")[2]), tmp_path / "elsewhere")
    there = config.model_copy(update={"data": f"folder:{moved}", "device": "cpu"})
    sides = [(config, dataset), (there, data.load(there.data))]
    assert on_machines(lambda own: check_agreement(own, *sides[own.rank])) == [None, None]
    file = data.load(there.data).train[3].path
    file.write_bytes(file.read_bytes() + b"\0")
    for error in on_machines(lambda own: check_agreement(own, *sides[own.rank])):
        assert isinstance(error, InputError)
        assert "differs from rank 0: training images of other names, labels or sizes; copy" in str(error)


@pytest.mark.parametrize("difference", ["epochs 5, not 20", "44 training images, not 45", "torch 2, not 0"])
def test_machine_that_differs_is_named(
    agreed: tuple[Config, DataSet], difference: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, dataset = agreed
    other = config.model_copy(update={"epochs": 5}) if "epochs" in difference else config
    fewer = dataclasses.replace(dataset, train=dataset.train[1:]) if "44" in difference else dataset
    sides, rank = [(config, dataset), (config, dataset), (other, fewer)], threading.local()
    if "torch" in difference:
        monkeypatch.setattr(agreement, "_versions", lambda: {"torch": str(rank.number // 2 * 2)})

    def check(own: Processes) -> None:
        rank.number = own.rank
        check_agreement(own, *sides[own.rank])

    for error in on_machines(check, 3):
        assert isinstance(error, InputError)
        assert str(error).startswith(f"rank 2 ({socket.gethostname()}): differs from rank 0: {difference}; ")


def test_error_of_a_process_ends_the_others() -> None:
    def work(own: Processes) -> None:
        if own.rank == 1:
            raise InputError("images: no such folder")
        own.gather("arrived")

    failed, cause, other = on_machines(work, 3)
    assert type(cause) is InputError
    for error in (failed, other):
        assert isinstance(error, OtherProcessError)
        assert str(error) == f"training: ended by rank 1 ({socket.gethostname()}): images: no such folder"


def test_run_is_resumed_from_the_furthest_copy(tmp_path: Path, splits: Path) -> None:
    """Of three machines: settings only, a checkpoint, and no folder."""
    folders = [tmp_path / name for name in "abc"]
    ours = trainer(folders[1], f"folder:{splits}", "epochs=0")
    ours.train()
    Run.start(folders[0], ours.config.model_copy(update={"device": "cpu"}))
    for found in on_machines(lambda own: find_furthest(folders[own.rank], own), 3):
        assert found == (1, ours.config)
    where = rf"on rank 1 \({socket.gethostname()}\): holds a run already; --resume continues it"
    for error in on_machines(lambda own: refuse_begun(folders[own.rank], own), 3):
        assert isinstance(error, InputError)
        assert re.search(where, str(error))
    shutil.rmtree(folders[0])
    Run.start(folders[0], ours.config.model_copy(update={"epochs": 4}))
    for error in on_machines(lambda own: find_furthest(folders[own.rank], own), 3):
        assert isinstance(error, InputError)
        assert re.search(r"another run than on rank 1 \(.*\): epochs 4, not 0", str(error))


def test_processes_of_a_machine_share_the_decoded_images(
    agreed: tuple[Config, DataSet], tmp_path: Path
) -> None:
    config, dataset = agreed
    loaders = []
    for rank in (2, 3):
        group = ProcessGroup(torch.device("cpu"), Processes(rank, 4, rank % 2, 2, 1, 2))
        loaders.append(TrainingData(dataset, config, group, tmp_path).loader())
    assert len(list((tmp_path / "decoded-1").glob("*.pictures"))) == 1
    for one in loaders:
        one.close()
    assert not list(tmp_path.iterdir())
