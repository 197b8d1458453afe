"""Every error that the package raises on purpose, beside ValueError, TypeError and KeyError for a wrong call.

There is a class where a handler would act differently:

    CheckpointConflictError   another checkpoint has this id: use a new id
    StoreUnavailableError     try later; nothing was changed half-way, and trying again is safe
    StoreAccessError          fix the bucket's name, the credentials or their rights
    ThreadBusyError           finish what another operation left, or keep what it would take
    DeletionError             some keys could not be deleted: see why, then delete again
    SaverClosedError          the saver was closed
    CorruptObjectError        restore the object, or delete what needs it
    UnsupportedFormatError    upgrade the package
"""

from __future__ import annotations

from collections.abc import Mapping

from manifests.errors import ArchiveError, CorruptObjectError, UnsupportedFormatError


class S3SaverError(Exception):
    """Root of the errors that using the store raises."""


class CheckpointConflictError(S3SaverError):
    """A checkpoint with this id is stored already, with other content. Nothing was changed."""


class StoreUnavailableError(S3SaverError):
    """The store did not answer, or asked to slow down, for as long as we tried.

    A put may have landed all the same; every call of the savers can be repeated without harm.
    """


class StoreAccessError(S3SaverError):
    """The store refuses: no such bucket, no or wrong credentials, or a right that they lack."""


class DeletionError(S3SaverError):
    """Some keys could not be deleted; the others were. `failed` maps each key to the store's reason."""

    def __init__(self, message: str, failed: Mapping[str, str]) -> None:
        super().__init__(message)
        self.failed = dict(failed)


class ThreadBusyError(S3SaverError):
    """The operation would break this thread: it is being copied into, or a survivor needs what would go.

    Nothing in the thread was changed.
    """


class SaverClosedError(S3SaverError):
    """The saver was closed before this call."""


__all__ = [
    "ArchiveError",
    "CheckpointConflictError",
    "CorruptObjectError",
    "DeletionError",
    "S3SaverError",
    "SaverClosedError",
    "StoreAccessError",
    "StoreUnavailableError",
    "ThreadBusyError",
    "UnsupportedFormatError",
]
