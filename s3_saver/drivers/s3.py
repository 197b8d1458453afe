"""A request as an S3 call, and a response or an error as an answer: what both S3 drivers share.

Foreign errors are translated here and nowhere else. Clients retry what they know to be passing: time-outs, broken
connections, throttling. Drivers retry the rest (`Again`): a body that broke off, a conflict of two conditional puts,
keys that a deletion was asked to try later.
"""

from __future__ import annotations

import hashlib
import random
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from botocore import exceptions as boto

from s3_saver.bucket import (
    ABSENT,
    Body,
    Copy,
    CreateBucket,
    Deadline,
    Delete,
    Deleted,
    Feature,
    Get,
    Has,
    HeadBucket,
    Late,
    List,
    Listed,
    Page,
    Put,
    Refused,
    Request,
    Stored,
)
from s3_saver.drivers.clock import now
from s3_saver.errors import S3SaverError, StoreAccessError, StoreUnavailableError

ATTEMPTS_MAX = 5

# Calls are named after the client's methods; arguments are theirs.
Call = tuple[str, dict[str, Any]]


class Again(Exception):
    """No error yet: the request may be sent again. `answer` is what to answer when it was tried for long enough."""

    def __init__(self, answer: Deleted | None = None) -> None:
        super().__init__("the store asked to try again")
        self.answer = answer


class _Passed(Exception):
    """The deadline passed before a request was signed."""


_deadline: ContextVar[Deadline | None] = ContextVar("s3_saver_deadline", default=None)


def call_of(request: Request[Any], *, bucket: str, extra: Mapping[str, Any], region: str) -> Call:
    """The client's method and arguments that `request` stands for. `extra` goes to every put."""
    match request:
        case Get(key, first_bytes):
            first = {"Range": f"bytes=0-{first_bytes - 1}"} if first_bytes else {}
            return "get_object", {"Bucket": bucket, "Key": key, **first}
        case Put(key, body, expect):
            condition = {"IfNoneMatch": "*"} if expect is ABSENT else {}
            object_ = {"Bucket": bucket, "Key": key, "Body": body}
            return "put_object", {**object_, **_proof_of(body, bucket, extra), **_extra_of(extra), **condition}
        case List(prefix, after, token, limit, delimiter):
            wanted = {"StartAfter": after, "ContinuationToken": token, "Delimiter": delimiter}
            given = {name: value for name, value in wanted.items() if value}
            return "list_objects_v2", {"Bucket": bucket, "Prefix": prefix, "MaxKeys": limit, **given}
        case Copy(source, key):
            origin = {"Bucket": bucket, "Key": source}
            return "copy_object", {"Bucket": bucket, "Key": key, "CopySource": origin, **_copy_extra_of(extra)}
        case Delete(keys):
            objects = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
            return "delete_objects", {"Bucket": bucket, "Delete": objects}
        case HeadBucket():
            return "head_bucket", {"Bucket": bucket}
        case Has(feature):
            return feature.value, {"Bucket": bucket}
        case CreateBucket():
            # S3 wants the region named in the body too, all but its first one, which has no name there.
            named = {"CreateBucketConfiguration": {"LocationConstraint": region}} if region != "us-east-1" else {}
            return "create_bucket", {"Bucket": bucket, **named}
    raise TypeError(f"no S3 call for {request!r}")


def _proof_of(body: bytes, bucket: str, extra: Mapping[str, Any]) -> dict[str, str]:
    """What lets the store know a body that broke off. SeaweedFS takes one of no bytes for a whole, empty one.

    Every store knows Content-MD5 but directory buckets, for which clients compute checksums anyway.
    """
    if bucket.endswith("--x-s3") or "ChecksumAlgorithm" in extra:
        return {}
    return {"ContentMD5": b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()}


def _extra_of(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for one put: a lock's retention, given as a span of time, counts from now."""
    arguments = dict(extra)
    retention = arguments.get("ObjectLockRetainUntilDate")
    if isinstance(retention, timedelta):
        arguments["ObjectLockRetainUntilDate"] = datetime.now(UTC) + retention
    return arguments


def _copy_extra_of(extra: Mapping[str, Any]) -> dict[str, Any]:
    """What goes to every put goes to every copy. A copy takes over tags and headers unless it is told to replace."""
    arguments = _extra_of(extra)
    if "Tagging" in arguments:
        arguments["TaggingDirective"] = "REPLACE"
    if not _HEADERS.isdisjoint(arguments):
        arguments["MetadataDirective"] = "REPLACE"
    return arguments


_HEADERS = {
    "CacheControl",
    "ContentDisposition",
    "ContentEncoding",
    "ContentLanguage",
    "ContentType",
    "Expires",
    "Metadata",
    "WebsiteRedirectLocation",
}


def answer_of(request: Request[Any], response: Mapping[str, Any], data: bytes = b"") -> Any:
    """The answer that `response` (with a body of `data`) gives to `request`."""
    match request:
        case Get():
            # "bytes 0-9/200": the size of the whole stands last.
            size = int(response.get("ContentRange", f"/{len(data)}").rpartition("/")[2])
            return Body(data, size, response["ETag"])
        case Put():
            return Stored(response["ETag"])
        case Copy():
            # SeaweedFS leaves out the quotes here, and only here.
            return Stored('"{}"'.format(response["CopyObjectResult"]["ETag"].strip('"')))
        case List():
            keys = tuple(_listed(item) for item in response.get("Contents", ()))
            folders = tuple(item["Prefix"] for item in response.get("CommonPrefixes", ()))
            token = response.get("NextContinuationToken") if response["IsTruncated"] else None
            return Page(keys, folders, token, _date_ms(response))
        case Delete():
            return _deleted(response)
        case HeadBucket():
            return True
        case Has(Feature.VERSIONING):
            return response.get("Status") == "Enabled"
        case Has(Feature.OBJECT_LOCK):
            return response.get("ObjectLockConfiguration", {}).get("ObjectLockEnabled") == "Enabled"
    return None


def _listed(item: Mapping[str, Any]) -> Listed:
    return Listed(item["Key"], item["Size"], item["ETag"], round(item["LastModified"].timestamp() * 1000))


def _date_ms(response: Mapping[str, Any]) -> int:
    date = response["ResponseMetadata"]["HTTPHeaders"]["date"]
    return round(parsedate_to_datetime(date).timestamp() * 1000)


def _deleted(response: Mapping[str, Any]) -> Deleted:
    """DeleteObjects answers 200 and reports what it could not delete key by key."""
    gone = {"NoSuchKey", "404"}
    failed = {
        item["Key"]: f"{item['Code']}: {item.get('Message', '')}"
        for item in response.get("Errors", ())
        if item["Code"] not in gone
    }
    if failed and all(reason.partition(":")[0] in _LATER for reason in failed.values()):
        raise Again(Deleted(failed))
    return Deleted(failed)


# Errors

_LATER = {
    "InternalError",
    "RequestTimeout",
    "RequestTimeoutException",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
    "500",
    "502",
    "503",
    "504",
    "429",
}
_CONFLICT = {"ConditionalRequestConflict", "OperationAborted", "409"}
_TAKEN = {"BucketAlreadyExists"}
_CREDENTIALS = {
    "AccessDenied",
    "AllAccessDisabled",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "RequestExpired",
    "SignatureDoesNotMatch",
    "Unauthorized",
    "401",
    "403",
}
# The connection broke or stayed silent; the request may or may not have been carried out.
_BROKEN = (
    boto.HTTPClientError,
    boto.ConnectionError,
    boto.IncompleteReadError,
    ConnectionError,
    TimeoutError,
)


def outcome_of(request: Request[Any], error: Exception, *, bucket: str) -> Any:
    """The answer that `error` amounts to. Else raises: `Again` where trying again may help, or what it means."""
    if isinstance(error, S3SaverError | Again):
        raise error
    if isinstance(error, _Passed):
        return Late()
    doing = describe(request, bucket)
    if isinstance(error, boto.ClientError):
        return _client_error(request, error, bucket, doing)
    if isinstance(error, boto.NoCredentialsError | boto.PartialCredentialsError | boto.CredentialRetrievalError):
        raise StoreAccessError(
            f"{doing}: no usable credentials ({error}); set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, "
            "or pass client="
        ) from error
    if isinstance(error, _BROKEN) or type(error).__module__.partition(".")[0] in {"aiohttp", "urllib3"}:
        raise _unavailable(doing, error) from error
    if isinstance(error, boto.BotoCoreError):
        raise StoreAccessError(f"{doing}: {error}; fix the client's configuration") from error
    raise error


def _client_error(request: Request[Any], error: boto.ClientError, bucket: str, doing: str) -> Any:
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = str(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))
    found = {code, status}
    if isinstance(request, Put) and found & {"PreconditionFailed", "412"}:
        return Refused()
    if isinstance(request, CreateBucket) and code in {"BucketAlreadyOwnedByYou"}:
        return None
    if isinstance(request, HeadBucket) and "404" in found:
        return False
    if isinstance(request, Has) and code == "ObjectLockConfigurationNotFoundError":
        return False
    if code in {"NoSuchBucket"}:
        raise StoreAccessError(
            f"{doing}: there is no bucket {bucket!r}; create it, or call setup(create_bucket=True)"
        ) from error
    if isinstance(request, Get | Copy) and found & {"NoSuchKey", "404"}:
        return None
    if found & _CONFLICT and code not in _TAKEN:
        raise Again from error
    if found & _LATER:
        raise _unavailable(doing, error) from error
    if isinstance(request, Has):
        return None
    if found & _CREDENTIALS:
        raise StoreAccessError(
            f"{doing}: the store refuses ({code}: {_message(error)}); check the credentials and their rights on "
            f"bucket {bucket!r}"
        ) from error
    raise StoreAccessError(f"{doing}: the store answered {code}: {_message(error)}") from error


def _message(error: boto.ClientError) -> str:
    return str(error.response.get("Error", {}).get("Message", ""))


def given_up(request: Request[Any], again: Again, *, bucket: str) -> Deleted:
    """The answer when the last attempt failed as well; raises where there is none."""
    if again.answer is not None:
        return again.answer
    cause = again.__cause__ or again
    raise _unavailable(describe(request, bucket), cause) from cause


def _unavailable(doing: str, error: BaseException) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"{doing}: no success after retries ({type(error).__name__}: {error}); check that the store can be reached, "
        "then try again: repeating the call is safe"
    )


def describe(request: Request[Any], bucket: str) -> str:
    """Doing what, to which key in which bucket."""
    match request:
        case Get(key):
            return f"reading {key} in bucket {bucket!r}"
        case Put(key):
            return f"storing {key} in bucket {bucket!r}"
        case List(prefix):
            return f"listing {prefix or 'all'} in bucket {bucket!r}"
        case Copy(source, key):
            return f"copying {source} to {key} in bucket {bucket!r}"
        case Delete(keys):
            return f"deleting {len(keys)} keys from {keys[0]} on in bucket {bucket!r}"
        case CreateBucket():
            return f"creating bucket {bucket!r}"
    return f"asking about bucket {bucket!r}"


def pause_seconds(attempt: int) -> float:
    """How long to wait after attempt number `attempt`, counted from 0: exponential, with jitter, at most 5 s."""
    return float(min(5.0, 0.05 * 2**attempt)) * random.uniform(0.5, 1.0)  # noqa: S311 - jitter needs no secrecy


# Deadlines


def watch_deadlines(events: Any) -> None:
    """Make the client whose `events` these are look at a put's deadline before it signs, retries included."""
    # Counted: savers may share a client, and one that is closed must not take the check from the others.
    for name in _DATED:
        event = f"request-created.s3.{name}"
        events.register_first(event, _check_deadline, f"s3-saver-{name}", unique_id_uses_count=True)


def ignore_deadlines(events: Any) -> None:
    for name in _DATED:
        event = f"request-created.s3.{name}"
        events.unregister(event, unique_id=f"s3-saver-{name}", unique_id_uses_count=True)


# What may have a deadline.
_DATED = ("PutObject", "DeleteObjects")


@contextmanager
def deadline_of(request: Request[Any]) -> Iterator[None]:
    """What the client signs inside is held to the deadline of `request`."""
    token = _deadline.set(request.deadline if isinstance(request, Put | Delete) else None)
    try:
        yield
    finally:
        _deadline.reset(token)


def _check_deadline(**_: Any) -> None:
    deadline = _deadline.get()
    if deadline is not None and deadline.passed(now()):
        raise _Passed
