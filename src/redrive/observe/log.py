"""The attempt log as JSON, one object per line."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from redrive.masking import mask

# What every record has by itself; the rest was passed as `extra`.
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Formats a record, with everything passed as `extra`, as one line of JSON; secrets are masked."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": mask(record.getMessage()),
        }
        line.update({name: value for name, value in vars(record).items() if name not in _OWN and name not in line})
        if record.exc_info:
            line["traceback"] = mask(self.formatException(record.exc_info))
        return json.dumps(line, default=str, ensure_ascii=False)
