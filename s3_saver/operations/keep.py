"""Which ancestors a checkpoint needs, so that its delta channels can be rebuilt (rule K).

A delta channel stores nothing in most checkpoints; its value is rebuilt from the writes of its ancestors, back to the
nearest stored value. A channel is suspected to be one where, anywhere on the path of parents,

    (a) metadata counts its updates,
    (b) a checkpoint holds a snapshot of it, or
    (c) an ancestor has a stored write for it, and the child on the path has another version of it and no value.

Needed are suspects that the head has a version but no value of, and all with evidence (b). For each of them, every
ancestor through the nearest one with a value is kept; where none has one, through the farthest with a write for it.
Evidence (c) serves threads of LangGraph before 1.2.9, which counted too little. Writes are read only where a child
advanced an unstored channel; an ordinary thread has none such.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from manifests.segments import Row
from manifests.writes import decode_writes
from s3_saver.bucket import Body, Get, every
from s3_saver.operations.listing import Head
from s3_saver.operations.load import SENDS_IN_VALUES
from s3_saver.operations.survey import Index

_SENDS = "__pregel_tasks"


@dataclass(frozen=True, slots=True)
class Linked:
    """A checkpoint of one namespace: what the manifest says of it, and what its listing shows."""

    row: Row
    head: Head

    @property
    def folder(self) -> str:
        return self.head.folder

    @property
    def key(self) -> str:
        return self.head.checkpoint.key

    @property
    def writes(self) -> tuple[str, ...]:
        return tuple(listed.key for listed in self.head.writes)

    @property
    def bytes(self) -> int:
        """What the object and its writes take, without the large values that it may share."""
        return self.head.checkpoint.size + sum(listed.size for listed in self.head.writes)


Namespace = Mapping[str, Linked]


def by_namespace(found: Index) -> dict[str, dict[str, Linked]]:
    """The surveyed checkpoints by namespace and id."""
    heads = {head.folder: head for head in found.survey.heads}
    members: dict[str, dict[str, Linked]] = {}
    for folder, row in found.rows():
        members.setdefault(row.namespace, {})[row.checkpoint_id] = Linked(row, heads[folder])
    return dict(sorted(members.items()))


def plain(items: Iterable[Linked]) -> bool:
    """Whether nothing speaks for a delta channel, as in most threads: then a checkpoint needs but itself."""
    return not any(item.row.snapshots or item.row.counted or item.row.advanced for item in items)


def path_of(namespace: Namespace, checkpoint_id: str) -> list[Linked]:
    """The checkpoint, its parent, and so on, up to one that is not there or was met before."""
    path: dict[str, Linked] = {}
    next_id: str | None = checkpoint_id
    while next_id is not None and next_id in namespace and next_id not in path:
        path[next_id] = namespace[next_id]
        next_id = path[next_id].row.parent_id
    return list(path.values())


@dataclass
class Writes:
    """Which channels checkpoints have stored writes for. Whoever asks for several heads reads each of them once."""

    known: dict[str, set[str]] = field(default_factory=dict)

    async def of(self, items: Sequence[Linked]) -> dict[str, set[str]]:
        """The channels by checkpoint id. One round, none where all is known."""
        unknown = [item for item in items if item.folder not in self.known]
        bodies = await every(every(Get(key) for key in item.writes) for item in unknown)
        for item, found in zip(unknown, bodies, strict=True):
            self.known[item.folder] = _channels(item, found)
        return {item.row.checkpoint_id: self.known[item.folder] for item in items}


async def needed_by(namespace: Namespace, checkpoint_id: str, writes: Writes) -> dict[str, str]:
    """The ids that must stay for the checkpoint to stay readable, itself included, each with the reason.

    No round for an ordinary thread. One where an unstored channel advanced, one where a delta channel was never stored.
    """
    path = path_of(namespace, checkpoint_id)
    if not path:
        return {}
    head, ancestors = path[0].row, path[1:]
    kept = {head.checkpoint_id: "newest"}
    snapshots = {name for item in path for name in item.row.snapshots}
    suspects = snapshots | {name for item in path for name in item.row.counted}
    suspects |= await _consumed(path, suspects, writes)
    wanted = sorted(name for name in suspects - set(head.channels) if name in head.unstored or name in snapshots)
    seeded = [name for name in wanted if any(name in item.row.channels for item in ancestors)]
    unseeded = [name for name in wanted if name not in seeded]
    written = await writes.of(ancestors if unseeded else [])
    for name in wanted:
        for item in ancestors[: _through(name, ancestors, written)]:
            kept.setdefault(item.row.checkpoint_id, f"delta channel {name!r}")
    if head.v is not None and head.v < SENDS_IN_VALUES and ancestors:
        parent = ancestors[0].row.checkpoint_id
        if _SENDS in (await writes.of(ancestors[:1]))[parent]:
            kept.setdefault(parent, f"sends of format {head.v}")
    return kept


def _through(name: str, ancestors: Sequence[Linked], written: Mapping[str, set[str]]) -> int:
    """How many of the ancestors a delta channel needs: through its nearest value, else through its farthest write."""
    nearest = next((number for number, item in enumerate(ancestors, 1) if name in item.row.channels), None)
    if nearest is not None:
        return nearest
    return max(
        (number for number, item in enumerate(ancestors, 1) if name in written.get(item.row.checkpoint_id, ())),
        default=0,
    )


async def _consumed(path: Sequence[Linked], suspects: set[str], writes: Writes) -> set[str]:
    """Channels with evidence (c) that are no suspects yet."""
    edges = [
        (parent, names)
        for child, parent in pairwise(path)
        if (names := set(child.row.advanced) - suspects) and parent.writes
    ]
    written = await writes.of([parent for parent, _ in edges])
    return {name for parent, names in edges for name in names & written[parent.row.checkpoint_id]}


def _channels(item: Linked, batches: Sequence[Body | None]) -> set[str]:
    names = {"namespace": item.row.namespace, "checkpoint_id": item.row.checkpoint_id}
    return {
        row.channel
        for key, body in zip(item.writes, batches, strict=True)
        # A batch that vanished went with its checkpoint, in another prune.
        if body is not None
        for row in decode_writes(body.data, key=key, **names)
    }
