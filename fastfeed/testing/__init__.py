"""The contract of a sink, as one battery of checks: for fastfeed's own sinks and for yours.

    from fastfeed.testing import check_sink

    check_sink(lambda runner: runner.prefetch_to_device(my_put))

It needs no test framework: a broken promise raises SinkBroken, which is an AssertionError.
"""

from fastfeed.testing.contract import PROMISES, SinkBroken, SinkTraits
from fastfeed.testing.scenes import check_sink

__all__ = ["PROMISES", "SinkBroken", "SinkTraits", "check_sink"]
