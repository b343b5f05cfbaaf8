"""How tests are shared among the worker processes of pytest-xdist."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling


class Scheduling(LoadFileScheduling):
    """The files of the page go to one worker, for one browser and one server; each other file to any.

    These files come first and mostly wait, so the other workers compute at the same time.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return "page" if file.startswith("tests/e2e/test_page") else file
