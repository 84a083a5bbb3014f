"""Threads of a step that sleep while they wait, so that producers get their cores.

The threads of OpenMP, which compute the operations of PyTorch on the CPU, spin between two
operations: a core is busy for them, and a producer beside it gets half of it.
"""

from __future__ import annotations

from fastfeed.diagnose.patches.proposal import PatchCase, Proposal, imported_by, top_of

WAIT_POLICY = "OMP_WAIT_POLICY"  # OpenMP 3.0; read when the first library with OpenMP is loaded


def passive_threads(case: PatchCase) -> Proposal | None:
    """Return the change that lets idle threads of OpenMP sleep; None if the script does not import
    torch, or sets how they wait."""
    file, files = case.files.get(case.script), case.files.values()
    if file is None or any(WAIT_POLICY in one.text for one in files):
        return None
    if not any("torch" in imported_by(one) for one in files):
        return None
    line = f'os.environ.setdefault("{WAIT_POLICY}", "PASSIVE")  # before torch loads'
    edits = top_of(file, ["import os", line], first=True)
    return Proposal(f"{WAIT_POLICY}=PASSIVE", edits) if edits else None
