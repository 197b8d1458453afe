"""Asking the bucket what it is and can do."""

from __future__ import annotations

from dataclasses import dataclass

from manifests.keys import Layout
from s3_saver.bucket import ABSENT, CreateBucket, Delete, Feature, Has, HeadBucket, Put, Refused, both
from s3_saver.errors import StoreAccessError


@dataclass(frozen=True, slots=True)
class StoreReport:
    """What a store can do. None where it does not say, or the credentials may not ask.

    created: the bucket was made by this call.
    conditional_put: the store refuses to overwrite where it is asked to (`If-None-Match`). The archive needs it to
        keep two checkpoints of one id apart.
    versioned: deleted objects leave versions behind, which cost money until a lifecycle rule ends them.
    object_lock: objects can be locked; a deletion of a locked one hides it only.
    """

    created: bool
    conditional_put: bool
    versioned: bool | None
    object_lock: bool | None


async def setup(layout: Layout, *, bucket: str, create: bool, unique: str) -> StoreReport:
    """Check that the bucket answers and try what it can do. Five rounds, six where it is created.

    Raises `StoreAccessError` where there is no such bucket or the credentials lack a right.
    """
    exists = await HeadBucket()
    if not exists and not create:
        raise StoreAccessError(f"there is no bucket {bucket!r}; create it, or call setup(create_bucket=True)")
    if not exists:
        await CreateBucket()
    versioned, object_lock = await both(Has(Feature.VERSIONING), Has(Feature.OBJECT_LOCK))
    key = layout.probe(unique)
    # A single put cannot tell a store that refuses to overwrite from one that ignores the condition.
    await Put(key, b"probe 1\n", expect=ABSENT)
    second = await Put(key, b"probe 2\n", expect=ABSENT)
    await Delete((key,))
    return StoreReport(not exists, isinstance(second, Refused), versioned, object_lock)
