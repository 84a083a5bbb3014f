"""What stops a loop now and then, made ten times rarer."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fastfeed.diagnose.patches.proposal import PatchCase, Proposal

TIMES = 10


class RarerPauses:
    """Evaluations, checkpoints and logs after ten times as many steps or epochs."""

    def proposals(self, case: PatchCase) -> Iterator[Proposal]:
        advice, at = case.advice("every"), case.loop_line()
        if advice is None:
            return
        for _, fitted, call in case.sites("fit"):
            if "validation_data" in {one.arg for one in call.keywords}:
                edit = fitted.with_keyword(call, "validation_freq", value=str(TIMES))
                yield Proposal(f"validation_freq={TIMES}", (edit,), advice, rarer=True)
        if at is None:
            return
        file, _ = at
        lines = [part.place.line for part in case.diagnosis.evidence.parts_of("host")]
        known = {id(one): one for line in lines for one in file.around(line, ast.If)}
        for one in known.values():
            counts = [
                node.right
                for node in ast.walk(one.test)
                if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)
            ]
            if counts:
                edits = tuple(
                    file.replaced(count, f"({TIMES} * {file.source(count)})") for count in counts
                )
                yield Proposal(
                    f"{TIMES} times rarer: {file.line(one.lineno)}", edits, advice, rarer=True
                )
