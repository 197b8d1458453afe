"""The moment, on every clock there is."""

from __future__ import annotations

import time

from s3_saver.bucket import Instant

_BOOT = getattr(time, "CLOCK_BOOTTIME", None)


def now() -> Instant:
    """This moment. Where the system has no clock that runs on while it is suspended, the others stand in."""
    monotonic = time.monotonic()
    boot = monotonic if _BOOT is None else time.clock_gettime(_BOOT)
    return Instant(monotonic, boot, time.time())
