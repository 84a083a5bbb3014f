"""What a sink must keep, as one battery of checks: for fastfeed's own sinks and for yours.

    from fastfeed.testing import check_sink

    check_sink(lambda runner: runner.prefetch_to_device(my_put))

Needs no test framework: a broken promise is a SinkBroken, which is an AssertionError.
"""

from fastfeed.testing.contract import check_sink
from fastfeed.testing.promises import PROMISES, SinkBroken, SinkTraits

__all__ = ["PROMISES", "SinkBroken", "SinkTraits", "check_sink"]
