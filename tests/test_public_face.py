"""What users can rely on: names, signatures, docstrings, and the house's own rules of size."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver

import manifests
import s3_saver
from s3_saver import AsyncS3Saver, S3Saver

ROOT = Path(__file__).parents[1]
MODULES = sorted([*(ROOT / "s3_saver").rglob("*.py"), *(ROOT / "manifests").rglob("*.py")])
SYNC = [
    "get_tuple",
    "list",
    "put",
    "put_writes",
    "delete_thread",
    "delete_for_runs",
    "copy_thread",
    "prune",
    "plan_prune",
    "threads",
    "get_delta_channel_history",
    "setup",
]


@pytest.mark.parametrize("package", [s3_saver, manifests])
def test_every_public_name_is_there_and_explained(package: object) -> None:
    """`__all__` is sorted by nothing but truth: each name exists and, a class or function, has a docstring."""
    for name in package.__all__:  # type: ignore[attr-defined]
        value = getattr(package, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), name


@pytest.mark.parametrize("name", SYNC)
def test_both_savers_have_every_method_in_both_colours(name: str) -> None:
    """A method and its async twin take the same arguments, on both classes."""
    for saver in (S3Saver, AsyncS3Saver):
        sync, twin = getattr(saver, name), getattr(saver, f"a{name}")
        assert list(inspect.signature(sync).parameters) == list(inspect.signature(twin).parameters)
        first = (inspect.getdoc(sync) or "").splitlines()[0]
        assert first
        assert (inspect.getdoc(twin) or "").splitlines()[0] == first
        assert inspect.iscoroutinefunction(twin) or inspect.isasyncgenfunction(twin)


def test_no_method_of_langgraph_is_left_to_the_base_class() -> None:
    """What the base class only raises for is overridden, so no user finds out at run time (F72)."""
    inherited = {"get", "aget", "config_specs"}
    names = [
        name
        for name, value in vars(BaseCheckpointSaver).items()
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))
    ]
    for saver in (S3Saver, AsyncS3Saver):
        for name in set(names) - inherited:
            assert getattr(saver, name) is not getattr(BaseCheckpointSaver, name), name


def test_packages_are_typed() -> None:
    """Both packages tell type checkers that they have types."""
    assert (ROOT / "s3_saver" / "py.typed").exists()
    assert (ROOT / "manifests" / "py.typed").exists()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_and_functions_fit_on_screens(path: Path) -> None:
    """A module has at most 400 lines and opens with what it is for; a function has at most 70 lines."""
    text = path.read_text()
    assert text.count("\n") <= 400
    tree = ast.parse(text)
    assert ast.get_docstring(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < 70, node.name
