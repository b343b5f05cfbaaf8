"""Log configuration: text or JSON lines on stderr, without loading the web framework."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from retrieval.cli import print_status
from retrieval.text import printable, printable_lines

_log = logging.getLogger("lookalike.serve")


class _TextFormatter(logging.Formatter):
    """Formats a record as text without control characters; only a traceback has several lines."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return printable_lines(text) if record.exc_info else printable(text)


class _JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object per line: time, level, logger, message and request fields."""

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


def configure_logging(level: str, log_format: str) -> None:
    """Log to stderr.

    Args:
        level: Lowest level to log of the server's own records; of other loggers, warnings are logged.
        log_format: `text` or `json`.
    """
    handler = logging.StreamHandler(sys.stderr)
    text = _TextFormatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(_JsonFormatter() if log_format == "json" else text)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("lookalike").setLevel(level.upper())


def report_status(message: str, log_format: str) -> None:
    """Write a status line to stderr: plain text, or a log record if the log is JSON."""
    if log_format == "json":
        _log.info(message)
    else:
        print_status(message)
