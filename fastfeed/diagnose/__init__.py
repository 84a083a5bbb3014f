"""Why a training is slow. The evidence flows from hooks and sample through judge to report; run
starts it all. Each of these rooms imports only those before it.

The package can be called: `with fastfeed.diagnose() as report: model.fit(...)`."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class CallablePackage(ModuleType):
    """A package whose name is that of a function, too, whatever was imported before."""

    def __call__(self, **options: Any) -> Any:
        """Return a diagnosis of a `with` block, with the options of BlockDiagnosis."""
        from fastfeed.diagnose.run.block import BlockDiagnosis

        return BlockDiagnosis(**options)


sys.modules[__name__].__class__ = CallablePackage
