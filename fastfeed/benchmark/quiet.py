"""Import of frameworks that log about their start."""

from __future__ import annotations

import importlib
import os
import re
import sys
import tempfile
from contextlib import suppress

# as absl and TensorFlow write them: information and warnings
LOG_LINE = re.compile(
    rb"^(WARNING: All log messages before absl|[IW]\d{4} \d\d:|\d{4}-\d\d-\d\d .*: [IW] ).*\n",
    re.MULTILINE,
)


def import_quietly(name: str) -> None:
    """Import a module, if it is there, and drop the log lines of its start. Anything else that it
    writes to stderr appears afterwards."""
    if name in sys.modules:
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
        try:
            with suppress(ImportError):
                importlib.import_module(name)
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            log.seek(0)
            os.write(2, LOG_LINE.sub(b"", log.read()))
