"""Checks of the command lines of the examples of data parallelism: one line says what is wrong."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path


def parsed(parser: argparse.ArgumentParser, **least: float) -> argparse.Namespace:
    """Return the arguments. End the program with one line if one is below its `least` value, or if
    a picture cannot be drawn, which would show only after the training."""
    args = parser.parse_args()
    for name, value in least.items():
        given = getattr(args, name)
        if given is not None and not given >= value:
            parser.error(f"--{name.replace('_', '-')} {given}: must be {value:g} or more")
    if args.data is not None and not Path(args.data).exists():
        parser.error(f"--data {args.data}: does not exist")
    if picture := getattr(args, "plot", None):
        if not Path(picture).parent.is_dir():
            parser.error(f"--plot {picture}: the folder does not exist")
        if importlib.util.find_spec("matplotlib") is None:
            parser.error("--plot needs matplotlib: pip install matplotlib")
    return args


def check_rank(parser: argparse.ArgumentParser, args: argparse.Namespace, world: int) -> None:
    """End the program with one line if --die names none of `world` ranks."""
    if args.die is not None and not 0 <= args.die < world:
        parser.error(f"--die {args.die}: must be one of the {world} that start, 0 to {world - 1}")
