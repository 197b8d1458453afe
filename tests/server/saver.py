"""What a user writes: a function whose context is the saver. The server enters it once for each of its event loops."""

import os
from contextlib import AbstractAsyncContextManager

from s3_saver import AsyncS3Saver


def make() -> AbstractAsyncContextManager[AsyncS3Saver]:
    return AsyncS3Saver.from_conn_string(os.environ["S3_SAVER_CONN"])
