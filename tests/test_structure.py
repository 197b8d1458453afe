"""Projections: readable JSON of any serialized value, made without a class of the application, and never an error."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import ipaddress
import json
import math
import pathlib
import re
import subprocess
import sys
import types
import uuid
import zoneinfo
from typing import Any, NamedTuple

import numpy
import ormsgpack
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.store.base import Item
from langgraph.types import Interrupt, Send
from pydantic import v1 as pydantic_v1

from manifests import WriteRow, decode_writes, encode_writes, to_json
from manifests.structure import PROJECTED_BYTES_MAX

relaxed = settings(deadline=None, max_examples=300)
SERDE = JsonPlusSerializer()


def strict(text: str) -> Any:
    """The JSON's value. NaN and Infinity are no JSON, though Python reads them."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    text.encode()
    return json.loads(text, parse_constant=refuse)


def shown(value: object) -> Any:
    text = to_json(*SERDE.dumps_typed(value))
    assert text is not None
    return strict(text)


class Color(enum.Enum):
    RED = "red"


class Text(enum.StrEnum):
    ONE = "one"


class Point(NamedTuple):
    x: int
    y: int


@dataclasses.dataclass
class Order:
    number: int
    lines: list[Point]


class New(pydantic.BaseModel):
    name: str
    when: datetime.date


class Old(pydantic_v1.BaseModel):
    name: str


HERE = __name__
UTC = datetime.UTC
DAY = datetime.date(2025, 6, 1)
ADDRESSES = (
    ("IPv4Address", "1.2.3.4"),
    ("IPv4Network", "1.2.3.0/24"),
    ("IPv6Address", "::1"),
    ("IPv6Interface", "::1/64"),
)

VALUES: dict[str, tuple[object, Any]] = {
    "none": (None, None),
    "plain": ({"a": [1, 2.5, True, None, "é🎉"]}, {"a": [1, 2.5, True, None, "é🎉"]}),
    "tuple": ((1, (2,)), [1, [2]]),
    "bytes": ({"b": b"\x00\xff"}, {"b": {"__type__": "bytes", "base64": "AP8="}}),
    "large integer": (2**64 - 1, 2**64 - 1),
    "no numbers": ([math.nan, math.inf, -math.inf], ["nan", "inf", "-inf"]),
    "other keys": ({7: "a", None: "b", True: "c", (1, 2): "d"}, {"7": "a", "None": "b", "True": "c", "(1, 2)": "d"}),
    "uuid": (uuid.UUID(int=7), {"__type__": "uuid.UUID", "args": ["0" * 31 + "7"]}),
    "decimal": (decimal.Decimal("1.10"), {"__type__": "decimal.Decimal", "args": ["1.10"]}),
    "set": ({1}, {"__type__": "builtins.set", "args": [[1]]}),
    "frozenset": (frozenset({"a"}), {"__type__": "builtins.frozenset", "args": [["a"]]}),
    "deque": (collections.deque([1, 2]), {"__type__": "collections.deque", "args": [[1, 2]]}),
    "enum": (Color.RED, {"__type__": f"{HERE}.Color", "args": ["red"]}),
    "text enum": ([Text.ONE], [{"__type__": f"{HERE}.Text", "args": ["one"]}]),
    "zone": (zoneinfo.ZoneInfo("Europe/Berlin"), {"__type__": "zoneinfo.ZoneInfo", "args": ["Europe/Berlin"]}),
    "pattern": (re.compile("a+"), {"__type__": "re.compile", "args": ["a+", 32]}),
    "timedelta": (datetime.timedelta(1, 2, 3), {"__type__": "datetime.timedelta", "args": [1, 2, 3]}),
    "date": (DAY, {"__type__": "datetime.date", "args": [2025, 6, 1]}),
    "datetime": (
        datetime.datetime(2025, 6, 1, tzinfo=UTC),
        {"__type__": "datetime.datetime", "args": ["2025-06-01T00:00:00+00:00"]},
    ),
    "timezone": (
        UTC,
        {"__type__": "datetime.timezone", "args": [{"__type__": "datetime.timedelta", "args": [0, 0, 0]}]},
    ),
    "named tuple": (Point(1, 2), {"__type__": f"{HERE}.Point", "x": 1, "y": 2}),
    "dataclass": (
        Order(7, [Point(1, 2)]),
        {"__type__": f"{HERE}.Order", "number": 7, "lines": [{"__type__": f"{HERE}.Point", "x": 1, "y": 2}]},
    ),
    "pydantic 2": (
        New(name="a", when=DAY),
        {"__type__": f"{HERE}.New", "name": "a", "when": {"__type__": "datetime.date", "args": [2025, 6, 1]}},
    ),
    "pydantic 1": (Old(name="a"), {"__type__": f"{HERE}.Old", "name": "a"}),
    "secret": (
        pydantic.SecretStr("s"),
        {"__type__": "pydantic.types.SecretStr", "args": ["s"]},
    ),
    "send": (Send("node", {"a": 1}), {"__type__": "langgraph.types.Send", "args": ["node", {"a": 1}]}),
    "snapshot": (_DeltaSnapshot([1]), {"__type__": "DeltaSnapshot", "value": [1]}),
    "error": ([ValueError("no")], ["ValueError('no')"]),
    **{
        name: (getattr(ipaddress, name)(text), {"__type__": f"ipaddress.{name}", "args": [text]})
        for name, text in ADDRESSES
    },
}


@pytest.mark.parametrize("name", VALUES)
def test_every_kind_of_value_is_shown(name: str) -> None:
    """Whatever LangGraph's serializer stores, people and SQL engines can read."""
    value, expected = VALUES[name]
    assert shown(value) == expected


def test_paths_and_times_are_shown() -> None:
    """Their parts are there; the name of a path's class differs between releases of Python."""
    found = shown(pathlib.Path("a/b"))
    assert found["__type__"].startswith("pathlib")
    assert found["args"] == ["a", "b"]
    found = shown(datetime.time(1, 2, 3))
    assert (found["__type__"], found["hour"], found["second"]) == ("datetime.time", 1, 3)


def test_messages_are_shown() -> None:
    """Content, id, type and tool calls of chat messages are plain fields."""
    calls = [{"name": "multiply", "args": {"a": 7, "b": 6}, "id": "c-1", "type": "tool_call"}]
    human, ai, tool = shown(
        [HumanMessage("7 × 6?", id="m-1"), AIMessage("", tool_calls=calls), ToolMessage("42", tool_call_id="c-1")]
    )
    assert human["__type__"] == "langchain_core.messages.human.HumanMessage"
    assert (human["type"], human["content"], human["id"]) == ("human", "7 × 6?", "m-1")
    assert ai["tool_calls"] == calls
    assert (tool["type"], tool["tool_call_id"]) == ("tool", "c-1")


def test_other_objects_of_langgraph_are_shown() -> None:
    """Documents, interrupts and items of a store are fields too."""
    now = datetime.datetime(2025, 6, 1, tzinfo=UTC)
    assert shown(Document("text", metadata={"page": 1}))["metadata"] == {"page": 1}
    assert shown([Interrupt(value="go on?", id="i-1")])[0]["value"] == "go on?"
    assert shown(Item(value={"a": 1}, key="k", namespace=("n",), created_at=now, updated_at=now))["namespace"] == ["n"]


def test_arrays_are_described() -> None:
    """Of an array its type and shape are shown, not its bytes; no numpy is needed."""
    data = ormsgpack.packb(ormsgpack.Ext(6, ormsgpack.packb(("<f8", (2, 3), "C", bytes(48)))))
    assert strict(to_json("msgpack", data) or "") == {"__type__": "numpy.ndarray", "dtype": "<f8", "shape": [2, 3]}


def test_numpy_arrays_are_described() -> None:
    """The same where numpy made the array."""
    assert shown([numpy.zeros((2, 3), order="F")])[0]["shape"] == [2, 3]


def test_unknown_extensions_are_shown_as_bytes() -> None:
    """A code of a later LangGraph hides only its own value."""
    data = ormsgpack.packb([1, ormsgpack.Ext(99, b"ab")])[1:]
    data = b"\x93" + data + b"\xd6\xff\0\0\0\0"  # the last is msgpack's own timestamp
    one, other, time = strict(to_json("msgpack", data) or "")
    assert one == 1
    assert other == {"__type__": "msgpack.Ext", "code": 99, "base64": "YWI="}
    assert time["code"] == -1


def test_no_class_of_the_application_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value is shown, and its batch read, where the class's module no longer exists."""
    module = types.ModuleType("gone_application")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    Gone = dataclasses.make_dataclass("Gone", [("number", int)], namespace={"__module__": module.__name__})
    module.Gone = Gone  # type: ignore[attr-defined]
    Gone.__module__ = module.__name__
    typed = SERDE.dumps_typed(Gone(7))
    monkeypatch.delitem(sys.modules, module.__name__)
    assert strict(to_json(*typed) or "") == {"__type__": "gone_application.Gone", "number": 7}
    rows = [WriteRow("t", "", 0, "c", *typed)]
    assert (
        decode_writes(encode_writes(rows, namespace="", checkpoint_id="1"), key="k", namespace="", checkpoint_id="1")
        == rows
    )
    assert module.__name__ not in sys.modules


def test_the_format_needs_neither_langgraph_nor_an_s3_client() -> None:
    """A fresh interpreter where none of these can be imported shows a message."""
    data = SERDE.dumps_typed(HumanMessage("hi"))[1].hex()
    program = (
        "import sys\n"
        "for name in ('langgraph', 'langchain_core', 'pydantic', 'boto3', 'botocore', 'aiobotocore', 'aioboto3'):\n"
        "    sys.modules[name] = None\n"
        "import manifests\n"
        f"print(manifests.to_json('msgpack', bytes.fromhex('{data}')))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert strict(done.stdout)["content"] == "hi"


# Null


class Reversing:
    """A cipher that hides nothing, but has a name."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "reversing", plaintext[::-1]

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return ciphertext[::-1]


def test_encrypted_values_are_null() -> None:
    """Nothing of a value that the serializer encrypts is stored in plain, not even of None."""
    serde = EncryptedSerializer(Reversing())
    for value in (None, b"bytes", "text", {"a": 1}, HumanMessage("hi")):
        assert to_json(*serde.dumps_typed(value)) is None


def test_large_and_opaque_values_are_null() -> None:
    """Up to the limit a value is shown; bytes, pickles and other types are not."""
    header = 3
    assert shown("x" * (PROJECTED_BYTES_MAX - header))
    assert to_json(*SERDE.dumps_typed("x" * (PROJECTED_BYTES_MAX - header + 1))) is None
    for kind in ("bytes", "bytearray", "pickle", "", "msgpack+aes", "MSGPACK"):
        assert to_json(kind, b"\xc0") is None


def test_json_of_older_releases_is_shown() -> None:
    """What LangGraph once stored as JSON is shown as strict JSON."""
    assert to_json("json", b' {"a": [1, "\\u00e9"]} ') == '{"a": [1, "é"]}'
    assert strict(to_json("json", b"[NaN, Infinity]") or "") == ["nan", "inf"]
    surrogate = to_json("json", b'{"\\ud800": "\\udfff"}')
    assert surrogate == '{"\\ud800": "\\udfff"}'
    rows = [WriteRow("t", "", 0, "c", "json", b'"\\ud800"')]
    assert encode_writes(rows, namespace="", checkpoint_id="1")


# Never an error


def check(kind: str, data: bytes) -> None:
    text = to_json(kind, data)
    if text is not None:
        strict(text)


def nested(depth: int, wrap: Any) -> bytes:
    data = b"\xc0"
    for _ in range(depth):
        data = wrap(data)
    return data


def _in_list(data: bytes) -> bytes:
    return b"\x91" + data


def _in_object(data: bytes) -> bytes:
    inner = b"\x93\xa1m\xa1n" + data
    return b"\xc8" + len(inner).to_bytes(2, "big") + b"\x00" + inner


@pytest.mark.parametrize("depth", [3, 100, 400, 900, 1100, 1800, 16_000])
def test_deep_values_are_shown_or_null(depth: int) -> None:
    """Nesting ends in JSON or null, never in an error or a crash."""
    check("msgpack", nested(depth, _in_list))
    check("msgpack", nested(min(depth, 1800), _in_object))
    check("json", b"[" * (depth // 2) + b"]" * (depth // 2))
    check("json", b'{"a":' * (depth // 6) + b"1" + b"}" * (depth // 6))


def test_moderately_deep_values_are_shown() -> None:
    """A hundred levels are no reason to show nothing."""
    assert to_json("msgpack", nested(100, _in_list)) == "[" * 100 + "null" + "]" * 100
    assert to_json("msgpack", nested(100, _in_object)) is not None


kinds = st.sampled_from(["msgpack", "json", "null", "bytes", "msgpack+aes"]) | st.text(max_size=5)


@relaxed
@given(kinds, st.binary(max_size=100))
def test_garbage_is_null_or_json(kind: str, data: bytes) -> None:
    """Bytes that mean nothing are no error: the value itself is kept anyway."""
    check(kind, data)


leaves = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary()
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text() | st.integers(0, 9) | st.none(), inner, max_size=4)
        | st.builds(lambda code, value: ormsgpack.Ext(code, _pack(value)), st.integers(0, 127), inner)
        | st.builds(
            lambda code, value: ormsgpack.Ext(code, _pack(["module", "Name", value, "method"])),
            st.integers(0, 8),
            inner,
        )
    ),
    max_leaves=12,
)


def _pack(value: object) -> bytes:
    return ormsgpack.packb(value, option=ormsgpack.OPT_NON_STR_KEYS)


@relaxed
@given(values)
def test_any_msgpack_is_null_or_json(value: object) -> None:
    """Sound msgpack with any extension codes, whatever is inside them, is shown as JSON or not at all."""
    check("msgpack", _pack(value))


@relaxed
@given(st.sampled_from(sorted(VALUES)), st.integers(0), st.integers(1, 255), st.booleans())
def test_damaged_values_are_null_or_json(name: str, place: int, change: int, cut: bool) -> None:
    """A flipped byte, or a missing end, makes no error."""
    kind, data = SERDE.dumps_typed([VALUES[name][0]])
    place %= len(data)
    check(kind, data[:place] if cut else data[:place] + bytes([data[place] ^ change]) + data[place + 1 :])
