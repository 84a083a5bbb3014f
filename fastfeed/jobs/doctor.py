"""What this machine offers to fastfeed, what is missing, and the command that brings it."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata

from rich import box
from rich.table import Table

from fastfeed.core.machine import cores, free_memory_nbytes, local_ranks, workers_that_fit
from fastfeed.core.unix import ON_LINUX
from fastfeed.probes.gpu import DRIVER, gpu_names
from fastfeed.probes.pyspy import find, ptrace_limit

PYTHONS = ((3, 10), (3, 14))
REQUIRED = ("numpy", "cloudpickle", "psutil", "py-spy")
# by name: the distributions that bring it, the extra, and what it is for
PACKAGES = (
    ("TensorFlow", ("tensorflow", "tensorflow-cpu"), "tensorflow-cpu", "sessions, tf.data, Keras"),
    ("Keras", ("keras",), "keras", "runner.keras()"),
    ("PyTorch", ("torch",), "torch", "runner.torch()"),
    ("JAX", ("jax",), "jax", "runner.jax()"),
    ("OpenCV", ("opencv-python-headless", "opencv-python"), "opencv", "augment="),
    ("DALI", ("nvidia-dali-cuda120", "nvidia-dali-cuda130"), "dali", "augment="),
    ("matplotlib", ("matplotlib",), "plot", "plots of fastfeed bench"),
    ("TensorBoard", ("tensorboard",), "tensorboard", "metrics="),
    ("Prometheus", ("prometheus-client",), "metrics", "metrics="),
)


@dataclass(frozen=True)
class MachineFact:
    """One property of the machine.

    `fit` is False if something that fastfeed can use is missing; `remedy` says how to get it.
    """

    name: str
    found: str
    fit: bool = True
    remedy: str = ""


def examine() -> list[MachineFact]:
    """Return everything that matters to fastfeed on this machine. Nothing is imported for it."""
    return [*_machine(), *_permissions(), *_packages()]


def versions() -> list[str]:
    """Return a line for the interpreter, the system, and each package that fastfeed works with and
    that is installed. Nothing is imported for it."""
    system = f"{platform.platform()}, {cores()} of {os.cpu_count()} cores"
    python = f"{platform.python_implementation()} {platform.python_version()}"
    found = ((name, _version(name)) for name in REQUIRED)
    known = [(one.name, one.found) for one in _packages() if one.fit]
    return [python, system, *(f"{name} {text}" for name, text in (*found, *known) if text)]


def table_of(findings: Sequence[MachineFact]) -> Table:
    """Return the findings as a table for the terminal."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for header in ("", "on this machine", "to get more"):
        table.add_column(header, overflow="fold")
    for finding in findings:
        style = "" if finding.fit else "yellow"
        table.add_row(finding.name, finding.found, finding.remedy, style=style)
    return table


def json_of(findings: Sequence[MachineFact]) -> str:
    """Return the findings as a JSON list of objects with name, found, fit and remedy."""
    return json.dumps([asdict(finding) for finding in findings], indent=2)


def _machine() -> Iterator[MachineFact]:
    known = PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]
    least, most = (".".join(map(str, version)) for version in PYTHONS)
    remedy = "" if known else f"use Python {least} to {most}"
    yield MachineFact("fastfeed", metadata.version("fastfeed"))
    yield MachineFact("Python", platform.python_version(), known, remedy)
    yield MachineFact(
        "kernel",
        f"{platform.system()} {platform.release()}",
        ON_LINUX,
        "" if ON_LINUX else "processes= and metrics= require Linux 5.3 or later; threads= work",
    )
    yield MachineFact("cores", f"{cores()} of {os.cpu_count() or 1} usable")
    ranks = local_ranks()
    share = f", for {ranks} ranks" if ranks > 1 else ""
    free = f"{free_memory_nbytes() / 1e9:.1f} GB free{share}"
    yield MachineFact("memory", f"{free}; the default of memory= is a quarter of it")
    if ON_LINUX:
        most_workers, limit = workers_that_fit()
        yield MachineFact("worker processes", f"at most {most_workers}, because of {limit}")


def _permissions() -> Iterator[MachineFact]:
    limit = ptrace_limit()
    if not find():
        yield MachineFact("py-spy", "not installed", False, "pip install py-spy")
    else:
        yield MachineFact("ptrace", limit or "allowed", not limit, _allow(limit))
    names, missing = gpu_names()
    if names:
        yield MachineFact("NVML", ", ".join(names))
    elif os.path.exists(DRIVER):
        yield MachineFact("NVML", missing or "no GPU answers", False, "pip install 'fastfeed[gpu]'")
    else:
        yield MachineFact("NVML", "no NVIDIA driver on this machine")


def _allow(limit: str) -> str:
    return (
        "for the stacks of other processes: sudo sysctl kernel.yama.ptrace_scope=0, or in a "
        "container --cap-add SYS_PTRACE"
        if limit
        else ""
    )


def _packages() -> Iterator[MachineFact]:
    for name, distributions, extra, use in PACKAGES:
        versions = [v for d in distributions if (v := _version(d))]
        command = f"for {use}: pip install 'fastfeed[{extra}]'"
        if versions:
            yield MachineFact(name, versions[0])
        else:
            yield MachineFact(name, "not installed", False, command)


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""
