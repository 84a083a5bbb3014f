"""Whether a thread converts or copies arrays: by the function that its innermost line calls.

C functions have no frames: only the caller and its current instruction are visible.
"""

from __future__ import annotations

import ast
import dis
import itertools
import linecache
import re

from fastfeed.probes.places import Spot

COPY_FUNCTION = re.compile(
    r"^(as(any|contiguous|fortran)?array|array|astype|(deep)?copy(to)?|([vhd]|column_)?stack|"
    r"concat(enate)?|tobytes|fromiter|tolist|(as_|convert_to_)?tensor|constant|pin_memory)$"
)
COLLATE_FILES = re.compile(
    r"(^|/)(_utils/collate|_utils/pin_memory|constant_op|tensor_conversion\w*)\.py$"
)
FILL_FUNCTIONS = frozenset(["ones", "full", "zeros", "ones_like", "full_like", "zeros_like"])


def copies(spot: Spot) -> bool:
    """Return True if a spot lies in a function that copies, or calls one."""
    code, _ = spot
    if code.co_name in FILL_FUNCTIONS:  # numpy's own functions, which call copyto
        return False
    names = (code.co_name, called_at(spot))
    return COLLATE_FILES.search(code.co_filename) is not None or any(
        map(COPY_FUNCTION.search, names)
    )


def called_at(spot: Spot) -> str:
    """Return the name of the function that is being called at a spot, without its owner.

    "" if nothing is called or the name is unknown, as before Python 3.11.
    """
    code, offset = spot
    # While a Python function runs, the offset of its caller is past the call's own caches.
    while offset > 0 and dis.opname[code.co_code[offset]] == "CACHE":
        offset -= 2
    calls = 0 <= offset < len(code.co_code) and "CALL" in dis.opname[code.co_code[offset]]
    if not calls or not hasattr(code, "co_positions"):
        return ""
    first, last, begin, end = next(itertools.islice(code.co_positions(), offset // 2, None))
    if first is None or last is None or begin is None or end is None:
        return ""
    lines = [
        linecache.getline(code.co_filename, number).encode() for number in range(first, last + 1)
    ]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][begin:]  # columns count bytes
    found = parsed(b"".join(lines).decode(errors="replace").strip(), "eval")
    return dotted(found.body).rpartition(".")[2] if isinstance(found, ast.Expression) else ""


def dotted(node: ast.expr) -> str:
    """Return "np.stack" for `np.stack(...)`, and only the method's name for an unnamed value."""
    if isinstance(node, ast.Call):
        return dotted(node.func)
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value) if isinstance(node.value, ast.Attribute | ast.Name) else ""
        return f"{owner}.{node.attr}" if owner else node.attr
    return node.id if isinstance(node, ast.Name) else ""


def parsed(text: str, mode: str = "exec") -> ast.AST | None:
    """Return the syntax tree of source text; None if it cannot be parsed."""
    try:
        return ast.parse(text, mode=mode)
    except (SyntaxError, ValueError):
        return None
