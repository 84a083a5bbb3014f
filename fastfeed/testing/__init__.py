"""The contract of a sink, as one battery of checks: for fastfeed's own sinks and for yours.

    from fastfeed.testing import check_sink

    check_sink(lambda runner: runner.prefetch_to_device(my_put))

It needs no test framework: a broken promise raises SinkBroken, which is an AssertionError. May
import everything but diagnose, benchmark and cli.
"""

from fastfeed.testing.contract import check_sink
from fastfeed.testing.promises import PROMISES, SinkBroken, SinkTraits

__all__ = ["PROMISES", "SinkBroken", "SinkTraits", "check_sink"]
