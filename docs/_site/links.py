"""Hooks of MkDocs: files outside of docs/ that pages link to become part of the site."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"(?:(?<=\]\()|(?<=\]: ))(?!https?:|mailto:|#)([^)\s#]+)")


def on_files(files: Files, config: Any) -> Files:
    """Add what pages link to: pages, pictures and programs, and a list of the files of a folder."""
    waiting = [Path(file.abs_src_path) for file in files.documentation_pages()]
    known = {path.resolve() for path in waiting}
    while waiting:
        page = waiting.pop()
        for target in LINK.findall(page.read_text()):
            path = (page.parent / target).resolve()
            if path in known or path.is_relative_to(DOCS) or not path.exists():
                continue
            known.add(path)
            files.append(_added(path, config))
            if path.suffix == ".md":
                waiting.append(path)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Rewrite links between places of the repository as links between those of the site."""
    source = Path(page.file.abs_src_path or ROOT / page.file.src_uri)
    if not source.exists() or page.file.generated_by:
        source = ROOT / page.file.src_uri
    here = os.path.dirname(_place(source))

    def moved(match: re.Match[str]) -> str:
        path = (source.parent / match[1]).resolve()
        return os.path.relpath(_place(path), here) if path.exists() else match[1]

    return LINK.sub(moved, markdown)


def _place(path: Path) -> str:
    """Return where a file of the repository is in the sources of the site."""
    if path.is_relative_to(DOCS):
        return str(path.relative_to(DOCS))
    place = str(path.relative_to(ROOT))
    return f"{place}.md" if path.is_dir() else place


def _added(path: Path, config: Any) -> File:
    kind: dict[str, Any] = {"inclusion": InclusionLevel.NOT_IN_NAV}
    if not path.is_dir():
        return File.generated(config, _place(path), abs_src_path=str(path), **kind)
    names = sorted(one.name for one in path.iterdir() if one.suffix in (".py", ".md", ".json"))
    lines = [f"# {path.relative_to(ROOT)}", "", "A folder of the repository:", ""]
    lines += [f"- `{name}`" for name in names]
    return File.generated(config, _place(path), content="\n".join(lines), **kind)
