"""Words in the names of the user's functions that tell their work."""

from __future__ import annotations

import re

PREPARE_NAMES = re.compile(
    r"(^|[._])(load|read|parse|prepare|preprocess|augment|collate|transforms?|normali[sz]e|crop|"
    r"resize|pad|tokeni[sz]e|to_tensors?|to_arrays?|unpack|cast|convert)(_|\d|$)"
)
REPORT_NAMES = re.compile(
    r"log|metric|callback|report|checkpoint|save|eval|valid|summar|print|write|send|push|publish|"
    r"plot"
)
EVERYDAY_NAMES = ("<module>", "<lambda>", "main", "train", "__iter__", "__next__", "__getitem__")


def telling_part(function: str) -> str:
    """Return a name with the same words that tell its work, and no others."""
    if function in EVERYDAY_NAMES:
        return function
    prepares, reports = PREPARE_NAMES.search(function), REPORT_NAMES.findall(function)
    words = [prepares[2]] if prepares else []
    return ".".join([*words, "".join(dict.fromkeys(reports))]).strip(".") or "function"
