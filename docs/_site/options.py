"""Hook of MkDocs: the options of FeedRunner as tables, from the docstring of FeedOptions."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from typing import Any

from fastfeed.options import FeedOptions

PLACE = "<!-- options -->"
ENTRY = re.compile(r"^(\w+): (.*(?:\n    .*)*)", re.MULTILINE)
GROUP = re.compile(r"^(\w[\w ]+):\n\n", re.MULTILINE)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Put the tables in their place."""
    return markdown.replace(PLACE, tables()) if PLACE in markdown else markdown


def tables() -> str:
    """Return a table for each group of options."""
    kinds = {field.name: field for field in fields(FeedOptions)}
    _, *parts = GROUP.split(inspect.cleandoc(FeedOptions.__doc__ or ""))
    lines: list[str] = []
    for group, text in zip(parts[::2], parts[1::2], strict=True):
        lines += [f"### {group}", "", "| option | default | meaning |", "|---|---|---|"]
        for name, said in ENTRY.findall(text):
            default = getattr(kinds[name].default, "default", kinds[name].default)
            meaning = re.sub(r"\s+", " ", said).replace("|", "\\|")
            lines.append(f"| `{name}` | `{default!r}` | {meaning} |")
        lines.append("")
    return "\n".join(lines)
