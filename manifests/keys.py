"""Every key of the archive is built and parsed here; no other module joins strings into a key.

Names come from users and may hold any characters, so every part is percent-encoded: no name can leave its folder,
and two names never share a key. Checkpoints sort newest first, since S3 lists keys in ascending order only.
The law of this module is the section "Keys" of FORMAT.md.

    {prefix}/threads/thread_id={T}/checkpoint_ns={N}/{D}.{ID}/_checkpoint.msgpack
    {prefix}/threads/thread_id={T}/checkpoint_ns={N}/{D}.{ID}/writes-{batch}.parquet
    {prefix}/threads/thread_id={T}/_values/{unique}.bin
    {prefix}/threads/thread_id={T}/_manifest/{unique}.parquet
    {prefix}/threads/thread_id={T}/_removed/{unique}.parquet
    {prefix}/threads/thread_id={T}/_runs/{R}
    {prefix}/threads/thread_id={T}/_name
    {prefix}/threads/thread_id={T}/_deleted
    {prefix}/threads/thread_id={T}/_copying
    {prefix}/threads/thread_id={T}/_removing/{unique}
    {prefix}/runs/run_id={R}/{T}
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote, unquote

PREFIX_BYTES_MAX = 135
ID_BYTES_MAX = 84
THREAD_BYTES_MAX = 200
NAMESPACE_BYTES_MAX = 240

CHECKPOINT = "_checkpoint.msgpack"
# Sorts after every name that can be in a checkpoint's folder, so a listing that starts here is past the folder.
PAST_FOLDER = "~"

_HASHED = re.compile(r"~[0-9a-f]{64}\Z")
_EMPTY = "~"
_FOLDER = re.compile(r"(?P<order>(?:[0-9a-f]{2})+z)\.(?P<id>[A-Za-z0-9_.%-]+)\Z")
_TABLE = re.compile(r"(?P<name>[0-9a-f-]+)\.parquet\Z")
_VALUE = re.compile(r"(?P<name>[A-Za-z0-9_.-]+)\.bin\Z")
_UNIQUE = re.compile(r"[0-9a-f-]+\Z")
_WRITES = re.compile(r"writes-(?P<batch>(?P<clock>[0-9a-f]{14})-[0-9a-f]{8})\.parquet\Z")


def encode(text: str) -> str:
    """`text` with all but `A-Za-z0-9_.-` percent-encoded; `~` for the empty string, which nothing else encodes to.

    Raises `UnicodeEncodeError` for lone surrogates, which have no UTF-8 form.
    """
    if text in (".", ".."):
        # Alone between two slashes, stores that keep objects in folders would follow these out of theirs.
        return text.replace(".", "%2E")
    # quote() leaves `~` alone, but here `~` marks what is no encoded name.
    return quote(text, safe="").replace("~", "%7E") if text else _EMPTY


def decode(part: str) -> str | None:
    """The name that `encode` made `part` from, or None when only its hash is in the key."""
    if part == _EMPTY:
        return ""
    return None if part.startswith("~") else unquote(part, errors="strict")


def encode_or_hash(text: str, bytes_max: int) -> str:
    """`encode(text)`, or `~` and the SHA-256 in hex where that is longer than `bytes_max`."""
    part = encode(text)
    return part if len(part) <= bytes_max else hash_of(text)


def hash_of(text: str) -> str:
    return "~" + hashlib.sha256(text.encode()).hexdigest()


def is_hash(part: str) -> bool:
    return _HASHED.match(part) is not None


@lru_cache(maxsize=4096)
def is_part(part: str) -> bool:
    """Whether `encode_or_hash` makes `part` of some name. A listing asks the same of few parts many times."""
    if is_hash(part):
        return True
    text = decode(part)
    return text is not None and encode(text) == part


def order_of(checkpoint_id: str) -> str:
    """A string that sorts the other way round than `checkpoint_id` does (by code point, like `max` over ids).

    Every byte of the UTF-8 is complemented; `z` at the end sorts a longer id before its own prefix.
    """
    return bytes(255 - byte for byte in checkpoint_id.encode()).hex() + "z"


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """A parsed key: its parts as they stand in the key (encoded), and what kind of object it names.

    `kind` is one of checkpoint, writes, value, segment, removal, run, name, deleted, copying, removing, marker.
    `namespace` and `folder` are set for the first two; `name` is the unique name, the batch, or the encoded run id.
    """

    kind: str
    thread: str
    namespace: str = ""
    folder: str = ""
    name: str = ""

    @property
    def checkpoint_id(self) -> str:
        return id_of(self.folder)


def id_of(folder: str) -> str:
    """The checkpoint id that a folder's name `{D}.{ID}` holds. Raises ValueError where the two halves differ."""
    match = _FOLDER.match(folder)
    if match is None:
        raise ValueError(f"{folder!r} is no checkpoint folder")
    checkpoint_id = unquote(match["id"], errors="strict")
    if order_of(checkpoint_id) != match["order"] or encode(checkpoint_id) != match["id"]:
        raise ValueError(f"the halves of the checkpoint folder {folder!r} differ")
    return checkpoint_id


def clock_of(batch_key: str) -> int:
    """The hybrid clock, in microseconds, in the key of a writes batch."""
    match = _WRITES.search(batch_key)
    if match is None:
        raise ValueError(f"{batch_key!r} is no writes batch")
    return int(match["clock"], 16)


def batch_name(clock_us: int, unique: str) -> str:
    """A batch's name. Batches of a checkpoint sort by `clock_us`; `unique` (8 hex digits) parts equal ones."""
    return f"{clock_us:014x}-{unique}"


@dataclass(frozen=True, slots=True)
class Layout:
    """Builds and parses the keys of one archive, all of which start with `root` (empty, or ending in a slash)."""

    root: str

    @classmethod
    def under(cls, prefix: str) -> Layout:
        return cls(f"{prefix}/" if prefix else "")

    # Folders and parts

    @property
    def threads(self) -> str:
        return f"{self.root}threads/"

    def thread(self, thread_id: str) -> str:
        return self.thread_folder(encode_or_hash(thread_id, THREAD_BYTES_MAX))

    def thread_folder(self, thread: str) -> str:
        return f"{self.threads}thread_id={thread}/"

    def namespaces(self, thread_id: str) -> str:
        """What all keys of the thread's checkpoints and writes start with."""
        return f"{self.thread(thread_id)}checkpoint_ns="

    def namespace(self, thread_id: str, namespace: str) -> str:
        return f"{self.namespaces(thread_id)}{encode_or_hash(namespace, NAMESPACE_BYTES_MAX)}/"

    def folder(self, thread_id: str, namespace: str, checkpoint_id: str) -> str:
        return self.folder_in(self.thread(thread_id), namespace, checkpoint_id)

    def folder_in(self, thread_folder: str, namespace: str, checkpoint_id: str) -> str:
        part = encode_or_hash(namespace, NAMESPACE_BYTES_MAX)
        return f"{thread_folder}checkpoint_ns={part}/{order_of(checkpoint_id)}.{encode(checkpoint_id)}/"

    # Objects

    def checkpoint(self, thread_id: str, namespace: str, checkpoint_id: str) -> str:
        return checkpoint_in(self.folder(thread_id, namespace, checkpoint_id))

    def value(self, thread_id: str, name: str) -> str:
        return value_in(self.thread(thread_id), name)

    def name(self, thread_id: str) -> str | None:
        """The key that keeps the thread's id readable, or None where the folder's own name does."""
        folder = self.thread(thread_id)
        return self.name_in(folder) if is_hash(self.thread_part(folder)) else None

    def name_in(self, thread_folder: str) -> str:
        return f"{thread_folder}_name"

    def deleted(self, thread_id: str) -> str:
        return self.deleted_in(self.thread(thread_id))

    def deleted_in(self, thread_folder: str) -> str:
        return f"{thread_folder}_deleted"

    def run(self, thread_id: str, run: str) -> str:
        return runs_in(self.thread(thread_id)) + run

    def marker(self, thread_id: str, run: str) -> str:
        return self.markers(run) + encode_or_hash(thread_id, THREAD_BYTES_MAX)

    def markers(self, run: str) -> str:
        """What the markers of all threads that the run wrote to start with."""
        return f"{self.root}runs/run_id={run}/"

    def probe(self, unique: str) -> str:
        """A key that `setup` tries the store with, outside of all threads."""
        return f"{self.root}_probe/{unique}"

    # Parsing

    def thread_part(self, key: str) -> str:
        """The encoded thread id in a key or folder below `threads`."""
        part = key.removeprefix(f"{self.threads}thread_id=")
        if part == key:
            raise ValueError(f"{key!r} is not below {self.threads}thread_id=")
        return part.split("/", 1)[0]

    def kind(self, key: str) -> str | None:
        """The kind of object that `key` names; None for a key that is none of the archive's: a folder marker, say."""
        try:
            return self.parse(key).kind
        except ValueError:
            return None

    def parse(self, key: str) -> ObjectKey:
        """What `key` names. Raises ValueError for a key that is none of the archive's."""
        if key.startswith(f"{self.root}runs/run_id="):
            run, _, thread = key.removeprefix(f"{self.root}runs/run_id=").partition("/")
            found: ObjectKey | None = ObjectKey("marker", thread, name=run)
        else:
            thread = self.thread_part(key)
            found = _in_thread(thread, key.removeprefix(self.thread_folder(thread)))
        if found is None or not all(is_part(part) for part in _parts_of(found)):
            raise ValueError(f"{key!r} is no key of the archive")
        return found


def _in_thread(thread: str, rest: str) -> ObjectKey | None:
    match rest.split("/"):
        case ["_name"]:
            return ObjectKey("name", thread)
        case ["_deleted"]:
            return ObjectKey("deleted", thread)
        case ["_copying"]:
            return ObjectKey("copying", thread)
        case ["_manifest", segment] if found := _TABLE.match(segment):
            return ObjectKey("segment", thread, name=found["name"])
        case ["_removed", record] if found := _TABLE.match(record):
            return ObjectKey("removal", thread, name=found["name"])
        case ["_removing", unique] if _UNIQUE.match(unique):
            return ObjectKey("removing", thread, name=unique)
        case ["_runs", run]:
            return ObjectKey("run", thread, name=run)
        case ["_values", value] if found := _VALUE.match(value):
            return ObjectKey("value", thread, name=found["name"])
        case [namespace, folder, name] if namespace.startswith("checkpoint_ns="):
            return _in_folder(thread, namespace.removeprefix("checkpoint_ns="), folder, name)
    return None


def _in_folder(thread: str, namespace: str, folder: str, name: str) -> ObjectKey | None:
    id_of(folder)
    if name == CHECKPOINT:
        return ObjectKey("checkpoint", thread, namespace, folder)
    found = _WRITES.match(name)
    return None if found is None else ObjectKey("writes", thread, namespace, folder, found["batch"])


def _parts_of(key: ObjectKey) -> tuple[str, ...]:
    """The encoded names in a key. Stored under other spellings of them, an object would never be found."""
    match key.kind:
        case "run" | "marker":
            return key.thread, key.name
        case "checkpoint" | "writes":
            return key.thread, key.namespace
    return (key.thread,)


def thread_folder_of(key: str) -> str:
    """The folder of the thread that a checkpoint's key, or its folder, lies in."""
    # The last one: a prefix may hold anything, encoded names hold no `=`.
    folder, found, _ = key.rpartition("/checkpoint_ns=")
    if not found:
        raise ValueError(f"{key!r} is no checkpoint's")
    return folder + "/"


def copying_in(thread_folder: str) -> str:
    return f"{thread_folder}_copying"


def removing_in(thread_folder: str, unique: str) -> str:
    return f"{thread_folder}_removing/{unique}"


def segment_in(thread_folder: str, unique: str) -> str:
    return f"{thread_folder}_manifest/{unique}.parquet"


def removal_in(thread_folder: str, unique: str) -> str:
    return f"{removals_in(thread_folder)}{unique}.parquet"


def removals_in(thread_folder: str) -> str:
    return f"{thread_folder}_removed/"


def value_in(thread_folder: str, name: str) -> str:
    return f"{values_in(thread_folder)}{name}.bin"


def values_in(thread_folder: str) -> str:
    return f"{thread_folder}_values/"


def runs_in(thread_folder: str) -> str:
    return f"{thread_folder}_runs/"


def run_part(run_id: str, *, hidden: bool) -> str:
    """How a run id stands in keys: encoded, or hashed where it is too long or must not be readable there."""
    return hash_of(run_id) if hidden else encode_or_hash(run_id, THREAD_BYTES_MAX)


def checkpoint_in(folder: str) -> str:
    return folder + CHECKPOINT


def writes_in(folder: str, batch: str) -> str:
    return f"{folder}writes-{batch}.parquet"


def past(folder: str) -> str:
    """Where a listing starts that leaves `folder` (ending in a slash) and all before it out."""
    return folder + PAST_FOLDER
