"""What `s3-saver demo` found in the bucket: gathered into one JSON document, and printed from it for people.

`gather` reads through the saver's public face and a plain listing; `print_report` needs nothing but the document.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Interrupt, Send, StateSnapshot
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.tree import Tree

from manifests.keys import Layout

Report = dict[str, Any]
Graph = CompiledStateGraph[Any, None, Any, Any]

NAME_MAX = 44


def gather(graph: Graph, saver: BaseCheckpointSaver[Any], client: Any, bucket: str, thread_id: str) -> Report:
    """All that the bucket holds of one thread: its history in all namespaces, newest first, its state, its objects."""
    config: RunnableConfig = {"configurable": {"thread_id": thread_id}}
    stored = sorted(saver.list(config), key=lambda found: _id_in(found.config), reverse=True)
    snapshots = _snapshots(graph, thread_id, {_namespace_in(found.config) for found in stored})
    values = graph.get_state(config).values
    return {
        "thread_id": thread_id,
        "history": [_entry(found, snapshots[_id_in(found.config)]) for found in stored],
        "state": {
            "reports": values["reports"],
            "messages": [{"type": message.type, "content": message.content} for message in values["messages"]],
        },
        "answer": values["messages"][-1].content,
        "objects": list(_objects(client, bucket, Layout.under("").thread(thread_id))),
    }


def _snapshots(graph: Graph, thread_id: str, namespaces: set[str]) -> dict[str, StateSnapshot]:
    configs: list[RunnableConfig] = [
        {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace}} for namespace in namespaces
    ]
    return {_id_in(found.config): found for config in configs for found in graph.get_state_history(config)}


def _entry(found: CheckpointTuple, snapshot: StateSnapshot) -> Report:
    names = {task.id: task.name for task in snapshot.tasks}
    metadata: Mapping[str, Any] = found.metadata
    return {
        "step": metadata["step"],
        "source": metadata["source"],
        "process": metadata["process"],
        "namespace": _namespace_in(found.config),
        "checkpoint_id": _id_in(found.config),
        "parent_id": _id_in(found.parent_config) if found.parent_config else None,
        "next": list(snapshot.next),
        "interrupts": [interrupt.value for interrupt in snapshot.interrupts],
        "writes": [
            {"task": names.get(task, ""), "channel": channel, "value": describe(value)}
            for task, channel, value in found.pending_writes or []
            if not channel.startswith("branch:")
        ],
    }


def _objects(client: Any, bucket: str, folder: str) -> Iterator[Report]:
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=folder):
        for found in page.get("Contents", []):
            yield {"key": found["Key"], "size": found["Size"]}


def _id_in(config: RunnableConfig) -> str:
    return str(config["configurable"]["checkpoint_id"])


def _namespace_in(config: RunnableConfig) -> str:
    return str(config["configurable"]["checkpoint_ns"])


def describe(value: object) -> str:
    """`value` in a few readable words."""
    match value:
        case BaseMessage():
            return f"{value.type} “{value.text}”"
        case Interrupt():
            return describe(value.value)
        case Send():
            return f"{value.arg} to {value.node}"
        case [single]:
            return describe(single)
        case list() | tuple() if all(isinstance(item, BaseMessage) for item in value):
            return f"{len(value)} messages"
        case {"messages": list(messages)}:
            return describe(messages)
        case str():
            return value
        case _:
            return repr(value)


# Printing


def print_report(report: Report, console: Console) -> None:
    """Print the history as a table, the objects as a tree, the answer, and what to try next."""
    console.print(_history(report))
    console.print()
    console.print(_tree(report))
    console.print()
    console.print(Panel(_explanation(report), title="Why this worked", title_align="left"))
    console.print(f"\n[bold]Final answer:[/bold] {escape(report['answer'])}")
    console.print("\n[bold]What to try next[/bold]")
    for line in _suggestions(report):
        console.print(line, soft_wrap=True)


def _history(report: Report) -> Table:
    table = Table(
        title="The thread's history, newest first",
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("Step", justify="right", no_wrap=True)
    for column in ("Namespace", "Checkpoint", "Source", "Then runs"):
        table.add_column(column, no_wrap=True)
    table.add_column("What that wrote")  # the only one to wrap in a narrow terminal
    process = None
    for entry in report["history"]:
        if entry["process"] != process:
            process = entry["process"]
            table.add_section()
            table.add_row("", *[""] * 4, f"[bold]put by process {process}[/bold]")
        table.add_row(
            str(entry["step"]),
            entry["namespace"].split(":")[0] or "(root)",
            short_id(entry["checkpoint_id"]),
            entry["source"],
            _counted(entry["next"]),
            "\n".join(_written(entry["writes"])),
        )
    return table


def _counted(names: list[str]) -> str:
    counts = {name: names.count(name) for name in names}
    return ", ".join(name if count == 1 else f"{name} ×{count}" for name, count in counts.items()) or "(end)"


def _written(writes: list[Report]) -> Iterator[str]:
    # The store keeps answers before questions; people read them the other way round.
    for write in sorted(writes, key=lambda write: write["channel"] != "__interrupt__"):
        value = escape(" ".join(write["value"].split()))
        match write["channel"]:
            case "__interrupt__":
                yield f"[yellow]⏸ asks: {value}[/yellow]"
            case "__resume__":
                yield f"[green]▶ answered: {value}[/green]"
            case "__pregel_tasks":
                yield f"sent: {value}"
            case channel:
                yield f"{channel}: {value}"


def _tree(report: Report) -> Tree:
    """The listing as folders, in the order in which the store lists it, which is newest first."""
    labels = {entry["checkpoint_id"]: entry for entry in report["history"]}
    total = sum(found["size"] for found in report["objects"])
    root = Tree(
        f"[bold]s3://{report['bucket']}/[/bold]  {len(report['objects'])} objects, {total:,} bytes (sizes in bytes)"
    )
    folders: dict[tuple[str, ...], Tree] = {(): root}
    for found in report["objects"]:
        *parents, name = found["key"].split("/")
        for depth in range(1, len(parents) + 1):
            path = tuple(parents[:depth])
            if path not in folders:
                folders[path] = folders[path[:-1]].add(_folder_label(path[-1], labels))
        folders[tuple(parents)].add(f"{escape(shorten(name, NAME_MAX))}  [cyan]{found['size']:,}[/cyan]")
    return root


def _folder_label(name: str, entries: Mapping[str, Report]) -> str:
    for checkpoint_id, entry in entries.items():
        if name.endswith(checkpoint_id):
            order = name.removesuffix(checkpoint_id)
            return f"{order[:4]}…{order[-3:]}{short_id(checkpoint_id)}/  [dim]step {entry['step']}[/dim]"
    return f"[blue]{escape(shorten(name, NAME_MAX))}/[/blue]"


def _explanation(report: Report) -> str:
    first, second = report["processes"]
    return (
        f"Process {first['pid']} ran until the graph asked a person, and ended: nothing of it was left in memory. "
        f"Process {second['pid']} was given the bucket, the thread id and the answer. It listed the thread's folder, "
        f"in which the newest checkpoint comes first ({short_id(second['found'])}), read that one with the writes "
        "beside it, put the answer there as one more batch, and went on inside the subgraph. No finished step ran "
        "twice, and nothing stored was rewritten.\n\n"
        "Each folder is one step: [cyan]_checkpoint.msgpack[/cyan] is the state before it, and "
        "[cyan]writes-….parquet[/cyan] holds what its tasks wrote, readable by any engine that knows Parquet."
    )


def _suggestions(report: Report) -> Iterator[str]:
    if report["kind"] == "moto":
        yield "  SeaweedFS is not installed here: the demo ran on moto, which keeps nothing."
    elif report["data"]:
        yield f"  [green]s3-saver serve --data {escape(report['data'])}[/green]   serve this bucket again"
        yield "  and then in Python, with the environment lines that it prints:"
        yield f"""    [green]from s3_saver import S3Saver
    for step in S3Saver("{report["bucket"]}").list({{"configurable": {{"thread_id": "{report["thread_id"]}"}}}}):
        print(step.metadata, step.pending_writes)[/green]"""
    else:
        yield "  [green]s3-saver demo --data DIR[/green]    again, and keep the bucket in DIR"
        yield "  [green]s3-saver serve --data DIR[/green]   serve it: any S3 client, DuckDB or pyarrow reads the writes"
    yield "  [green]s3-saver demo --json[/green]        the same as one JSON document"
    yield '  In your own code: [green]builder.compile(checkpointer=S3Saver("my-bucket"))[/green]'


def short_id(checkpoint_id: str) -> str:
    """The part of a checkpoint id that differs within a demonstration."""
    return f"…{checkpoint_id[9:18]}…"


def shorten(text: str, length_max: int) -> str:
    """`text` on one line, its middle left out where it is longer than `length_max`."""
    line = " ".join(text.split())
    if len(line) <= length_max:
        return line
    half = (length_max - 1) // 2
    return f"{line[:half]}…{line[-half:]}"
