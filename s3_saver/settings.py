"""What a saver is given, checked before any request is sent: each error names the argument and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from boto3.s3.transfer import S3Transfer

from manifests.keys import PREFIX_BYTES_MAX

# Value objects outlive their last reference by this long, so that a writer which refers to one cannot lose it.
GRACE = timedelta(hours=1)

INLINE_LIMIT_BYTES: Final = 65_536
MAX_CONCURRENCY: Final = 16

_PUT_ARGUMENTS = frozenset(S3Transfer.ALLOWED_UPLOAD_ARGS)
_CONNECTION_KEYS = ("region_name", "endpoint_url", "profile_name")
_CONN_STRING = "s3://bucket/prefix?region_name=…&endpoint_url=…&profile_name=…"

MetadataFilter = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Settings:
    """A saver's checked settings. `prefix` has no slash at its ends, `directory_bucket` lists in no order."""

    bucket: str
    prefix: str
    put_extra_args: Mapping[str, Any]
    metadata_filter: MetadataFilter | None
    inline_limit: int
    max_concurrency: int

    @property
    def directory_bucket(self) -> bool:
        return self.bucket.endswith("--x-s3")


def checked(
    bucket: str,
    *,
    prefix: str,
    put_extra_args: Mapping[str, Any] | None,
    metadata_filter: MetadataFilter | None,
    inline_limit: int,
    max_concurrency: int,
) -> Settings:
    """The settings, or ValueError or TypeError naming the argument that is wrong."""
    if metadata_filter is not None and not callable(metadata_filter):
        raise TypeError(f"metadata_filter must be a function of a key, or None; got {metadata_filter!r}")
    return Settings(
        bucket=_bucket(bucket),
        prefix=_prefix(prefix),
        put_extra_args=_put_extra_args({} if put_extra_args is None else put_extra_args),
        metadata_filter=metadata_filter,
        inline_limit=_positive("inline_limit", inline_limit, "bytes"),
        max_concurrency=_positive("max_concurrency", max_concurrency, "requests at once"),
    )


def _bucket(bucket: object) -> str:
    if not isinstance(bucket, str) or not bucket:
        raise ValueError(f"bucket must be a bucket's name; got {bucket!r}")
    if bucket.startswith("s3://"):
        raise ValueError(f"bucket must be a name alone, got {bucket!r}; for a URL there is from_conn_string()")
    if re.search(r"[/:@\s?#]", bucket) and not bucket.startswith("arn:"):
        raise ValueError(
            f"bucket must be a name without slashes, colons or spaces, got {bucket!r}; a folder goes into prefix="
        )
    return bucket


def _prefix(prefix: object) -> str:
    if not isinstance(prefix, str):
        raise TypeError(f"prefix must be a string; got {prefix!r}")
    trimmed = prefix.removesuffix("/")
    if prefix and any(part in ("", ".", "..") for part in trimmed.split("/")):
        raise ValueError(
            f"prefix must be names joined by single slashes, as in 'team/archive'; got {prefix!r} (no slash at its "
            "start, no empty name, no '.' or '..')"
        )
    if re.search(r"[\x00-\x1f\x7f\ud800-\udfff]", trimmed):
        raise ValueError(f"prefix must hold no control characters or lone surrogates; got {prefix!r}")
    if len(trimmed.encode()) > PREFIX_BYTES_MAX:
        raise ValueError(f"prefix may have {PREFIX_BYTES_MAX} bytes of UTF-8, this one has {len(trimmed.encode())}")
    return trimmed


def _positive(name: str, value: object, unit: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number of {unit}; got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1 ({unit}); got {value}")
    return value


def _put_extra_args(given: object) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise TypeError(f"put_extra_args must be a mapping like boto3's ExtraArgs; got {given!r}")
    unknown = sorted(set(given) - _PUT_ARGUMENTS)
    if unknown:
        raise ValueError(f"put_extra_args has {unknown}; allowed are {sorted(_PUT_ARGUMENTS)}")
    arguments = dict(given)
    retention = arguments.get("ObjectLockRetainUntilDate")
    if retention is not None and not isinstance(retention, timedelta | datetime):
        raise TypeError(
            f"put_extra_args: ObjectLockRetainUntilDate must be a timedelta or a datetime; got {retention!r}"
        )
    if isinstance(retention, timedelta) and retention <= timedelta(0):
        raise ValueError(f"put_extra_args: the retention ObjectLockRetainUntilDate must be positive; got {retention}")
    if ("ObjectLockMode" in arguments) != (retention is not None):
        raise ValueError(
            "put_extra_args: ObjectLockMode and ObjectLockRetainUntilDate (a timedelta from each put on, or a "
            "datetime) go together"
        )
    if any(name.startswith("ObjectLock") for name in arguments):
        # S3 takes a lock only with a checksum of the body.
        arguments.setdefault("ChecksumAlgorithm", "CRC32")
    return arguments


def from_conn_string(conn_string: str) -> tuple[str, str, dict[str, str]]:
    """Bucket, prefix and connection arguments in `s3://bucket/prefix?region_name=…`; ValueError for anything else."""
    if not isinstance(conn_string, str):
        raise TypeError(f"a connection string is {_CONN_STRING}; got {type(conn_string).__name__}")
    parts = urlsplit(conn_string)
    if parts.scheme != "s3" or not parts.netloc:
        raise ValueError(f"a connection string is {_CONN_STRING}; got one that starts with {conn_string[:5]!r}")
    # A secret may hold a slash, where the URL's first part then ends: the colon before it gives it away.
    if "@" in parts.netloc or ":" in parts.netloc:
        # The message leaves out what may be a secret.
        raise ValueError("a connection string holds no credentials; set AWS_ACCESS_KEY_ID and its kin, or a profile")
    if parts.fragment:
        raise ValueError(f"a connection string is {_CONN_STRING}; got a fragment, #{parts.fragment}")
    query = parse_qsl(parts.query, keep_blank_values=True)
    unknown = sorted({name for name, _ in query} - set(_CONNECTION_KEYS))
    if unknown:
        raise ValueError(f"the connection string has {unknown}; allowed are {list(_CONNECTION_KEYS)}")
    empty = [name for name, value in query if not value]
    if empty or len(query) != len(dict(query)):
        raise ValueError(f"each key of a connection string is given once, with a value; got {[n for n, _ in query]}")
    return parts.netloc, parts.path.removeprefix("/"), dict(query)


# Keys that look like secrets. An archive keeps for years what LangGraph copies from a run's config into metadata.
_SECRET_WORDS = frozenset(
    {
        "authorization",
        "bearer",
        "cookie",
        "credential",
        "credentials",
        "jwt",
        "passphrase",
        "passwd",
        "password",
        "pwd",
        "secret",
        "secrets",
    }
)
_SECRET_PAIRS = frozenset({("api", "key"), ("access", "key"), ("private", "key"), ("signing", "key"), ("auth", "key")})
_SECRET_JOINED = ("apikey", "accesskey", "privatekey", "accesstoken", "authtoken")


def looks_like_secret(key: str) -> bool:
    """Whether a metadata key names a secret: `api_key`, `OPENAI_API_KEY`, `accessToken`, `password`, …"""
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", key)]
    return (
        not _SECRET_WORDS.isdisjoint(words)
        # `token` at the end names one; `max_tokens` and `token_count` count them.
        or words[-1:] == ["token"]
        or any(pair in _SECRET_PAIRS for pair in pairwise(words))
        or any(joined in "".join(words) for joined in _SECRET_JOINED)
    )


def DEFAULT(key: str) -> bool:
    """The default `metadata_filter`: keeps every key that does not look like a secret."""
    return not looks_like_secret(key)
