"""One torch thread for all tests here: small networks are slower with more. Short measurements of latency."""

from collections.abc import Iterator

import pytest
import torch

import export.cost

torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def short_benchmark() -> Iterator[None]:
    """The latency of a file is measured with the least number of repetitions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export.cost, "_SECONDS", 0.0)
        yield
