"""Next steps in the user's own names: the line as it is, and as it should be."""

from __future__ import annotations

import ast
import linecache
from typing import Any

from fastfeed.diagnose.diagnosis import Diagnosis, Recommendation
from fastfeed.diagnose.proof import SAME


def next_step(one: Recommendation, diagnosis: Diagnosis) -> dict[str, Any]:
    """Return a change with the code `before` and `after` it, as far as the code is known.

    Where the number to change stands in the user's source, that is it, with the variable's name.
    """
    loop = diagnosis.evidence.loop
    where, text = one.where, loop.text.strip() if loop is not None else ""
    before, after = (text, f"{one.code}\n{text}") if one.code and text else ("", one.code)
    named = _keyword(one, loop.where if loop is not None else "", text=text)
    if named is not None:
        where, before = named
        after = f"{one.knob}={one.value}"
    proof = proof_of(one, diagnosis)
    return {**vars(one), "where": where, "before": before, "after": after, "proof": proof}


def proof_of(one: Recommendation, diagnosis: Diagnosis) -> dict[str, Any] | None:
    """Return what a run of the change has shown; None if none did."""
    for tried in diagnosis.proof.tried if diagnosis.proof is not None else ():
        if tried.knob == one.knob and tried.speedup is not None:
            return {
                "speedup": tried.speedup,
                "interval": tried.interval,
                "same_batches": tried.batches == SAME,
            }
    return None


def _keyword(one: Recommendation, where: str, *, text: str) -> tuple[str, str] | None:
    """Return the line and the source of the only argument that sets the knob, in the file of the
    loop; None without one, or if that file is not the one that ran."""
    file, _, line = where.rpartition(":")
    if not (one.value.isdigit() and text and line.isdigit()):
        return None
    if linecache.getline(file, int(line)).strip() != text:
        return None
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return None
    found = [k for k in ast.walk(tree) if isinstance(k, ast.keyword) and k.arg == one.knob]
    if len(found) != 1:
        return None
    return f"{file}:{found[0].lineno}", f"{one.knob}={ast.unparse(found[0].value)}"
