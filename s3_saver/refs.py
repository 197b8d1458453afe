"""What names a checkpoint, everywhere below LangGraph's configs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ref:
    """A checkpoint of a thread and namespace; `checkpoint_id=None` means the newest."""

    thread_id: str
    namespace: str
    checkpoint_id: str | None = None
