"""The server's log: lines on stderr, as text for people or as JSON for machines."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from retrieval.cli import print_status

_log = logging.getLogger("lookalike.serve")


class _Json(logging.Formatter):
    """One object a line: time, level, logger, message, and what else is known about a request."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure(level: str, form: str) -> None:
    """Send everything from `level` on to stderr, as `text` or `json`."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(_Json() if form == "json" else text)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("lookalike").setLevel(level.upper())


def tell(message: str, form: str) -> None:
    """Say how it goes, so that stderr keeps its format."""
    if form == "json":
        _log.info(message)
    else:
        print_status(message)
