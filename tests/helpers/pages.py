"""The pages that users read: their blocks of code, inline code, headings and links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


class Block(NamedTuple):
    """A fenced block."""

    line: int
    language: str
    code: str


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@cache
def tokens(page: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(page.read_text())


def inline(page: Path, kind: str) -> Iterator[Token]:
    return (child for token in tokens(page) for child in token.children or () if child.type == kind)


@cache
def blocks(page: Path) -> list[Block]:
    fences = (token for token in tokens(page) if token.type == "fence")
    return [Block(token.map[0] + 1, token.info, token.content) for token in fences]


def anchors(page: Path) -> list[str]:
    """Return the anchors of the headings, as GitHub makes them."""
    found: list[str] = []
    for before, token in pairwise(tokens(page)):
        if before.type == "heading_open":
            text = "".join(child.content for child in token.children or ())
            anchor = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            repeated = sum(re.fullmatch(rf"{anchor}(-\d+)?", other) is not None for other in found)
            found.append(f"{anchor}-{repeated}" if repeated else anchor)
    return found


def links(page: Path) -> list[str]:
    """Return the targets of links and pictures that lead into the repository."""
    targets = [str(token.attrs["href"]) for token in inline(page, "link_open")]
    targets += [str(token.attrs["src"]) for token in inline(page, "image")]
    return [target for target in targets if not re.match(r"[a-z]+:", target)]
