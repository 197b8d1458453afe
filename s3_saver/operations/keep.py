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

from collections.abc import Mapping
from dataclasses import dataclass

from manifests.segments import Row
from manifests.writes import channels_in
from s3_saver.bucket import Get, every

# LangGraph kept a superstep's sends as writes on the parent before this format.
_SENDS_IN_VALUES = 4


@dataclass(frozen=True, slots=True)
class Linked:
    """A checkpoint of one namespace: its row, and the keys of its writes batches."""

    row: Row
    writes: tuple[str, ...]


Namespace = Mapping[str, Linked]


def path_of(namespace: Namespace, checkpoint_id: str) -> list[Linked]:
    """The checkpoint, its parent, and so on, up to one that is not there or was met before."""
    path: dict[str, Linked] = {}
    next_id: str | None = checkpoint_id
    while next_id is not None and next_id in namespace and next_id not in path:
        path[next_id] = namespace[next_id]
        next_id = path[next_id].row.parent_id
    return list(path.values())


async def needed_by(namespace: Namespace, checkpoint_id: str) -> dict[str, str]:
    """The ids that must stay for the checkpoint to stay readable, itself included, each with the reason.

    No round, or one where writes must be read.
    """
    path = path_of(namespace, checkpoint_id)
    if not path:
        return {}
    head = path[0].row
    kept = {head.checkpoint_id: "head"}
    written = await _written(path)
    snapshots = {name for item in path for name in item.row.snapshots}
    counted = {name for item in path for name in item.row.counted}
    suspects = snapshots | counted | set().union(*written.values(), set()) & _advanced_on(path, written)
    for channel in sorted(suspects - set(head.channels)):
        if channel in head.unstored or channel in snapshots:
            for item in _back_to_value(path[1:], channel, written):
                kept.setdefault(item.row.checkpoint_id, f"delta channel {channel!r}")
    if head.v is not None and head.v < _SENDS_IN_VALUES and len(path) > 1:
        kept.setdefault(path[1].row.checkpoint_id, "sends of a format below 4")
    return kept
