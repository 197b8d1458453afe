"""What a user writes: a function whose value is an async context that yields the saver."""

import os
from contextlib import AbstractAsyncContextManager

from s3_saver import AsyncS3Saver


def make() -> AbstractAsyncContextManager[AsyncS3Saver]:
    return AsyncS3Saver.from_conn_string(os.environ["S3_SAVER_CONN"])
