"""`s3-saver demo`: a graph is saved to S3 by one process and resumed by another, and the bucket is shown.

The demonstration owns an embedded S3 server and starts two processes of this module, one after the other:

    python -m s3_saver.demo start  CONNECTION THREAD     runs the graph until it asks a person, and ends
    python -m s3_saver.demo resume CONNECTION THREAD     reads the thread from the bucket, answers, and finishes

They share nothing but the bucket. Credentials reach them by environment. Each prints events, one JSON object a line.
"""

import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from s3_saver.errors import S3SaverError

if TYPE_CHECKING:
    from s3_saver.embedded import EmbeddedS3

Event = dict[str, Any]

PROCESS_SECONDS_MAX = 120
WIDTH_WITHOUT_TERMINAL = 120


class DemoError(RuntimeError):
    """The demonstration could not go on; the message says why."""


def run_demo(*, data: Path | None = None, json_output: bool = False) -> int:
    """Run the demonstration and print what it stored; the exit code. With `data` the bucket is kept in that folder."""
    progress = Console(stderr=True, highlight=False)
    try:
        report = _perform(data, progress)
    except ModuleNotFoundError as error:
        missing = f"the module {error.name} is missing; install it with: pip install 's3-saver[local]'"
        progress.print(f"[red]error:[/red] {escape(missing)}", soft_wrap=True)
        return 1
    except (OSError, RuntimeError, S3SaverError) as error:
        progress.print(f"[red]error:[/red] {escape(str(error))}", soft_wrap=True)
        return 1
    if json_output:
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        _print_for_people(report)
    return 0


def _perform(data: Path | None, progress: Console) -> Event:
    from s3_saver.demo_graph import build_graph
    from s3_saver.demo_report import gather
    from s3_saver.embedded import EmbeddedS3
    from s3_saver.saver import S3Saver

    thread_id = f"offsite-{uuid.uuid4().hex[:6]}"
    progress.print("Starting an S3 server on this machine…")
    with EmbeddedS3(data) as server:
        progress.print(f"  [green]✓[/green] {server.kind} answers at {server.endpoint_url}, bucket {server.bucket}")
        processes = [_run(role, server, thread_id, progress) for role in ("start", "resume")]
        client = _connect(server)
        saver = S3Saver(server.bucket, client=client)
        found = gather(build_graph(saver), saver, client, server.bucket, thread_id)
        kept = str(server.data) if server.keeps_data else None
        about = {"kind": server.kind, "bucket": server.bucket, "data": kept}
        return {**about, "processes": processes, **found}


def _connect(server: "EmbeddedS3") -> Any:
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=server.endpoint_url,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        region_name=server.region,
        # No proxy, whatever the environment says: the server is on this machine.
        config=Config(s3={"addressing_style": "path"}, connect_timeout=5, read_timeout=30, proxies={}),
    )


def _print_for_people(report: Event) -> None:
    from s3_saver.demo_report import print_report

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDTH_WITHOUT_TERMINAL)
    print_report(report, console)


# The parent's view of a process


def _run(role: str, server: "EmbeddedS3", thread_id: str, progress: Console) -> Event:
    """Start one process, show its steps as they happen, and return its last event once it has ended."""
    command = [sys.executable, "-m", "s3_saver.demo", role, server.connection_string, thread_id]
    environment = {**os.environ, **server.environment(), "PYTHONIOENCODING": "utf-8"}
    last: Event = {}
    # Both streams in one: a full pipe that nobody reads would stop the process.
    with subprocess.Popen(  # noqa: S603 - our own module, no shell
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8"
    ) as process:
        action = "runs the graph" if role == "start" else "resumes the thread"
        progress.print(f"Process {process.pid} {action}…")
        watchdog = threading.Timer(PROCESS_SECONDS_MAX, process.kill)
        watchdog.start()
        try:
            assert process.stdout is not None
            for last in _events(process.stdout):
                _show(last, progress)
            process.wait()
        finally:
            watchdog.cancel()
            process.kill()  # does nothing once it has ended
    if process.returncode != 0 or last.get("event") != "end":
        reason = last.get("message") or f"no result within {PROCESS_SECONDS_MAX} s"
        raise DemoError(f"process {process.pid} ({role}) ended with code {process.returncode}: {reason}")
    return last


def _events(lines: Iterator[str]) -> Iterator[Event]:
    """Each line as an event; a line that is none (a warning, a traceback) as an event of the kind `noise`."""
    for line in filter(None, map(str.strip, lines)):
        try:
            yield json.loads(line)
        except ValueError:
            yield {"event": "noise", "message": line}


def _show(event: Event, progress: Console) -> None:
    match event:
        case {"event": "found", "checkpoint_id": checkpoint_id, "question": question}:
            progress.print(f"  [green]✓[/green] found checkpoint {checkpoint_id} in the bucket")
            progress.print(f"    it waits for an answer to: {escape(question)}  [green]yes[/green]")
        case {"event": "step", "node": node, "namespace": namespace}:
            where = f"{namespace} / " if namespace else ""
            progress.print(f"  [green]✓[/green] {where}{node}")
        case {"event": "end", "status": "interrupted", "interrupts": [question, *_]}:
            progress.print(f"  [yellow]⏸[/yellow] {escape(question)}")
            progress.print("    The process ends here. A person may answer in a minute or in a month.")
        case {"event": "end"}:
            progress.print("  [green]✓[/green] finished\n")


# The processes themselves


def main(arguments: list[str]) -> int:
    """Run one half of the thread and print its events; the exit code."""
    try:
        role, connection, thread_id = arguments
        _work(role, connection, thread_id)
    except Exception as error:
        _say("error", message=f"{type(error).__name__}: {error}")
        return 1
    return 0


def _work(role: str, connection: str, thread_id: str) -> None:
    from langchain_core.runnables import RunnableConfig
    from langgraph.types import Command

    from s3_saver.demo_graph import build_graph, first_input
    from s3_saver.saver import S3Saver

    # LangGraph copies this metadata into each checkpoint, so the bucket itself says which process wrote what.
    config: RunnableConfig = {"configurable": {"thread_id": thread_id}, "metadata": {"process": os.getpid()}}
    with S3Saver.from_conn_string(connection) as saver:
        graph = build_graph(saver)
        before = graph.get_state(config)
        found = before.config["configurable"].get("checkpoint_id")
        if found:
            _say("found", checkpoint_id=found, question=before.interrupts[0].value)
        entry: Any = first_input() if role == "start" else Command(resume="yes")
        for part in graph.stream(entry, config, stream_mode="updates", subgraphs=True):
            namespace, update = part
            _say_steps(namespace, update)
        after = graph.get_state(config)
    _say(
        "end",
        role=role,
        pid=os.getpid(),
        found=found,
        status="interrupted" if after.interrupts else "finished",
        interrupts=[interrupt.value for interrupt in after.interrupts],
        next=list(after.next),
    )


def _say_steps(namespace: Any, update: Any) -> None:
    for node in update:
        if node != "__interrupt__":
            _say("step", node=node, namespace=" / ".join(part.split(":")[0] for part in namespace))


def _say(event: str, **details: Any) -> None:
    print(json.dumps({"event": event, **details}), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
