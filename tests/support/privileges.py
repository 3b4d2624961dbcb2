"""Tests of permissions also where they run as root, whom no mode of a file stops."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_VERSION_3 = 0x20080522
_DAC_OVERRIDE, _DAC_READ_SEARCH = 1 << 1, 1 << 2


@contextmanager
def without_privileges() -> Iterator[None]:
    """This thread obeys the modes of files, whoever it belongs to (Linux: without two of root's capabilities)."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    before, dropped = (ctypes.c_uint32 * 6)(), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, before) == 0, os.strerror(ctypes.get_errno())
    assert libc.capget(header, dropped) == 0, os.strerror(ctypes.get_errno())
    dropped[0] &= ~(_DAC_OVERRIDE | _DAC_READ_SEARCH)  # of what is effective; it stays permitted
    assert libc.capset(header, dropped) == 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        assert libc.capset(header, before) == 0, os.strerror(ctypes.get_errno())
