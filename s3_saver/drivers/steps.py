"""How an operation is run: answer its rounds until it returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from s3_saver.bucket import Operation, Round

A = TypeVar("A")


def drive(operation: Operation[A], answer: Callable[[Round], list[Any]], first: Round | None = None) -> A:
    """Run `operation` to its end, from its beginning or from its `first` round on. Errors of `answer` rise in it."""
    try:
        round_ = operation.send(None) if first is None else first  # type: ignore[arg-type]
        while True:
            try:
                answers = answer(round_)
            except Exception as error:
                round_ = operation.throw(error)
            else:
                round_ = operation.send(answers)
    except StopIteration as stop:
        result: A = stop.value
        return result
    finally:
        operation.close()
