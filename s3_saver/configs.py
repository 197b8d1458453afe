"""LangGraph's configs, read and checked. A config also carries live objects; it is never stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointMetadata

from manifests.checkpoints import Typed
from manifests.keys import ID_BYTES_MAX, encode
from s3_saver.operations.list_page import Accept, Query
from s3_saver.operations.prune import Rule
from s3_saver.refs import Ref


def ref_of(config: RunnableConfig) -> Ref:
    """The checkpoint that `config` names. `None`, an empty and a missing id all mean the newest.

    Raises KeyError without a thread id (as LangGraph's own savers do), ValueError for an id that cannot be one.
    """
    configurable = _configurable(config)
    if "thread_id" not in configurable:
        raise KeyError(
            'thread_id: a config needs one, as in {"configurable": {"thread_id": "my-thread"}}; it may also have '
            "checkpoint_ns and checkpoint_id"
        )
    return Ref(
        thread_id_of(configurable["thread_id"]),
        namespace_of(configurable.get("checkpoint_ns", "")),
        _optional_id(configurable.get("checkpoint_id")),
    )


def config_of(ref: Ref) -> RunnableConfig:
    """A new config that names `ref`, with exactly three keys."""
    return {
        "configurable": {
            "thread_id": ref.thread_id,
            "checkpoint_ns": ref.namespace,
            "checkpoint_id": ref.checkpoint_id,
        }
    }


def query_of(config: RunnableConfig | None, *, filter: dict[str, Any] | None, before: RunnableConfig | None) -> Query:
    """What a call of `list` asks for, but its condition on metadata and its limit.

    A falsy config means all threads, a config without `checkpoint_ns` all namespaces; `before` without an id is
    ignored (contract of LangGraph's InMemorySaver).
    """
    if filter is not None and not isinstance(filter, dict):
        raise TypeError(f"filter must be a dict of metadata keys and values; got {filter!r}")
    bound = _optional_id(_configurable(before).get("checkpoint_id")) if before else None
    if not config:
        return Query(before=bound)
    ref = ref_of(config)
    namespaced = config["configurable"].get("checkpoint_ns") is not None
    return Query(ref.thread_id, ref.namespace if namespaced else None, ref.checkpoint_id, bound)


def limit_of(limit: object) -> int | None:
    """A limit of `list`: a whole number, or None for all."""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
        raise TypeError(f"limit must be a whole number or None; got {limit!r}")
    return limit


def accept_by(
    filter: dict[str, Any] | None, metadata_of: Callable[[str, Typed, bool], CheckpointMetadata]
) -> Accept | None:
    """The condition that a metadata filter means: every key's value equals, and a missing key is None."""
    if not filter:
        return None
    wanted = dict(filter)

    def accept(thread_id: str, typed: Typed, has_thread_id: bool) -> bool:
        metadata = metadata_of(thread_id, typed, has_thread_id)
        return all(metadata.get(key) == value for key, value in wanted.items())

    return accept


def thread_id_of(value: object) -> str:
    """A thread id as text. Integers count as their decimal digits."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"thread_id must be a string or an integer; got {value!r} ({type(value).__name__})")
    return text_of("thread_id", str(value))


def namespace_of(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"checkpoint_ns must be a string; got {value!r} ({type(value).__name__})")
    return text_of("checkpoint_ns", value)


def checkpoint_id_of(value: object) -> str:
    """A checkpoint id, which must fit into a key."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"a checkpoint's id must be a string that is not empty; got {value!r}")
    size = len(encode(text_of("checkpoint_id", value)))
    if size > ID_BYTES_MAX:
        raise ValueError(
            f"checkpoint_id may have {ID_BYTES_MAX} bytes when percent-encoded, this one has {size}: {value!r}"
        )
    return value


def text_of(name: str, value: object) -> str:
    """A string that has a UTF-8 form."""
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a string; got {value!r} ({type(value).__name__})")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} must not hold lone surrogates; got {value!r}") from None
    return value


def texts_of(name: str, values: object) -> list[Any]:
    """Several ids, as a list. One string is refused: its letters would be taken for ids."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a sequence of ids, as in [{values!r}]; got {type(values).__name__}")
    return list(values)


_STRATEGIES = ("keep_latest", "keep_last", "delete", "delete_all")


def rule_of(strategy: object, keep: object, older_than: object) -> Rule | None:
    """What a prune keeps; None where it keeps nothing. Raises for what is no strategy, before anything is touched."""
    if strategy not in _STRATEGIES:
        raise ValueError(f"strategy must be one of {list(_STRATEGIES)}; got {strategy!r}")
    if strategy != "keep_last" and (keep is not None or older_than is not None):
        raise ValueError(f"keep and older_than go with strategy='keep_last'; got {strategy!r}")
    if keep is not None and (isinstance(keep, bool) or not isinstance(keep, int) or keep < 1):
        raise ValueError(f"keep must be a whole number of checkpoints, at least 1; got {keep!r}")
    if older_than is not None and (not isinstance(older_than, timedelta) or older_than <= timedelta(0)):
        raise ValueError(f"older_than must be a positive timedelta; got {older_than!r}")
    if strategy in ("delete", "delete_all"):
        return None
    age_ms = None if older_than is None else round(older_than.total_seconds() * 1000)
    return Rule(1 if keep is None else keep, age_ms)


def _optional_id(value: object) -> str | None:
    return checkpoint_id_of(value) if value else None


def _configurable(config: object) -> dict[str, Any]:
    found = config.get("configurable", {}) if isinstance(config, dict) else None
    if not isinstance(found, dict):
        raise TypeError(f'a config must be a dict like {{"configurable": {{"thread_id": "…"}}}}; got {config!r:.200}')
    return found
