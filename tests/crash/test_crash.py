"""An accident of each command, every kind as often as the others. `make crash` has thousands."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.operations import DATABASES, OPERATIONS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def attempts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """A process without threads, which answers a line for each attempt."""
    program = (
        "import json, random, sys; from pathlib import Path\n"
        "from tests.crash.harness import BrokenPromiseError, Site\n"
        "site = Site(Path(sys.argv[1]))\n"
        "for line in sys.stdin:\n"
        "    name, accident, seed = json.loads(line)\n"
        "    try: problem = site.attempt(name, accident, random.Random(seed)) and ''\n"
        "    except BrokenPromiseError as error: problem = str(error)\n"
        "    print(json.dumps(problem), flush=True)\n"
        "site.close()\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path_factory.mktemp("crash"))]
    here = Path(__file__).parents[2]
    with subprocess.Popen(
        command, cwd=here, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.parametrize("name", OPERATIONS)
def test_promises_are_kept(name: str, attempts: subprocess.Popen[str]) -> None:
    number, accidents = [*OPERATIONS].index(name), OPERATIONS[name].accidents
    accident = accidents[number % len(accidents)]
    if database := OPERATIONS[name].database:
        pytest.importorskip(DATABASES[database][1], reason="needs the engine of the database")
    assert attempts.stdin is not None
    assert attempts.stdout is not None
    attempts.stdin.write(json.dumps([name, accident, random.Random(name).randrange(10**6)]) + "\n")
    attempts.stdin.flush()
    problem = json.loads(attempts.stdout.readline())
    assert not problem, problem
