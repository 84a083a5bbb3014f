"""The kind of each line of a loop, and the loop of the steps among several, by their source."""

from __future__ import annotations

import textwrap

import pytest

from fastfeed.diagnose.sample.copying import parsed as tree_of
from fastfeed.diagnose.sample.loop_statements import classify, loops_in, made_before
from tests.diagnose.looking import parsed

LOOPS = {
    "session": """
        while not coordinator.should_stop():   # host
            xs, ys = decode(next(files))       # input
            feed = {x: xs, y: ys}              # input
            _, loss = sess.run([op, l], feed)  # step
            log(loss)                          # host
    """,
    "queue": """
        for i in range(1000):                  # host
            sess.run(train_op)                 # step
            if i % 100 == 0:                   # host
                save(i)                        # host
    """,
    "torch": """
        for x, y in loader:                    # input
            x = x.to(device)                   # input
            optimizer.zero_grad()              # step
            out = net(x)                       # step
            loss = out.mean()                  # step
            loss.backward()                    # step
            optimizer.step()                   # step
            losses.append(loss.item())         # host
    """,
    "tape": """
        for batch in dataset:                  # input
            with tf.GradientTape() as tape:    # step
                loss = compute_loss(batch)     # step
            grads = tape.gradient(loss, v)     # step
            optimizer.apply_gradients(grads)   # step
    """,
    "simulated": """
        for step in range(n):                  # host
            batch = make_batch(step)           # input
            time.sleep(0.02)                   # step
    """,
    "jax": """
        for i, batch in enumerate(batches):    # input
            batch = normalise(batch)           # input
            params = update(params, batch)     # step
    """,
    "evaluated": """
        for i in range(100_000):               # host
            if i % 250 == 0:                   # host
                losses = estimate_loss()       # host
            x, y = get_batch("train")          # input
            logits, loss = model(x, y)         # step
            loss.backward()                    # step
            optimizer.step()                   # step
    """,
    "ahead": """
        while True:                            # host
            train_step(batch)                  # step
            batch = q.get()                    # input
    """,
    "unnamed": """
        for x in source:                       # input
            z = augment(x)                     # input
            crunch(z)                          # step
            report()                           # host
    """,
    "simulated, inline": """
        for i in range(n):                     # host
            rows = table[i : i + 32]           # input
            x = np.array(rows)                 # input
            x = x / 255                        # input
            x = x + noise(x.shape)             # input
            time.sleep(0.02)                   # step
            history.append(x.mean())           # host
    """,
    "simulated, with notes": """
        while True:                            # host
            x = next(batches)                  # input
            stats = summary(x)                 # input
            history.append(stats)              # host
            time.sleep(0.02)                   # step
    """,
    "jax, inline": """
        for i in range(n):                     # host
            x = rng.normal(size=(64, 32))      # input
            x = (x - mean) / deviation         # input
            w = f(w, x)                        # step
            jax.block_until_ready(w)           # step
    """,
    "nothing named": """
        for start in range(0, n, 32):          # host
            rows = table[start : start + 32]   # input
            parts = [pad(row) for row in rows] # input
            crunch(parts)                      # step
            count += 1                         # host
    """,
    "by hand": """
        while True:                            # host
            x = read_rows(i)                   # input
            h = np.tanh(x @ w)                 # step
            d = h - y                          # step
            w -= 0.1 * np.dot(x.T, d)          # step
            print(d.mean())                    # host
    """,
}


@pytest.mark.parametrize(
    ("lines", "kinds"),
    [
        (
            [
                "l, g = jax.value_and_grad(loss)(w, x)",
                "w = [a - b for a, b in zip(w, g)]",
                "log(l)",
            ],
            "step step host",
        ),
        (["g = jax.grad(loss)(w, x)", "norms.append(norm(g))", "w = w - g"], "step host step"),
        (
            ["w, l = update(w, x)", "diary.note(w, l)", "l.block_until_ready()", "opt.step()"],
            "step step step step",
        ),
        (["l = model(x)", "print(l)", "l.backward()"], "step step step"),
        (["w, l = update(w, x)", "if i % 9 == 0: print(float(l))"], "step host host"),
    ],
)
def test_what_the_next_step_begins_with_is_of_the_step(lines: list[str], kinds: str) -> None:
    loop = parsed("for i, x in enumerate(batches):\n    " + "\n    ".join(lines))
    assert [kind for _, kind in classify(loop, {})] == ["input", *kinds.split()]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("loss = model.train_on_batch(x, y)", "step"),
        ("guessed = model.predict_on_batch(x)", "host"),
        ("loss = model.test_on_batch(x, y)", "host"),
        ("x = augment_batch(x)", "input"),
        ("y = to_batch(y)", "input"),
    ],
)
def test_what_trains_on_a_batch_makes_none(line: str, kind: str) -> None:
    loop = parsed(f"while on:\n    x, y = next(batches)\n    {line}\n    update(x, y)")
    assert {one.first: found for one, found in classify(loop, {})}[3] == kind


def wanted_in(code: str) -> dict[int, str]:
    lines = textwrap.dedent(code).strip().splitlines()
    return {number: line.rpartition("# ")[2] for number, line in enumerate(lines, 1)}


def kinds_of(code: str) -> dict[int, str]:
    """The kinds of the lines of a loop, each of which takes some of the time."""
    loop = parsed(code)
    return {one.first: kind for one, kind in classify(loop, dict.fromkeys(range(99), 0.1))}


@pytest.mark.parametrize("name", LOOPS)
def test_what_each_line_is_for(name: str) -> None:
    assert kinds_of(LOOPS[name]) == wanted_in(LOOPS[name])


def test_the_step_of_an_environment_makes_data() -> None:
    code = """
        while True:                                           # host
            action = agent.get_action(seen)                   # input
            seen, reward, over, _ = env.step(action.numpy())  # input
            loss = agent.get_value(seen) - reward             # input
            loss.backward()                                   # step
            optimizer.step()                                  # step
    """
    assert kinds_of(code) == wanted_in(code)


def test_a_step_without_a_name_takes_some_of_the_time() -> None:
    loop = parsed("for x in source:\n    crunch(x)\n    tell(x)")
    assert [kind for _, kind in classify(loop, {2: 0.5, 3: 0.01})] == ["input", "step", "host"]
    assert [kind for _, kind in classify(loop, {2: 0.5, 3: 0.1})] == ["input", "host", "step"]
    assert classify(loop, {1: 1.0}) == []


def test_a_loop_without_a_step() -> None:
    assert classify(parsed("for i in range(9):\n    total += i\n"), {}) == []


def test_what_trains_a_model_is_a_step_whatever_its_name() -> None:
    loop = parsed("for i in range(9):\n    x = make(i)\n    p = encoder(x)\n    keep(p)\n")
    assert [kind for _, kind in classify(loop, {}, trained={3})] == [
        "host",
        "input",
        "step",
        "host",
    ]


def test_what_is_made_for_a_whole_epoch_before_its_loop_is_input() -> None:
    tree = tree_of(
        "def epoch(model, data):\n"
        "    model = prepare(model)\n"
        "    with timer():\n"
        "        rows = sample(data)\n"
        "    users = shuffle(rows)\n"
        "    for x in minibatch(users):\n"
        "        train(model, x)\n"
    )
    assert tree is not None
    (loop,) = loops_in(tree, 1, last=9)
    made = made_before(tree, loop, kinds=classify(loop, {}))
    assert [one.first for one in made] == [5, 4]
