"""What tests put, and what a reader may see of a bucket: each visible checkpoint whole, exactly as it was put."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple, DeltaChannelHistory
from memory_saver import MemorySaver
from simulation import process

from manifests.keys import Layout
from s3_saver.bucket import Operation, Put
from s3_saver.drivers.memory import MemoryBucket
from s3_saver.refs import Ref

LAYOUT = Layout.under("")
Writes = tuple[tuple[str, str, Any], ...]


@dataclass(frozen=True)
class Point:
    """A checkpoint to put. Every channel has a version; those without a value are empty, or delta channels."""

    id: str
    parent: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, Any] = field(default_factory=dict)
    new: Sequence[str] | None = None
    thread: str = "thread"
    ns: str = ""
    run: str | None = None
    v: int = 4

    @property
    def place(self) -> tuple[str, str, str]:
        return self.thread, self.ns, self.id

    @property
    def config(self) -> dict[str, Any]:
        return config_of(self.thread, self.ns, self.id)

    @property
    def metadata(self) -> dict[str, Any]:
        return {"source": "loop", "step": 1} | ({} if self.run is None else {"run_id": self.run})

    @property
    def checkpoint(self) -> dict[str, Any]:
        return {
            "v": self.v,
            "id": self.id,
            "ts": "2026-01-01T00:00:00+00:00",
            "channel_values": dict(self.values),
            "channel_versions": dict(self.versions) or dict.fromkeys(self.values, 1),
            "versions_seen": {},
            "updated_channels": None,
        }

    def put(self, saver: MemorySaver) -> Operation[Any]:
        """The operation that puts it."""
        checkpoint = self.checkpoint
        new = checkpoint["channel_versions"] if self.new is None else dict.fromkeys(self.new, 1)
        config = config_of(self.thread, self.ns, self.parent)
        return saver._put(config, checkpoint, self.metadata, new)  # type: ignore[arg-type]

    def store(self, saver: MemorySaver) -> None:
        saver.driver.run(self.put(saver))

    def child(self, id: str, **changes: Any) -> "Point":
        """A checkpoint that follows this one: its channels are unchanged but for what `changes` says."""
        return replace(self, id=id, parent=self.id, new=(), **changes)


def config_of(thread: str, ns: str | None = "", id: str | None = None) -> dict[str, Any]:
    names = {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": id}
    return {"configurable": {name: value for name, value in names.items() if value is not None}}


def put_writes(saver: MemorySaver, point: Point, task: str, writes: Sequence[tuple[str, Any]]) -> Operation[None]:
    """The operation that stores a task's writes, without waiting for others."""
    ref, rows = saver._rows(point.config, writes, task, "")  # type: ignore[arg-type]
    return saver._shared.store_batch(ref, rows)


def store_writes(saver: MemorySaver, point: Point, task: str, writes: Sequence[tuple[str, Any]]) -> None:
    saver.driver.run(put_writes(saver, point, task, writes))


def writes_of(task: str, writes: Sequence[tuple[str, Any]]) -> Writes:
    return tuple((task, channel, value) for channel, value in writes)


async def listed(saver: MemorySaver, config: Any, **query: Any) -> list[CheckpointTuple]:
    """A whole listing as one operation."""
    listing = saver._listing(config, query.get("filter"), query.get("before"))
    found: list[CheckpointTuple] = []
    while (page := await saver._page(listing, query.get("limit"))) is not None:
        found.extend(page)
    return found


@dataclass
class Archive:
    """What may be seen: points (several for an id where writers compete), and what was acknowledged."""

    points: list[Point] = field(default_factory=list)
    writes: dict[tuple[str, str, str], list[Writes]] = field(default_factory=dict)
    kept: list[Point] = field(default_factory=list)
    kept_writes: list[tuple[Point, Writes]] = field(default_factory=list)

    def check(self, bucket: MemoryBucket) -> dict[tuple[str, str, str], CheckpointTuple]:
        """Asserts it of a reader that remembers nothing. What it sees, by thread, namespace and id."""
        saver = process(bucket)
        seen: dict[tuple[str, str, str], CheckpointTuple] = {}
        for thread in sorted({point.thread for point in self.points}):
            seen |= self._thread(saver, thread)
        self._all_threads(saver, seen)
        for point in self.kept:
            assert point.place in seen, f"{point.place} was acknowledged"
        for point, writes in self.kept_writes:
            if point.place in seen:
                missing = set(map(repr, writes)) - set(map(repr, seen[point.place].pending_writes or ()))
                assert not missing, f"writes of {point.place} were acknowledged"
        return seen

    def sound(self, bucket: MemoryBucket) -> None:
        """Asserts that all that can be seen is whole, and nothing acknowledged is missing."""
        self.check(bucket)

    def _thread(self, saver: MemorySaver, thread: str) -> dict[tuple[str, str, str], CheckpointTuple]:
        bucket = saver.driver.bucket
        deleted = LAYOUT.deleted(thread) in bucket.objects
        found = {place_of(item): item for item in saver.list(config_of(thread, None))}
        places = [LAYOUT.parse(key) for key in bucket.objects if key.startswith(LAYOUT.thread(thread))]
        stored = {
            (thread, namespace_of(parsed.namespace), parsed.checkpoint_id)
            for parsed in places
            if parsed.kind == "checkpoint"
        }
        assert found.keys() == stored or (deleted and found.keys() < stored)
        for place in stored:
            one = saver.get_tuple(config_of(*place))
            assert one == found.get(place)
            if one is not None:
                self.check_one(one)
                self._history(saver, found, one, deleted)
        for ns in {place[1] for place in stored}:
            newest = saver.get_tuple(config_of(thread, ns))
            expected = max(place for place in stored if place[1] == ns)
            assert newest == found.get(expected)
            assert list(saver.list(config_of(thread, ns))) == [
                found[place] for place in sorted(found, reverse=True) if place[1] == ns
            ]
        return found

    def check_one(self, found: CheckpointTuple) -> None:
        """Asserts that a checkpoint is one of those that were put, and its writes are some of those."""
        place = place_of(found)
        assert any(same(found, point) for point in self.points if point.place == place), f"{place} is {found}"
        allowed = {repr(write) for writes in self.writes.get(place, ()) for write in writes}
        assert {repr(write) for write in found.pending_writes or ()} <= allowed

    def _all_threads(self, saver: MemorySaver, seen: Mapping[tuple[str, str, str], CheckpointTuple]) -> None:
        bucket = saver.driver.bucket
        nameless = {
            point.thread
            for point in self.points
            if (name := LAYOUT.name(point.thread)) is not None and name not in bucket.objects
        }
        for thread in nameless:
            # A thread's name is put first and deleted last.
            assert LAYOUT.deleted(thread) in bucket.objects or not any(place[0] == thread for place in seen)
        everything = {place_of(item): item for item in saver.list(None)}
        assert everything == {place: item for place, item in seen.items() if place[0] not in nameless}

    def _history(
        self,
        saver: MemorySaver,
        found: Mapping[tuple[str, str, str], CheckpointTuple],
        target: CheckpointTuple,
        deleted: bool,
    ) -> None:
        history = saver.get_delta_channel_history(config=target.config, channels=["log"])["log"]
        expected = history_of(found, target, "log")
        assert history == expected or (deleted and history == {"writes": []})


def history_of(
    found: Mapping[tuple[str, str, str], CheckpointTuple], target: CheckpointTuple, channel: str
) -> DeltaChannelHistory:
    """The history as LangGraph defines it, from the checkpoints that are visible."""
    writes: list[Any] = []
    history: DeltaChannelHistory = {"writes": writes}
    parent, past = target.parent_config, {place_of(target)}
    while parent is not None:
        place = tuple(parent["configurable"][name] for name in ("thread_id", "checkpoint_ns", "checkpoint_id"))
        ancestor = found.get(place)  # type: ignore[call-overload]
        if ancestor is None or place in past:
            break
        past.add(place)  # type: ignore[arg-type]
        writes[:0] = [write for write in ancestor.pending_writes or () if write[1] == channel]
        if channel in ancestor.checkpoint["channel_values"]:
            history["seed"] = ancestor.checkpoint["channel_values"][channel]
            break
        parent = ancestor.parent_config
    return history


def place_of(found: CheckpointTuple) -> tuple[str, str, str]:
    names = found.config["configurable"]
    return names["thread_id"], names["checkpoint_ns"], names["checkpoint_id"]


def same(found: CheckpointTuple, point: Point) -> bool:
    parent = found.parent_config and found.parent_config["configurable"]["checkpoint_id"]
    return found.checkpoint == point.checkpoint and parent == point.parent and found.metadata == point.metadata


def namespace_of(part: str) -> str:
    """Tests use short namespaces, which stand in keys as they are."""
    return "" if part == "~" else part


def keys_of(bucket: MemoryBucket, *kinds: str) -> list[str]:
    return sorted(key for key in bucket.objects if LAYOUT.kind(key) in kinds)


def content(bucket: MemoryBucket, threads: Iterable[str] = ("thread",)) -> Any:
    """All that means something: checkpoints with their writes, and the names of names, markers and tombstones.

    Value objects that nothing refers to, and probes, mean nothing.
    """
    saver = process(bucket)
    seen = [item for thread in threads for item in saver.list(config_of(thread, None))]
    return seen, keys_of(bucket, "name", "run", "marker", "deleted")


def ref_of(point: Point) -> Ref:
    return Ref(point.thread, point.ns, point.id)


def puts_of(saver: MemorySaver) -> list[str]:
    """The keys that were put, in their order."""
    return [request.key for round_ in saver.driver.rounds for request in round_ if isinstance(request, Put)]
