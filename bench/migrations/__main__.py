"""Compare each pair of scripts in turn: lines of code, and batches per second.

python -m bench.migrations --rounds 5 --output bench/results/migrations.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
PAIRS = ("dataloader", "from_generator", "pydataset", "queue")
BATCHES = {"sleep": 240, "python": 640}  # about five seconds each
LIMIT_S = 120


def lines_of(script: str) -> int:
    """Return the lines of code: no blank ones, comments and docstrings."""
    text = (FOLDER / f"{script}.py").read_text().splitlines()
    kept = [line.strip() for line in text]
    return sum(1 for line in kept if line and not line.startswith(("#", '"""')))


def rate_of(script: str, kind: str) -> float:
    """Run a script; return its batches per second."""
    command = [sys.executable, "-m", f"bench.migrations.{script}", kind, str(BATCHES[kind])]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, env=environment, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{script} {kind} failed:\n{done.stderr}")
    return float(done.stdout.split()[-1])


def main() -> None:
    """Print a table, and write all rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(options.rounds):
        for pair in PAIRS:
            for kind in BATCHES:
                for side in ("old", "new"):
                    rates = found.setdefault(f"{pair} {kind}", {"old": [], "new": []})
                    rates[side].append(rate_of(f"{pair}_{side}", kind))
    print(table(found))
    if options.output is not None:
        options.output.write_text(json.dumps(found, indent=1) + "\n")


def table(found: dict[str, dict[str, list[float]]]) -> str:
    """Return the medians, with the lowest and the highest, and the ratio."""
    lines = ["| original | lines | on fastfeed | work | batches/s | on fastfeed | ratio |"]
    lines.append("|---|--:|--:|---|--:|--:|--:|")
    for name, rates in found.items():
        pair, kind = name.split()
        ratio = statistics.median(n / o for o, n in zip(rates["old"], rates["new"], strict=True))
        cells = [
            f"{statistics.median(r):.1f} ({min(r):.1f} to {max(r):.1f})" for r in rates.values()
        ]
        size = f"{lines_of(pair + '_old')} | {lines_of(pair + '_new')}"
        lines.append(f"| {pair} | {size} | {kind} | {cells[0]} | {cells[1]} | {ratio:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
