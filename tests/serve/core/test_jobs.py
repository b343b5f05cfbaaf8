"""Jobs and the slot for background work: states, progress, removal, and several processes."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from retrieval.errors import InputError
from retrieval.progress import Progress
from serve.core.background import Background
from serve.core.errors import BusyError, UnknownJobError
from serve.core.jobs import KEPT, Jobs
from tests.conftest import wait_until


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    return Jobs(tmp_path)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Event that lets work end; set in the end, whatever happens."""
    gate = threading.Event()
    yield gate
    gate.set()


def ended(jobs: Jobs, id: str) -> str:
    wait_until(lambda: jobs.get(id).state != "running")
    wait_until(is_idle)
    return jobs.get(id).state


def is_idle() -> bool:
    """Return whether background work can start."""
    try:
        Background[None]().start("", lambda: None)
    except BusyError:
        return False
    return True


def test_job_reports_progress_and_keeps_its_result(jobs: Jobs, gate: threading.Event, tmp_path: Path) -> None:
    def work() -> str:
        with Progress("comparing", 10, "pairs", show=False) as progress:
            gate.wait(30)
            progress.update(10)
        return '{"a": 1}'

    job = jobs.start("duplicates", work)
    wait_until(lambda: jobs.get(job.id).progress)
    running = jobs.get(job.id)
    assert (running.state, running.kind, running.ended) == ("running", "duplicates", None)
    assert running.progress is not None
    assert (running.progress.what, running.progress.total, running.progress.unit) == (
        "comparing",
        10,
        "pairs",
    )
    with pytest.raises(BusyError):
        jobs.start("other", lambda: "")
    with pytest.raises(BusyError):  # the page has the same slot
        Background[None]().start("page", lambda: None)
    assert [one.id for one in jobs.all()] == [job.id]
    gate.set()
    assert ended(jobs, job.id) == "done"
    found = Jobs(tmp_path)  # as another process reads it
    assert (found.get(job.id).progress, found.result(job.id)) == (None, '{"a": 1}')


def test_failure_is_kept_and_an_unexpected_one_reveals_nothing(jobs: Jobs) -> None:
    for error, code, detail in (
        (InputError("no labels"), "invalid-request", "no labels"),
        (OSError("/secret/path"), "internal-error", "internal error: the server's log has the details"),
    ):

        def work(error: Exception = error) -> str:
            raise error

        job = jobs.start("evaluation", work)
        assert ended(jobs, job.id) == "failed"
        failure = jobs.get(job.id).failure
        assert failure is not None
        assert (failure.code, failure.detail) == (code, detail)
        with pytest.raises(UnknownJobError):
            jobs.result(job.id)


def test_removed_job_stops(jobs: Jobs, gate: threading.Event, tmp_path: Path) -> None:
    steps = []

    def work() -> str:
        for step in range(1000):
            with Progress("counting", 1, "steps", show=False):
                steps.append(step)
                gate.wait(0.01)
        return ""

    job = jobs.start("map", work)
    wait_until(lambda: steps)
    Jobs(tmp_path).remove(job.id)
    wait_until(is_idle)
    assert len(steps) < 1000
    assert list(tmp_path.iterdir()) == []
    for call in (jobs.get, jobs.result, jobs.remove):
        with pytest.raises(UnknownJobError):
            call(job.id)


def test_newest_jobs_are_kept(jobs: Jobs, tmp_path: Path) -> None:
    started = []
    for _ in range(KEPT + 3):
        started.append(jobs.start("map", lambda: "1").id)
        ended(jobs, started[-1])
    assert {job.id for job in jobs.all()} == {*started[3:]}
    assert len({file.stem for file in tmp_path.iterdir()}) == KEPT


def test_job_of_a_dead_process_has_failed(jobs: Jobs, tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from serve.core.jobs import Jobs; import time\n"
        "job = Jobs(Path(sys.argv[1])).start('map', lambda: time.sleep(60) or '')\n"
        "print(job.id, flush=True); sys.stdin.read(1); os._exit(1)"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        id = other.stdout.readline().strip()
        assert jobs.get(id).state == "running"
        other.communicate("x")
    found = jobs.get(id)
    assert found.state == "failed"
    assert found.failure is not None
    assert "start it again" in found.failure.detail


@pytest.mark.parametrize("id", ["", "0" * 16, "../../etc/passwd", "0" * 15 + "\n"])
def test_unknown_ids_are_refused(jobs: Jobs, id: str) -> None:
    with pytest.raises(UnknownJobError):
        jobs.get(id)
