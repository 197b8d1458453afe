"""The command line. Each command imports what it needs, so that `--help` and `--version` are quick.

An error that was foreseen is one line on standard error and exit code 1.
"""

from __future__ import annotations

import json
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from s3_saver.embedded import EmbeddedS3

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

DataOption = Annotated[
    Path | None,
    typer.Option(help="Folder that keeps the data. Without it, nothing is left afterwards.", file_okay=False),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

# How often a waiting main thread looks up: on Windows a wait without a time limit cannot be interrupted.
_LOOK_UP_SECONDS = 0.5


def main() -> None:
    """Run the command of `sys.argv` and exit."""
    app()


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"s3-saver {version('s3-saver')}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A LangGraph checkpoint archive on S3-compatible object storage."""


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Foreseen errors end the program with their message; a bug keeps its traceback."""
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        # A log may follow the first line; people need it, and it needs no markup.
        Console(stderr=True, highlight=False).print(f"[red]error:[/red] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(1) from None


@app.command()
def serve(
    data: DataOption = None,
    port: Annotated[int | None, typer.Option(help="Port of the S3 endpoint; any free one by default.")] = None,
    bucket: Annotated[str, typer.Option(help="Bucket to make.")] = "checkpoints",
    json_output: JsonOption = False,
) -> None:
    """Run an S3 server on this machine until Ctrl-C, and print the settings that make clients use it."""
    from s3_saver.embedded import EmbeddedS3

    # Asked to stop while it starts, it stops when it has started: half a start leaves nothing to stop.
    asked = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: asked.set())
    with _one_line_errors(), EmbeddedS3(data, bucket=bucket, port=port) as server:
        if json_output:
            print(json.dumps(_facts(server)), flush=True)
        else:
            _print_settings(server)
        while not asked.wait(_LOOK_UP_SECONDS):
            if not server.is_running():
                raise RuntimeError("the S3 server ended by itself")


def _facts(server: EmbeddedS3) -> dict[str, object]:
    return {
        "kind": server.kind,
        "endpoint_url": server.endpoint_url,
        "bucket": server.bucket,
        "region": server.region,
        "connection_string": server.connection_string,
        "data": str(server.data) if server.keeps_data else None,
        "pid": server.pid,
        "environment": server.environment(),
    }


def _print_settings(server: EmbeddedS3) -> None:
    """The settings on standard output, so that a shell may read them, and the rest on standard error."""
    notes = Console(stderr=True, highlight=False)
    where = escape(str(server.data)) if server.keeps_data else "nowhere: all of it is gone when the server stops"
    notes.print(
        f"[green]✓[/green] {server.kind} answers at {server.endpoint_url}; data is kept in {where}", soft_wrap=True
    )
    notes.print("Copy these lines into a shell:\n")
    for name, value in server.environment().items():
        print(f"export {name}={shlex.quote(value)}")
    sys.stdout.flush()
    notes.print("\nand connect a saver with:\n")
    print(f"# {server.connection_string}", flush=True)
    notes.print("\nCtrl-C stops the server.")


@app.command()
def demo(data: DataOption = None, json_output: JsonOption = False) -> None:
    """Run a graph in one process, resume it in another, and show what lies in the bucket."""
    from s3_saver.demo import run_demo

    with _one_line_errors():
        code = run_demo(data=data, json_output=json_output)
    raise typer.Exit(code)


if __name__ == "__main__":
    main()
