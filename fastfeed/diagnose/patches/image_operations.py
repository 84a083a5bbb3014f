"""augment= in place of the calls of OpenCV that end the transform of a FeedRunner."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from fastfeed.diagnose.patches.names import functions_of, last_of, path_of
from fastfeed.diagnose.patches.proposal import PatchCase, Proposal, fresh, top_of
from fastfeed.diagnose.patches.source_file import Edit, SourceFile
from fastfeed.diagnose.proof import SAME


class ImageOperations:
    """Operations of an Augment that draw no random number and give the same pixels: it decodes into
    the order of the colours at once, and writes the images into the batch.

    Other operations stay: of random ones no comparison could tell that they are the right ones.
    """

    def proposals(self, case: PatchCase) -> Iterator[Proposal]:
        for _, file, call in case.sites("FeedRunner"):
            given = {one.arg: one.value for one in call.keywords}
            if None in given or "augment" in given or "transform" not in given:
                continue
            functions = functions_of(file, given["transform"])
            chain = _Chain.of(file, functions[0]) if len(functions) == 1 else None
            if chain is None or len(file.loads(functions[0].name)) != 1:
                continue
            changed = chain.edits(file)
            if not changed:
                continue
            alias = fresh(file, "augment")
            named = "augment" if alias == "augment" else f"augment as {alias}"
            operations = ", ".join(f"{alias}.{one}" for one in chain.operations)
            made = f"{alias}.Augment([{operations}])"
            edits = (
                *top_of(file, [f"from fastfeed import {named}"]),
                *changed,
                file.with_keyword(call, "augment", value=made),
            )
            title = f"augment=[{', '.join(chain.operations)}] in place of calls of OpenCV"
            yield Proposal(title, edits, allows=(SAME,))


class _Chain(NamedTuple):
    """The last statements of a function, which decode and resize the image that it returns first.
    The colours of the result are red, green, blue."""

    operations: list[str]
    statements: list[ast.stmt]
    decode: ast.Assign
    encoded: str  # the text of the bytes that it decodes

    @classmethod
    def of(cls, file: SourceFile, function: ast.FunctionDef) -> _Chain | None:
        """Return the chain of a function; None without one."""
        *body, last = function.body
        value = last.value if isinstance(last, ast.Return) else None
        value = value.elts[0] if isinstance(value, ast.Tuple) and value.elts else value
        if not isinstance(value, ast.Name):
            return None
        image = value.id
        operations: list[str] = []
        statements: list[ast.stmt] = []
        swaps = 0
        for one in reversed(body):
            if not isinstance(one, ast.Assign) or not all(_is(t, image) for t in one.targets):
                break
            encoded = _decoded(file, one.value)
            if encoded and swaps == 1:
                return cls(["Decode()", *operations], statements, one, encoded)
            size = _resized(file, one.value, image=image)
            if not size and not _swaps(one.value, image=image):
                break
            swaps += not size
            operations = [*([f"Resize({size})"] if size else []), *operations]
            statements.append(one)
        return None

    def edits(self, file: SourceFile) -> tuple[Edit, ...]:
        """Return the edits that take the operations out of the function, none if the text does not
        allow them."""
        found = [file.left_out(one) for one in self.statements]
        found.append(file.replaced(self.decode.value, self.encoded))
        return tuple(found) if None not in found else ()  # type: ignore[arg-type]


def _is(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _called(node: ast.expr, name: str) -> list[ast.expr]:
    """Return the arguments of a call of a function of OpenCV or numpy by its last name, none for
    another one, and for one with keywords."""
    if not isinstance(node, ast.Call) or last_of(path_of(node.func)) != name:
        return []
    return [] if node.keywords else node.args


def _decoded(file: SourceFile, node: ast.expr) -> str:
    """Return the text of the bytes that `cv2.imdecode` decodes to colours, "" if it does not."""
    data, *how = _called(node, "imdecode") or [node]
    inner = _called(data, "frombuffer")
    colours = [last_of(path_of(one)) for one in how] == ["IMREAD_COLOR"]
    bytes_only = len(inner) == 2 and last_of(path_of(inner[1])) == "uint8"
    return file.source(inner[0]) if colours and bytes_only else ""


def _resized(file: SourceFile, node: ast.expr, *, image: str) -> str:
    """Return the text of (height, width) to which `cv2.resize` resizes an image linearly, "" if it
    does not."""
    given = _called(node, "resize")
    if len(given) != 2 or not _is(given[0], image) or not isinstance(given[1], ast.Tuple):
        return ""
    sides = given[1].elts[::-1]
    fixed = all(isinstance(one, ast.Constant) for one in sides)  # not set again later
    return f"({', '.join(map(file.source, sides))})" if len(sides) == 2 and fixed else ""


def _swaps(node: ast.expr, *, image: str) -> bool:
    """Return True if an expression turns an image from blue, green, red to red, green, blue."""
    given = _called(node, "cvtColor")
    if len(given) == 2:
        return _is(given[0], image) and last_of(path_of(given[1])) == "COLOR_BGR2RGB"
    if not isinstance(node, ast.Subscript) or not _is(node.value, image):
        return False
    return ast.unparse(node.slice) in ("..., ::-1", ":, :, ::-1", "(..., ::-1)", "(:, :, ::-1)")
