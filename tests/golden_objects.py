"""What the golden objects of format 1 say. Their bytes lie in `golden/format1` and never change.

`scripts/make_golden` wrote them once. Today's reader must give what stands here, and so must that of any later release.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ormsgpack

from manifests import Checkpoint, Entry, Header, Layout, Typed, WriteRow, encode_checkpoint, encode_value, encode_writes
from manifests.keys import batch_name, copying_in, removal_in, removing_in, run_part, segment_in, writes_in
from manifests.removals import Removal, encode_removals
from manifests.segments import Row, encode_segment

FOLDER = Path(__file__).parent / "golden" / "format1"


def packed(value: Any) -> Typed:
    return Typed("msgpack", ormsgpack.packb(value))


def message(module: str, name: str, content: str) -> ormsgpack.Ext:
    """A chat message as LangGraph's serializer packs it."""
    fields = {"content": content, "type": module, "id": "m-1", "additional_kwargs": {}}
    inner = (f"langchain_core.messages.{module}", name, fields, "model_validate_json")
    return ormsgpack.Ext(5, ormsgpack.packb(inner))


def entry(typed: Typed, *, offset: int | None = None, size: int | None = None, values: tuple[str, ...] = ()) -> Entry:
    held = size if size is not None else 0 if values else len(typed.data)
    return Entry(typed.type, len(typed.data), hashlib.sha256(typed.data).digest(), offset, held, values)


# Checkpoints

SMALLEST = Checkpoint(
    Header(
        namespace="",
        checkpoint_id="1f0a",
        parent_id=None,
        parent_sha256=None,
        depth=0,
        structure={"v": 4, "ts": "2025-06-01T12:00:00+00:00", "channel_versions": {"greeting": 1}},
        extra={},
        metadata=packed({"source": "input", "step": -1}),
        metadata_thread_id=False,
        channels={"greeting": entry(packed("hello"), offset=0)},
    ),
    packed("hello").data,
)

_MESSAGES = packed([message("human", "HumanMessage", "What is 7 × 6?"), message("ai", "AIMessage", "42 🎉")])
_DOCUMENT = packed("A long document. " * 6000)
_SNAPSHOT = packed(ormsgpack.Ext(7, ormsgpack.packb(["delta"])))
_VALUE = "0f8fad5bd9cb469fa16570867728950e"
# The document grew twice: in a value object of its own, then in a checkpoint. That patch is written out here, since
# another release of zstd may make another one.
_GROWN = packed("A long document. " * 6000 + "It grew. ")
_GROWN_VALUE = "7d793037a0764186b4f1a6d8d8b6c3f1"
_LAST = packed("A long document. " * 6000 + "It grew. And again. 🎉")
_LAST_PATCH = bytes.fromhex(
    "28b52ffda48d8e01001d0100a0db00018e88416e6420616761696e2e20f09f8e890300818eba002e479a3910b3d202e8679f10"
)

FULL = Checkpoint(
    Header(
        namespace="parent|child:1f0a-é",
        checkpoint_id="1f0b",
        parent_id="1f0a",
        parent_sha256=hashlib.sha256(b"the parent's object").digest(),
        depth=7,
        structure={
            "v": 4,
            "ts": "2025-06-01T12:00:01+00:00",
            "channel_versions": {
                "messages": "00000000000000000000000000000008.0.25",
                "document": 3,
                "grown": 4,
                "last": 5,
                "nothing": 2.5,
                "none": "1",
                "secret": "1",
                "list": "2",
                "delta": "9",
            },
            "versions_seen": {"__input__": {}, "node": {"messages": "00000000000000000000000000000007.0.5"}},
            "updated_channels": ["delta", "messages"],
        },
        extra={"field_of_a_later_release": packed({"a": [1, None, True]})},
        metadata=packed({"source": "loop", "step": 6, "parents": {"": "1f0a"}, "run_id": "run/1"}),
        metadata_thread_id=True,
        channels={
            "messages": entry(_MESSAGES, offset=0),
            "none": entry(Typed("null", b""), offset=len(_MESSAGES.data)),
            "secret": entry(Typed("msgpack+aes", b"\x00\xff" * 20), offset=len(_MESSAGES.data)),
            "document": entry(_DOCUMENT, values=(_VALUE,)),
            "grown": entry(_GROWN, values=(_GROWN_VALUE, _VALUE)),
            "list": entry(_SNAPSHOT, offset=len(_MESSAGES.data) + 40),
            "last": entry(
                _LAST,
                offset=len(_MESSAGES.data) + 40 + len(_SNAPSHOT.data),
                size=len(_LAST_PATCH),
                values=(_GROWN_VALUE, _VALUE),
            ),
        },
        snapshots=("list",),
        counted=("delta", "list"),
        unstored=("delta", "nothing"),
        advanced=("delta",),
    ),
    _MESSAGES.data + b"\x00\xff" * 20 + _SNAPSHOT.data + _LAST_PATCH,
)

CHECKPOINTS = {"smallest.checkpoint.msgpack": SMALLEST, "full.checkpoint.msgpack": FULL}
# Value objects: name to the value and, where it is a patch, the base
VALUES: dict[str, tuple[bytes, tuple[str, bytes] | None]] = {
    "document.value.bin": (_DOCUMENT.data, None),
    "grown.value.bin": (_GROWN.data, (_VALUE, _DOCUMENT.data)),
    "empty.value.bin": (b"", None),
}
VALUE_FILES = {_VALUE: "document.value.bin", _GROWN_VALUE: "grown.value.bin"}

# Writes: name to namespace, checkpoint id and rows

WRITES = {
    "one.writes.parquet": ("", "1f0a", [WriteRow("task-1", "", 0, "greeting", "msgpack", packed("hello").data)]),
    "many.writes.parquet": (
        "parent|child:1f0a-é",
        "1f0b",
        [
            WriteRow("task-2", "~__pregel_pull, node", 0, "messages", *_MESSAGES),
            WriteRow("task-2", "~__pregel_pull, node", 1, "none", "null", b""),
            WriteRow("task-2", "~__pregel_pull, node", 10, "branch:to:other", *packed(None)),
            WriteRow("task-1", "", -3, "__interrupt__", *packed([{"value": "go on?", "id": "i-1"}])),
            WriteRow("task-1", "", -1, "__error__", *packed("ValueError('🎉')")),
            WriteRow("task-3", "", 0, "secret", "msgpack+aes", b"\x00\xff" * 20),
            WriteRow("task-3", "", 1, "large", *packed("x" * 20_000)),
        ],
    ),
}

# Manifest segments and removal records

SEGMENTS = {
    "mixed.manifest.parquet": [
        Row(
            namespace="parent|child:1f0a-é",
            checkpoint_id="1f0b",
            parent_id="1f0a",
            depth=7,
            ts="2025-06-01T12:00:01+00:00",
            v=4,
            step=6,
            source="loop",
            run_id="run/1 🎉",
            metadata_type="msgpack",
            metadata=packed({"source": "loop", "step": 6, "run_id": "run/1 🎉"}).data,
            metadata_thread_id=True,
            metadata_json='{"source": "loop", "step": 6, "run_id": "run/1 🎉"}',
            size=1234,
            etag='"5d41402abc4b2a76b9719d911017c592"',
            sha256=hashlib.sha256(b"the object").digest(),
            channels=("document", "list", "messages"),
            values=(_VALUE, "7d793037a0764186b4f1a6d8d8b6c3f1"),
            snapshots=("list",),
            counted=("delta", "list"),
            unstored=("delta", "nothing"),
            advanced=("delta",),
        ),
        Row(
            namespace="",
            checkpoint_id="1f0a",
            metadata_type="msgpack+aes",
            metadata=b"\x00\xff" * 20,
            size=352,
            etag='"7d793037a0760186574b0282f2f435e7-2"',
        ),
    ]
}

REMOVALS = {
    "mixed.removals.parquet": [
        Removal("parent|child:1f0a-é", "1f0b", hashlib.sha256(b"the object").digest(), (_VALUE, "v-2"), "run run/1 🎉"),
        Removal("", "1f0a", None, (), "not the newest"),
    ]
}

# Keys

_LAYOUT = Layout.under("team/archive")
_FOLDER = _LAYOUT.folder("café/7", "parent|child:1f0a-é", "1f0b")
KEYS: dict[str, Callable[[], str | None]] = {
    "checkpoint": lambda: _LAYOUT.checkpoint("café/7", "parent|child:1f0a-é", "1f0b"),
    "root": lambda: Layout.under("").checkpoint("7", "", "1f0a2b3c-4d5e-6f70-8192-a3b4c5d6e7f8"),
    "writes": lambda: writes_in(_FOLDER, batch_name(1_748_779_200_000_000, "00c0ffee")),
    "value": lambda: _LAYOUT.value("café/7", _VALUE),
    "segment": lambda: segment_in(_LAYOUT.thread("café/7"), f"{_VALUE}-1"),
    "removal": lambda: removal_in(_LAYOUT.thread("café/7"), _VALUE),
    "copying": lambda: copying_in(_LAYOUT.thread("café/7")),
    "removing": lambda: removing_in(_LAYOUT.thread("café/7"), _VALUE),
    "run": lambda: _LAYOUT.run("café/7", run_part("run/1", hidden=False)),
    "marker": lambda: _LAYOUT.marker("café/7", run_part("run/1", hidden=False)),
    "hidden marker": lambda: _LAYOUT.marker("café/7", run_part("run/1", hidden=True)),
    "deleted": lambda: _LAYOUT.deleted("café/7"),
    "no name": lambda: _LAYOUT.name("café/7"),
    "hashed thread": lambda: _LAYOUT.name("t" * 201),
    "hashed namespace": lambda: _LAYOUT.namespace("..", "n" * 241),
    "empty thread": lambda: _LAYOUT.thread(""),
    "dots": lambda: _LAYOUT.marker(".", run_part("..", hidden=False)),
    "tilde": lambda: _LAYOUT.thread("~%41"),
}


def made() -> dict[str, bytes]:
    """The objects as today's writer makes them, by the names of their files."""
    objects = {
        name: encode_checkpoint(checkpoint.header, checkpoint.payload) for name, checkpoint in CHECKPOINTS.items()
    }
    objects |= {name: encode_value(data, base) for name, (data, base) in VALUES.items()}
    for name, (namespace, checkpoint_id, rows) in WRITES.items():
        objects[name] = encode_writes(rows, namespace=namespace, checkpoint_id=checkpoint_id)
    objects |= {name: encode_segment(rows) for name, rows in SEGMENTS.items()}
    objects |= {name: encode_removals(rows) for name, rows in REMOVALS.items()}
    return objects
