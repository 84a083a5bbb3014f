"""The proof of the tutorial's training: `python -m bench.tutorial`.

    python -m bench.tutorial --output bench/results/tutorial.json

`make figures` writes its figures into README.md and docs/tutorial.md.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.public.runs import FASTFEED
from bench.results import machine
from bench.rounds import ROOT

PAGE = ROOT / "docs" / "tutorial.md"
TRAINING = re.compile(r"```python\n# train.py\n(.*?)```", re.DOTALL)
PROOF = re.compile(r"(<!-- proof(?P<tried>: tried)? -->\n).*?(?=<!-- end -->)", re.DOTALL)
TITLE_WIDTH = 54
APPLY = "the changes are in fastfeed.patch: git apply fastfeed.patch"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.tutorial")
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = TRAINING.search(PAGE.read_text())
        assert found is not None
        (Path(folder) / "train.py").write_text(found[1])
        command = [*FASTFEED, "diagnose", "--prove", "--json", "proof.json", "--", "train.py"]
        subprocess.run(command, cwd=folder, check=True)
        proof = json.loads((Path(folder) / "proof.json").read_text())["proof"]
    tried = [[one["title"], one["speedup"]] for one in proof["tried"]]
    kept = {name: proof[name] for name in ("sentence", "diff", "seconds")} | {"tried": tried}
    given.output.write_text(json.dumps(kept | {"machine": machine()}, indent=1) + "\n")


def with_proof(text: str, found: Mapping[str, Any]) -> str:
    """Return a page with what the proof of the tutorial says, and where the page asks for it, what
    else was tried."""

    def filled(match: re.Match[str]) -> str:
        tried = [*_tried(found), ""] if match["tried"] else []
        changed = [one for one in found["diff"].split("\n") if re.match(r"[+-](?![+-])", one)]
        lines = [found["sentence"], "", *tried, *(one for one in changed if one != "+"), "", APPLY]
        about = found["machine"]
        took = (
            f"This took {found['seconds'] / 60:.1f} minutes on {about['cores']} cores of "
            f"{about['cpu']}."
        )
        return "".join(
            [match[1], "\n```\n", *(f"{line}\n" for line in lines), f"```\n\n{took}\n\n"]
        )

    return PROOF.sub(filled, text)


def _tried(found: Mapping[str, Any]) -> list[str]:
    known = [(title, gain) for title, gain in found["tried"] if gain is not None]
    lines: list[str] = []
    for title, gain in sorted(known, key=lambda one: one[1]):
        lines += [title] * (len(title) >= TITLE_WIDTH)
        lines.append(f"{'' if len(title) >= TITLE_WIDTH else title:{TITLE_WIDTH}}{gain:.1f}x")
    return lines


if __name__ == "__main__":
    main()
