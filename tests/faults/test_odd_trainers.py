"""Odd trainers: daemons, threads that end, blocked signals, workers with children of their own."""

from __future__ import annotations

import signal

import pytest

from tests.helpers.dying import state_of, until
from tests.helpers.scripts import Start

QUIET = ""
LOOP = """
    with FeedRunner(endless, processes=2, threads=2) as runner:
        for number, batch in enumerate(runner):
            if number == 0:
                say_tree(3)
    """


def test_the_thread_that_started_it_has_ended(script: Start) -> None:
    """The kernel ties a process to the thread that started it: that must not be the user's."""
    script(
        """
        found = []
        thread = threading.Thread(target=lambda: found.append(started()))
        thread.start()
        thread.join()
        runner, stream = found.pop()
        for _ in range(5000):
            next(stream)
        runner.stop()
        print("read")
        """
    ).ends_quietly("read")


def test_workers_with_threads_and_processes_of_their_own(script: Start) -> None:
    running = script(
        """
        def stream():
            threading.Thread(target=time.sleep, args=(100,)).start()
            child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
            while True:
                yield np.full(4, child.pid)
        runner, stream = started(stream, processes=1)
        say_tree(3)
        runner.stop()
        """
    )
    running.line("tree")
    running.ends_quietly()
    assert len(running.tree()) >= 3


@pytest.mark.parametrize("closed", ["0", "1", "2", "012"])
def test_closed_standard_streams(script: Start, closed: str) -> None:
    """A daemon: numbers 0 to 2 are free, and no pipe may take them, because code prints to them."""
    running = script(
        """
        import sys
        say = os.dup(1)
        for number in sys.argv[1]:
            os.close(int(number))
        def stream(worker):
            os.system("echo noise; echo noise >&2")
            yield from (np.full(4, i) for i in range(worker.index, 10, worker.count))
        with FeedRunner(stream, processes=2) as runner:
            found = sorted(int(b[0]) for b in runner)
        os.write(say, b"whole\\n" if found == list(range(10)) else b"broken\\n")
        os._exit(0)
        """,
        closed,
    )
    ended = running.ended()
    assert "whole" in ended.out
    assert ended.tracebacks() == 0


def test_blocked_signals(script: Start) -> None:
    """A program that waits for signals in one thread blocks them everywhere: workers must not
    inherit that."""
    script(
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        def stream():
            yield np.zeros(4)
            os._exit(3)
        try:
            with FeedRunner(stream, processes=1, stall_timeout_s=50) as runner:
                list(runner)
        except Exception as error:
            print(type(error).__name__)
        """
    ).ends_quietly("ProducerDied")


def test_a_trainer_that_is_stopped_and_then_killed(script: Start) -> None:
    running = script(LOOP)
    running.line("tree")
    running.signal(signal.SIGSTOP)
    until(lambda: state_of(running.pid) == "T", "the trainer to be stopped")
    running.signal(signal.SIGKILL)
    assert running.ended().code == -signal.SIGKILL


def test_workers_have_the_flags_the_arguments_and_the_limits_of_the_program(script: Start) -> None:
    python = ("-O", "-X", "utf8", "-X", "dev", "-W", "error::UserWarning")
    running = script(
        """
        import sys, warnings
        sys.argv += [f"data/{n}.jpg" for n in range(100_000)] + ["\\udcff", Path("data")]
        sys.setrecursionlimit(4321)
        def program():
            flags = list(sys.flags), sorted(sys._xoptions), sys.warnoptions, sys.getrecursionlimit()
            return repr((*flags, hash(tuple(map(len, map(str, sys.argv)))), sys.path)).encode()
        def stream():
            yield np.array([program()]), np.array([len(sys.stdin.read())])
        with FeedRunner(stream, processes=1) as runner:
            ((theirs,), (read,)), = runner
        say("same" if theirs == program() else f"{theirs} {program()}", read)
        """,
        python=python,
    )
    ended = running.ended()
    assert (ended.code, ended.err, ended.out) == (0, QUIET, ["same 0"])


@pytest.mark.parametrize(
    "pool",
    [
        "multiprocessing.get_context('fork').Pool(1)",
        "concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context('fork'))",
    ],
)
def test_a_pool_in_a_worker_calls_functions_of_the_main_module(script: Start, pool: str) -> None:
    running = script(
        f"""
        import concurrent.futures
        import multiprocessing
        class Pair:
            def __init__(self, left):
                self.left, self.right = left, left * left
        def square(value):
            return Pair(value)
        def squares(index):
            with {pool} as pool:
                pairs = list(pool.map(square, [index, 3]))
            assert all(type(pair) is Pair for pair in pairs)
            return np.array([pair.right for pair in pairs])
        with FeedRunner(range(2), batch_size=2, transform=squares, processes=1) as runner:
            for batch in runner:
                say(batch.tolist())
        """
    )
    ended = running.ended()
    assert (ended.code, ended.err, ended.out) == (0, QUIET, ["[[0, 9], [1, 9]]"])
