"""`alias_with_buffer_donor_config`: accepted; what may be overwritten is found at every step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def alias_with_buffer_donor_config(should_alias: bool = True) -> Iterator[bool]:
    """A block in which nothing is different."""
    yield True
