"""Cores and memory in containers: made-up control files of cgroup v2."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from retrieval.machine import resources
from retrieval.machine.resources import cores, free_memory

MB = 2**20


@pytest.fixture
def cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 64 cores and 8000 MB available; this process is in the cgroup pods/ours."""
    (tmp_path / "pods" / "ours").mkdir(parents=True)
    (tmp_path / "own").write_text("9:name=systemd:/elsewhere\n0::/pods/ours\n")
    (tmp_path / "meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable:   {8000 * 1024} kB\nBuffers: 1 kB\n")
    monkeypatch.setattr(resources, "_CGROUPS", tmp_path)
    monkeypatch.setattr(resources, "_OWN_CGROUP", tmp_path / "own")
    monkeypatch.setattr(resources, "_MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    return tmp_path


def test_without_limits_everything_may_be_used(cgroups: Path) -> None:
    (cgroups / "pods" / "ours" / "cpu.max").write_text("max 100000\n")
    (cgroups / "pods" / "ours" / "memory.max").write_text("max\n")
    assert (cores(), free_memory()) == (64, 8000 * MB)
    (cgroups / "own").unlink()  # no cgroup v2
    assert (cores(), free_memory()) == (64, 8000 * MB)


@pytest.mark.parametrize("folder", ["pods/ours", "pods", "."])
def test_the_limit_of_a_containing_group_counts(cgroups: Path, folder: str) -> None:
    (cgroups / folder / "cpu.max").write_text("750000 100000\n")
    (cgroups / folder / "memory.max").write_text(f"{1000 * MB}\n")
    (cgroups / folder / "memory.current").write_text(f"{700 * MB}\n")
    (cgroups / folder / "memory.stat").write_text(f"anon 5\ninactive_file {200 * MB}\nslab 1\n")
    assert (cores(), free_memory()) == (8, 500 * MB)
    (cgroups / folder / "cpu.max").write_text("10000 100000\n")
    assert cores() == 1


def test_memory_of_a_system_without_meminfo(cgroups: Path) -> None:
    (cgroups / "meminfo").unlink()
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert free_memory() == total // 2
