"""A LangGraph checkpoint archive on S3-compatible object storage.

    from s3_saver import S3Saver

    with S3Saver.from_conn_string("s3://my-bucket/archive") as saver:
        graph = builder.compile(checkpointer=saver)

Everything public is exported here; other modules may change.
"""

from s3_saver.aio import AsyncS3Saver
from s3_saver.errors import (
    ArchiveError,
    CheckpointConflictError,
    CorruptObjectError,
    DeletionError,
    S3SaverError,
    SaverClosedError,
    StoreAccessError,
    StoreUnavailableError,
    ThreadBusyError,
    UnsupportedFormatError,
)
from s3_saver.operations.prune import Fate, PrunePlan, ThreadPlan
from s3_saver.operations.setup import StoreReport
from s3_saver.operations.threads import ThreadSummary
from s3_saver.saver import S3Saver
from s3_saver.settings import DEFAULT

__all__ = [
    "DEFAULT",
    "ArchiveError",
    "AsyncS3Saver",
    "CheckpointConflictError",
    "CorruptObjectError",
    "DeletionError",
    "Fate",
    "PrunePlan",
    "S3Saver",
    "S3SaverError",
    "SaverClosedError",
    "StoreAccessError",
    "StoreReport",
    "StoreUnavailableError",
    "ThreadBusyError",
    "ThreadPlan",
    "ThreadSummary",
    "UnsupportedFormatError",
]
