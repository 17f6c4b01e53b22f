"""Freed memory is kept for the next kernel instead of being handed back to the system and faulted in again.

Kernels make dozens of arrays of a few MB a chunk. glibc gives each its own mapping and returns it at once; faulting
the pages in again costs more than the arithmetic: align + nest + busy + moments take 330 ns an event so, 175 with
this.
"""

import ctypes
import logging
import sys

import pyarrow as pa

logger = logging.getLogger(__name__)

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8

KEPT_BYTES = 256 << 20
"""Free memory at the top of the heap beyond which it is returned: the working set of a chunk of 256 k rows is ~150
MB."""

MAPPED_BYTES = 32 << 20
"""Larger arrays get a mapping of their own; glibc refuses a higher limit."""


def keep_freed_memory() -> bool:
    """Once per worker process, before its first chunk. False where the C library has no such settings: slower,
    nothing else."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    # One arena: those of other threads live in 64 MB mappings, which come and go again.
    settings = ((_M_MMAP_THRESHOLD, MAPPED_BYTES), (_M_TRIM_THRESHOLD, KEPT_BYTES), (_M_ARENA_MAX, 1))
    done = all(mallopt(ctypes.c_int(name), ctypes.c_int(value)) == 1 for name, value in settings)
    # Arrow's own allocator hands pages back as eagerly: 5 000 page faults an epoch, and none from one heap for both.
    pa.set_memory_pool(pa.system_memory_pool())
    logger.debug("malloc keeps up to %d MB: %s", KEPT_BYTES >> 20, done)
    return done
