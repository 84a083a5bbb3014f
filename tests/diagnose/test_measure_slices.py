"""Which loop of several, one in the other, is that of the steps: as their source tells."""

from __future__ import annotations

import ast

import pytest

from fastfeed.diagnose.measure import slices


@pytest.mark.parametrize(
    ("code", "repeats"),
    [
        ("for _ in range(12):\n    x = np.tanh(a @ x)", True),
        ("for i in range(12):\n    x = np.tanh(a[i] @ x)", False),
        ("for _ in range(12):\n    x = next(batches) @ x", False),
        ("for _ in range(12):\n    train_step(x)", False),
        ("for x in data:\n    y = a @ y", False),
        ("while busy:\n    y = a @ y", False),
    ],
)
def test_a_loop_that_only_repeats(code: str, repeats: bool) -> None:
    loop = ast.parse(code).body[0]
    assert isinstance(loop, slices.Loop)
    assert slices.repeats(loop) == repeats


@pytest.mark.parametrize(
    ("lines", "kinds"),
    [
        (["l, g = jax.value_and_grad(loss)(w, x)", "w = [a - b for a, b in zip(w, g)]", "log(l)"], "step step host"),
        (["g = jax.grad(loss)(w, x)", "norms.append(norm(g))", "w = w - g"], "step host step"),
        (
            ["w, l = update(w, x)", "diary.note(w, l)", "l.block_until_ready()", "opt.step()"],
            "step host step step",
        ),
        (["l = model(x)", "print(l)", "l.backward()"], "step host step"),
        (["w, l = update(w, x)", "if i % 9 == 0: print(float(l))"], "step host host"),
    ],
)
def test_what_the_next_step_begins_with_is_of_the_step(lines: list[str], kinds: str) -> None:
    loop = ast.parse("for i, x in enumerate(batches):\n    " + "\n    ".join(lines)).body[0]
    assert isinstance(loop, slices.Loop)
    assert [kind for _, kind in slices.kinds(loop)] == ["input", *kinds.split()]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("loss = model.train_on_batch(x, y)", "step"),
        ("trainer.fit_one_batch(x, y)", "step"),
        ("x = augment_batch(x)", "input"),
        ("y = to_batch(y)", "input"),
    ],
)
def test_what_trains_on_a_batch_makes_none(line: str, kind: str) -> None:
    loop = ast.parse(f"while on:\n    x, y = next(batches)\n    {line}\n    update(x, y)").body[0]
    assert isinstance(loop, slices.Loop)
    assert {one.first: found for one, found in slices.kinds(loop)}[3] == kind
