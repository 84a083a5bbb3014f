"""What the pages name exists: the targets of links, headings, commands and their options."""

from __future__ import annotations

import re
import shlex
from itertools import takewhile
from pathlib import Path

import click
import pytest

from fastfeed import cli
from tests.helpers.pages import PAGES, ROOT, anchors, blocks, inline, links, name_of

CALL = re.compile(r"\s*(?:\S+/)?(fastfeed(?:-bench)?)\s+(\S.*)")
SKILL = ROOT / "skills" / "fastfeed" / "SKILL.md"
LINKED = [*PAGES, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "bench").rglob("*.md"))]


def calls(page: Path) -> list[str]:
    """Return the lines of blocks, and the inline code, that call a command."""
    lines = [code.content for code in inline(page, "code_inline")]
    for block in blocks(page):
        if block.language != "python":
            lines += block.code.replace("\\\n", " ").splitlines()
    return [line for line in lines if CALL.fullmatch(line)]


def unknown(call: str) -> list[str]:
    """Return the command, or else its options, that do not exist; those behind `--` are the
    script's."""
    program, rest = re.fullmatch(CALL, call).groups()
    words = shlex.split(rest, comments=True)
    command: click.Command | None = cli.bench if program == "fastfeed-bench" else cli.main
    if isinstance(command, click.Group) and words and not words[0].startswith("-"):
        command = command.commands.get(words[0])
        if command is None:
            return words[:1]
    options = {"--help", "--version"}.union(*(parameter.opts for parameter in command.params))
    own = takewhile(lambda word: word != "--", words)
    return [word for word in own if word[0] == "-" and word.partition("=")[0] not in options]


@pytest.mark.parametrize("page", [*PAGES, SKILL], ids=name_of)
def test_commands_and_options_exist(page: Path) -> None:
    assert not {call: wrong for call in calls(page) if (wrong := unknown(call))}


def test_commands_and_options_that_do_not_exist_are_found() -> None:
    assert unknown("fastfeed diagnoze -- train.py") == ["diagnoze"]
    assert unknown("fastfeed diagnose --json=a --slow -- train.py --epochs 3") == ["--slow"]
    assert unknown(".venv/bin/fastfeed-bench --threads 1 --thread 2  # here") == ["--thread"]
    assert {cli.main.commands[name] for name in ("bench", "diagnose", "plan", "top")} <= {
        cli.main.commands.get(call.split()[1]) for page in PAGES for call in calls(page)
    }


def resolves(page: Path, link: str) -> bool:
    """Return True if a link of the page leads to a file, and to a heading where it names one."""
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.is_relative_to(ROOT) or not target.exists():
        return False
    return not anchor or (target.suffix == ".md" and anchor in anchors(target))


@pytest.mark.parametrize("page", LINKED, ids=name_of)
def test_links_and_anchors_resolve(page: Path) -> None:
    assert not [link for link in links(page) if not resolves(page, link)]


def test_pages_that_the_code_names_exist() -> None:
    text = "".join(file.read_text() for file in sorted((ROOT / "fastfeed").rglob("*.py")))
    named = set(re.findall(r"\b(?:docs|bench)/[\w/-]+\.md", text))
    assert "docs/reference/verdicts.md" in named
    assert not [page for page in named if not (ROOT / page).exists()]


def test_links_that_lead_nowhere_are_found() -> None:
    page = ROOT / "docs" / "jobs.md"
    assert resolves(page, "#stages") and resolves(page, "../examples")
    for link in ("#stage", "job.md", "recipes.md#array", "../..", "bench.png#arrays"):
        assert not resolves(page, link), link
    assert "docs/recipes.md" in links(ROOT / "README.md")
    assert "docs/bench.png" in links(ROOT / "README.md")
    assert {"where-they-run", "from-from_generator"} <= {a for page in PAGES for a in anchors(page)}
