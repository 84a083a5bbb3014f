"""Every way in which a trainer can end: within two seconds its processes are gone, without a
traceback of ours.

The fixture of every test proves that nothing is left in /dev/shm.
"""

from __future__ import annotations

import random
import signal
import threading

import pytest

from tests.helpers.scripts import Start

QUIET = ""


@pytest.mark.parametrize("python", [(), ("-W", "error")])
def test_the_normal_end(script: Start, python: tuple[str, ...]) -> None:
    ended = script(
        """
        def stream(worker):
            yield from (np.full(4, i) for i in range(worker.index, 10, worker.count))
        with FeedRunner(stream, processes=2) as runner:
            print(sorted(int(b[0]) for b in runner) == list(range(10)))
        print("left", *below(os.getpid()))
        """,
        python=python,
    ).ended()
    assert (ended.code, ended.out, ended.err) == (0, ["True", "left"], QUIET)


@pytest.mark.parametrize(
    "use", ["with started()[0] as runner:", "runner, stream = started()\nif runner:"]
)
def test_an_exception_in_the_training_loop(script: Start, use: str) -> None:
    running = script(f"{use}\n    1 / 0\n")
    running.line("tree")
    ended = running.ended()
    assert ended.code == 1
    assert ended.tracebacks() == 1
    assert "ZeroDivisionError" in ended.err


@pytest.mark.slow
@pytest.mark.parametrize(
    "end",
    [
        "sys.exit(0)",
        "os._exit(0)",
        "del runner, stream; gc.collect()",
        "runner.stop(); runner.stop()",
        "threading.Thread(target=runner.stop).start(); list(iter(lambda: ended(stream), True))",
    ],
)
def test_the_end_of_the_interpreter(script: Start, end: str) -> None:
    """The runner is alive, forgotten, stopped twice, or stopped by another thread while in use."""
    running = script(
        f"""
        def ended(stream):
            try:
                next(stream)
            except FeedStopped:
                return True
        runner, stream = started()
        {end}
        """
    )
    running.line("tree")
    running.ends_quietly()


ENDLESS_LOOP = """
    print("running", flush=True)
    with FeedRunner(endless, processes=2, threads=2) as runner:
        for number, batch in enumerate(runner):
            if number == 0:
                say_tree(3)
    """


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_ctrl_c_at_any_moment(script: Start, seed: int) -> None:
    """The terminal sends it to the whole group, also while the processes start. One traceback: the
    trainer's."""
    running = script(ENDLESS_LOOP)
    running.line("running" if seed % 2 else "tree")
    pause(random.Random(seed).random() * 0.3)
    running.signal_group(signal.SIGINT)
    ended = running.ended()
    assert ended.code == -signal.SIGINT
    assert ended.tracebacks() == 1
    assert ended.err.strip().endswith("KeyboardInterrupt")


def test_what_swallows_ctrl_c_is_loaded_before_a_runner_starts(script: Start) -> None:
    """numpy loads its generators at their first use, and would silently swallow an interrupt that
    comes meanwhile."""
    ended = script('print("numpy.random" in sys.modules)').ended()
    assert (ended.code, ended.out, ended.err) == (0, ["True"], QUIET)


def pause(seconds: float) -> None:
    """Sleep: the moment itself is tested; the test waits for nothing."""
    threading.Event().wait(seconds)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
@pytest.mark.parametrize("group", [False, True])
def test_signals_that_end_the_trainer(script: Start, number: int, group: bool) -> None:
    running = script(ENDLESS_LOOP)
    running.line("tree")
    (running.signal_group if group else running.signal)(number)
    running.ends_quietly(code=-number)


def test_a_handler_that_raises_system_exit(script: Start) -> None:
    running = script(
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))"
        + ENDLESS_LOOP.replace("\n    ", "\n")
    )
    running.line("tree")
    running.signal(signal.SIGTERM)
    running.ends_quietly(code=5)


def test_stop_in_a_signal_handler(script: Start) -> None:
    """At full rate: the signal comes while the runner's own code runs."""
    running = script(
        """
        runner, stream = started()
        signal.signal(signal.SIGTERM, lambda *_: runner.stop())
        try:
            for batch in stream:
                pass
        except FeedStopped:
            print("stopped")
        """,
        python=("-W", "error"),
    )
    running.line("tree")
    pause(0.1)
    running.signal(signal.SIGTERM)
    running.ends_quietly("stopped")


@pytest.mark.slow
@pytest.mark.parametrize(
    "stuck",
    [
        "time.sleep(100)",
        "ctypes.PyDLL(None).sleep(30)",
        "[lock := threading.Lock(), lock.acquire(), lock.acquire()]",
        "[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 3, 15)] and time.sleep(100)",
        "os.kill(os.getpid(), signal.SIGSTOP)",
    ],
    ids=["sleep", "native code with the lock", "a lock", "signals ignored", "stopped"],
)
def test_workers_that_do_not_listen(script: Start, stuck: str) -> None:
    running = script(
        f"""
        def stream():
            yield np.zeros(4)
            {stuck}
            yield np.zeros(4)
        runner, stream = started(stream)
        runner.stop()
        print("left", *below(os.getpid()))
        """,
        python=("-W", "error"),
    )
    running.line("tree")
    running.ends_quietly("left")


def test_a_fork_server_that_is_stopped(script: Start) -> None:
    running = script(
        """
        runner, stream = started()
        os.kill(below(os.getpid())[0], signal.SIGSTOP)
        runner.stop()
        """
    )
    running.line("tree")
    ended = running.ended()
    assert ended.code == 0
    assert ended.tracebacks() == 0


@pytest.mark.parametrize(
    "forgotten",
    [
        "del runner",
        "next(stream); del runner, stream",
        "runner.me = runner; runner.stream = stream; del runner, stream",
    ],
    ids=["never read", "half way", "in a cycle"],
)
def test_a_forgotten_runner(script: Start, forgotten: str) -> None:
    """The trainer lives on: its children are gone, and none is a zombie."""
    running = script(
        f"""
        runner, stream = started()
        if "stream" not in {forgotten!r}:
            del stream
        {forgotten}
        gc.collect()
        for _ in range(200):  # two seconds, and as much longer as a busy machine takes for them
            if below(os.getpid()):
                time.sleep(0.01)
        print("left", *below(os.getpid()))
        """
    )
    running.line("tree")
    running.ends_quietly("left")
