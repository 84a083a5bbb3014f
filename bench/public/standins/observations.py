"""Stand-in for observations: words in place of the Penn Treebank, in its proportions."""

from __future__ import annotations

import made
import public_hooks


def ptb(path: str) -> tuple[str, str, str]:
    """Return texts to train on, of as many characters as rows, to test and to validate."""
    count = int(public_hooks.SETTINGS.get("rows") or 5_000_000)
    text = made.prose(int(count * 1.17))
    return text[:count], text[count : count + count * 9 // 100], text[-count * 8 // 100 :]
