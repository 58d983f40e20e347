"""Settings of the host process that make JAX faster on a CPU."""

import ctypes
import sys

# glibc's mallopt parameters (malloc.h).
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4


def keep_freed_memory() -> bool:
    """Lets glibc keep freed blocks for the next allocation instead of giving them back to the system.

    XLA for CPU allocates each step's large temporaries anew. Blocks over 32 MB come from the system page by page,
    zeroed each time: an exp over 50 MB took ten times as long for it (28 instead of 2.7 ms, measured). Returns whether
    it was set (Linux with glibc only). Call it once, before the first computation.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_MMAP_MAX, 0) and mallopt(_TRIM_THRESHOLD, 2**31 - 1) and mallopt(_TOP_PAD, 2**28))
