"""A readable form of serialized values, made from their structure alone: no class of the application is imported.

LangGraph's serializer writes msgpack with extension codes for objects: a module, a class and its arguments. Here an
object becomes `{"__type__": "module.Class", …}`, which people and SQL engines can read. It is a projection for
reading, never a source to restore from.
"""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import ormsgpack

# A projection is for looking at; beyond this many bytes of value nobody looks.
PROJECTED_BYTES_MAX = 16_384

# Extension codes of LangGraph's msgpack serializer and how their tuples are built.
_SINGLE_ARGUMENT, _POSITIONAL, _KEYWORDS, _METHOD, _PYDANTIC_1, _PYDANTIC_2, _ARRAY, _SNAPSHOT = range(8)


def to_json(type_: str, data: bytes) -> str | None:
    """The value as JSON text; None where it is large, encrypted, or of a type whose structure is not open."""
    if len(data) > PROJECTED_BYTES_MAX:
        return None
    try:
        if type_ == "null":
            return "null"
        if type_ == "msgpack":
            return _dump(_unpack(data))
        if type_ == "json":
            return _dump(json.loads(data))
    except (ValueError, TypeError, RecursionError):
        # A serializer of the user's own may write other bytes under these names; the value itself is kept anyway.
        return None
    return None


def _dump(value: Any) -> str:
    text = json.dumps(_plain(value), ensure_ascii=False)
    # JSON may name lone surrogates, which no UTF-8 column can hold.
    return text.encode(errors="backslashreplace").decode()


def _unpack(data: bytes) -> Any:
    return ormsgpack.unpackb(data, ext_hook=_object, option=ormsgpack.OPT_NON_STR_KEYS)


def _object(code: int, data: bytes) -> Any:
    if code not in range(8):
        return {"__type__": "msgpack.Ext", "code": code, "base64": base64.b64encode(data).decode()}
    inner = _unpack(data)
    if code == _SNAPSHOT:
        return {"__type__": "DeltaSnapshot", "value": inner}
    if code == _ARRAY:
        kind, shape, _, _ = inner
        return {"__type__": "numpy.ndarray", "dtype": kind, "shape": shape}
    module, name, arguments = inner[:3]
    described: dict[str, Any] = {"__type__": f"{module}.{name}"}
    if code in (_KEYWORDS, _PYDANTIC_1, _PYDANTIC_2) and isinstance(arguments, dict):
        return described | {str(key): value for key, value in arguments.items()}
    return described | {"args": arguments if code == _POSITIONAL else [arguments]}


def _plain(value: Any) -> Any:
    """`value` with what JSON lacks replaced: bytes by base64, keys by text, numbers that are none by their names."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return {"__type__": "bytes", "base64": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
