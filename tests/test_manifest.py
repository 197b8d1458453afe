"""The manifest: an index that is never the truth, written while a thread is, healed and merged by readers."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from kit import Background, GatedBucket, MemoryArchive, Put, config, ids, put, whole_thread
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from memory_saver import MemorySaver

from manifests.checkpoints import Typed, decode_checkpoint, encode_checkpoint
from manifests.keys import segment_in
from manifests.segments import Row, decode_segment, encode_segment, row_of, rows_in
from s3_saver.bucket import Delete, Get, List, Request
from s3_saver.bucket import Put as PutRequest
from s3_saver.drivers.memory import MemoryBucket
from s3_saver.errors import CorruptObjectError, StoreAccessError
from s3_saver.operations.survey import index, tend
from s3_saver.reading import describer

EVERY = 64


def chain(saver: Any, length: int, *, first: int = 0, after: Put | None = None, **how: Any) -> Put:
    """A chain of checkpoints with their number in the metadata."""
    last = after
    for number in range(first, first + length):
        metadata = {"step": number, "source": "loop", "even": number % 2 == 0}
        last = put(saver, id=f"{number:05}", parent=last, values={"k": number}, metadata=metadata, **how)
    assert last is not None
    return last


def fabricated(archive: MemoryArchive, first: int, length: int) -> None:
    """A chain as its puts leave it, written straight into the store, for speed: a segment for each 64."""
    saver = MemorySaver()
    put(saver, id="model", values={"k": "value"}, metadata={"step": 0})
    key = archive.layout.checkpoint("t", "", "model")
    model = decode_checkpoint(saver.driver.bucket.objects[key][0], key=key)
    rows: list[Row] = []
    for number in range(first, first + length):
        metadata = {"step": number, "even": number % 2 == 0, "hundredth": number % 100 == 0}
        header = replace(
            model.header,
            checkpoint_id=f"{number:05}",
            parent_id=f"{number - 1:05}" if number else None,
            depth=number,
            metadata=Typed(*saver.serde.dumps_typed(metadata)),
        )
        body = encode_checkpoint(header, model.payload)
        key = archive.layout.checkpoint("t", "", header.checkpoint_id)
        archive.write(key, body)
        etag = archive.bucket.answer(Get(key, first_bytes=1)).etag
        rows.append(row_of(header, size=len(body), etag=etag, sha256=None, described=metadata, metadata_json=None))
        if number and number % EVERY == 0:
            archive.write(segment_in(archive.layout.thread("t"), f"{number:032x}"), encode_segment(rows[-EVERY:]))


def segments(archive: MemoryArchive, thread_id: str = "t") -> dict[str, list[Row]]:
    """The thread's segments and their rows."""
    names = [key for key in archive.keys_of("segment") if key.startswith(archive.layout.thread(thread_id))]
    return {name: list(rows_in(decode_segment(archive.read(name), key=name))) for name in names}


def requests(saver: MemorySaver) -> list[Request[Any]]:
    return [request for round_ in saver.driver.rounds for request in round_]


def gets(archive: MemoryArchive, saver: MemorySaver, kind: str) -> list[Get]:
    """The objects of a kind that the saver asked for."""
    asked = [request for request in requests(saver) if isinstance(request, Get)]
    return [request for request in asked if archive.layout.kind(request.key) == kind]


def by_hand(items: list[Any], filter: dict[str, Any]) -> list[Any]:
    return [item for item in items if all(item.metadata.get(key) == value for key, value in filter.items())]


# A filtered list is the unfiltered one, filtered


@dataclass
class Wild:
    """A random archive: threads, namespaces, forks, prunes, deletions, readers that index, other savers."""

    seed: int
    archive: MemoryArchive = field(default_factory=MemoryArchive)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        saver = self.archive.open()
        puts: dict[tuple[str, str], list[Put]] = {}
        for number in range(self.dice.randrange(30, 400)):
            if self.dice.random() < 0.1:
                saver = self.archive.open()
            place = self.dice.choice(["a", "b"]), self.dice.choice(["", "", "n:1", "n:" + "x" * 300])
            before = puts.setdefault(place, [])
            parent = self.dice.choice(before[-3:]) if before else None
            metadata = {"step": number, "even": number % 2 == 0, "tag": self.dice.choice(["x", "y", None, 1.0, True])}
            metadata |= {"thread_id": place[0]} if self.dice.random() < 0.2 else {}
            metadata |= {"run_id": f"run {number // 20}"} if self.dice.random() < 0.5 else {}
            name = f"{number:04}"
            stored = put(saver, place[0], namespace=place[1], id=name, parent=parent, metadata=metadata)
            before.append(stored)
            self.disturb(saver)

    def disturb(self, saver: MemorySaver) -> None:
        chance = self.dice.random()
        if chance < 0.01:
            list(saver.list(whole_thread(self.dice.choice("ab")), filter={"tag": "x"}))
        elif chance < 0.013:
            saver.prune([self.dice.choice("ab")], strategy="keep_last", keep=self.dice.randrange(1, 40))
        elif chance < 0.018:
            saver.delete_for_runs([f"run {self.dice.randrange(20)}"])
        elif chance < 0.02:
            saver.copy_thread("a", f"copy {self.dice.randrange(1000)}")

    def add_stale_rows(self) -> None:
        """Rows that lie about objects which are not what they were, or not there."""
        for name, rows in segments(self.archive, "a").items():
            lies = [
                row._replace(etag='"other"', metadata_type="msgpack", metadata=_DUMP({"tag": "x", "even": True}))
                for row in rows
            ]
            self.archive.write(name.replace("_manifest/", "_manifest/0"), encode_segment(lies))
            gone = [row._replace(checkpoint_id=f"gone {row.checkpoint_id}") for row in rows]
            self.archive.write(name.replace("_manifest/", "_manifest/1"), encode_segment(gone))


def _DUMP(metadata: dict[str, Any]) -> bytes:
    return bytes(MemorySaver().serde.dumps_typed(metadata)[1])


FILTERS: list[dict[str, Any]] = [
    {"tag": "x"},
    {"tag": None},
    {"tag": 1},
    {"even": True, "tag": "y"},
    {"thread_id": "a"},
    {"run_id": "run 3"},
    {"missing": None},
    {"step": 10_000},
]


@pytest.mark.parametrize("seed", range(12))
def test_filtered_list_equals_a_filtered_whole(seed: int) -> None:
    """Whatever is indexed, stale or missing, a filtered list is the whole list, filtered by hand."""
    wild = Wild(seed)
    if seed % 2:
        wild.add_stale_rows()
    for where in (whole_thread("a"), config("a"), config("b", "n:1"), None):
        items = list(wild.archive.open().list(where))
        for filter in FILTERS:
            assert list(wild.archive.open().list(where, filter=filter)) == by_hand(items, filter)
        limited = list(wild.archive.open().list(where, filter={"even": True}, limit=5))
        assert limited == by_hand(items, {"even": True})[:5]


def test_row_of_a_replaced_object_does_not_count() -> None:
    """A checkpoint that was removed and put again with other metadata is found by what it says now."""
    archive = MemoryArchive()
    chain(archive.open(), 65)
    assert len(segments(archive)) == 1
    archive.remove(archive.layout.checkpoint("t", "", "00040"))
    put(archive.open(), id="00040", metadata={"step": 1000})
    assert ids(archive.open().list(config(), filter={"step": 40})) == []
    assert ids(archive.open().list(config(), filter={"step": 1000})) == ["00040"]


def test_damaged_segment_is_an_error_that_says_what_to_do() -> None:
    """A segment that cannot be read is never passed over; without it the manifest is whole again."""
    archive = MemoryArchive()
    chain(archive.open(), 65)
    (name,) = segments(archive)
    archive.write(name, archive.read(name)[:-20])
    with pytest.raises(CorruptObjectError, match="delete it"):
        list(archive.open().list(config(), filter={"step": 1}))
    assert len(list(archive.open().list(config()))) == 65
    archive.remove(name)
    assert ids(archive.open().list(config(), filter={"step": 1})) == ["00001"]


def test_encrypted_metadata_is_filtered_and_hidden() -> None:
    """Where metadata is encrypted, filters work all the same, and segments show none of it."""
    serde = EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")
    archive = MemoryArchive()
    saver = archive.open(serde=serde)
    last = None
    for number in range(65):
        metadata = {"step": number, "note": f"secret {number}", "run_id": "secret run"}
        last = put(saver, id=f"{number:05}", parent=last, metadata=metadata)
    ((name, rows),) = segments(archive).items()
    assert {(row.step, row.source, row.run_id, row.metadata_json) for row in rows} == {(None, None, None, None)}
    assert b"secret" not in archive.read(name)
    assert ids(archive.open(serde=serde).list(config(), filter={"note": "secret 7"})) == ["00007"]


# Writing it


def test_each_64th_put_indexes_the_last_64() -> None:
    """The put of a depth that is a multiple of 64 stores one segment, after the checkpoint, and reads nothing."""
    archive = MemoryArchive()
    saver = archive.open()
    last = chain(saver, 64)
    assert segments(archive) == {}
    saver.driver.rounds.clear()
    chain(saver, 1, first=64, after=last)
    assert [[type(request) for request in round_] for round_ in saver.driver.rounds] == [[PutRequest], [PutRequest]]
    ((_, rows),) = segments(archive).items()
    assert [row.checkpoint_id for row in rows] == [f"{number:05}" for number in range(1, 65)]
    assert [row.depth for row in rows] == list(range(1, 65))
    for row in rows:
        key = archive.layout.checkpoint("t", "", row.checkpoint_id)
        body = archive.read(key)
        assert (row.size, row.sha256) == (len(body), decode_checkpoint(body, key=key).sha256)
    reader = archive.open()
    assert ids(reader.list(config(), filter={"step": 30})) == ["00030"]
    assert len(gets(archive, reader, "checkpoint")) == 1 + 1  # the first, which no segment has, and the one found


def test_another_process_reads_what_it_has_not_put() -> None:
    """Where a process has put few of the last 64 itself, it reads the others' headers, in three rounds altogether."""
    archive = MemoryArchive()
    last = chain(archive.open(), 60)
    saver = archive.open()
    last = chain(saver, 4, first=60, after=last)
    saver.driver.rounds.clear()
    chain(saver, 1, first=64, after=last)
    kinds = [{type(request) for request in round_} for round_ in saver.driver.rounds]
    assert kinds == [{PutRequest}, {List}, {Get}, {PutRequest}]
    ((_, rows),) = segments(archive).items()
    assert {row.checkpoint_id for row in rows} >= {f"{number:05}" for number in range(1, 65)}


def test_namespaces_share_a_manifest() -> None:
    """Segments of all namespaces are the thread's, and each has its namespace's rows."""
    archive = MemoryArchive()
    saver = archive.open()
    for namespace in ("", "child:1"):
        chain(saver, 65, namespace=namespace)
    assert [{row.namespace for row in rows} for rows in segments(archive).values()] in (
        [{""}, {"child:1"}],
        [{"child:1"}, {""}],
    )
    reader = archive.open()
    assert ids(reader.list(whole_thread("t"), filter={"step": 30})) == ["00030", "00030"]


@dataclass
class Refusing(MemoryBucket):
    """Credentials that may not write below `_manifest/`."""

    refused: int = 0

    def answer(self, request: Request[Any]) -> Any:
        if isinstance(request, PutRequest) and "/_manifest/" in request.key:
            self.refused += 1
            raise StoreAccessError(f"putting {request.key}: 403 AccessDenied")
        return super().answer(request)


def test_put_succeeds_where_indexing_fails(caplog: pytest.LogCaptureFixture) -> None:
    """A checkpoint is stored also where indexing it is refused, which is logged; readers find it all the same."""
    archive = MemoryArchive(bucket=(bucket := Refusing()))
    saver = archive.open()
    with caplog.at_level(logging.INFO, "s3_saver"):
        chain(saver, 65)
        assert bucket.refused == 1
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert "'t'" in record.getMessage()
        assert "AccessDenied" in record.getMessage()
        assert ids(archive.open().list(config(), filter={"step": 64})) == ["00064"]
        assert bucket.refused == 2
        assert caplog.records[-1].levelno == logging.INFO
    assert len(list(archive.open().list(config()))) == 65


def test_deleted_thread_does_not_come_back_through_the_manifest() -> None:
    """What a process remembers of a thread that it deletes is in no segment of a new thread of that name."""
    archive = MemoryArchive()
    saver, other = archive.open(), archive.open()
    chain(saver, 60)
    saver.delete_thread("t")
    last = chain(other, 60, first=1000)
    chain(saver, 5, first=1060, after=last)
    ((_, rows),) = segments(archive).items()
    assert min(row.checkpoint_id for row in rows) >= "01000"
    assert len(rows) >= 64


# Healing and merging


def test_short_lived_processes_are_healed_by_readers() -> None:
    """Where every process lives for three puts, readers index what is missing, so that the next reads little."""
    archive = MemoryArchive()
    last: Put | None = None
    for start in range(0, 240, 3):
        last = chain(archive.open(), 3, first=start, after=last)
    indexed = len({row.checkpoint_id for rows in segments(archive).values() for row in rows})
    reader = archive.open()
    assert ids(reader.list(config(), filter={"step": 100})) == ["00100"]
    assert len(gets(archive, reader, "checkpoint")) == 240 - indexed + 1 > 16
    again = archive.open()
    assert ids(again.list(config(), filter={"step": 100})) == ["00100"]
    assert len(gets(archive, again, "checkpoint")) == 1


@pytest.mark.parametrize("reader", ["prune", "delete_for_runs", "list"])
def test_unlinked_checkpoints_are_healed_too(reader: str) -> None:
    """Checkpoints of unknown depth are indexed by nobody but readers."""
    archive = MemoryArchive()
    for number in range(40):
        put(archive.open(), id=f"{number:05}", under=config("t", "", "unknown parent"), metadata={"run_id": "r"})
    assert segments(archive) == {}
    saver = archive.open()
    if reader == "list":
        list(saver.list(config(), filter={"step": 1}))
        assert sum(map(len, segments(archive).values())) == 40
    elif reader == "prune":
        saver.prune(["t"])
        assert ids(archive.open().list(config(), filter={"run_id": "r"})) == ["00039"]
    else:
        saver.delete_for_runs(["r"])
        assert list(archive.open().list(config(), filter={"run_id": "r"})) == []


def test_merges_are_tiered() -> None:
    """Sixteen small segments become one, and a large one is left alone until there are sixteen of its size."""
    archive = MemoryArchive()
    fabricated(archive, 0, 16 * EVERY + 1)
    assert len(segments(archive)) == 16
    list(archive.open().list(config(), filter={"step": 1}))
    (large,) = segments(archive)
    assert len(segments(archive)[large]) == 16 * EVERY
    for start in range(1, 17):
        fabricated(archive, (15 + start) * EVERY + 1, EVERY)
        reader = archive.open()
        assert ids(reader.list(config(), filter={"step": 700})) == ["00700"]
        assert len(gets(archive, reader, "segment")) <= 17
        assert large in segments(archive)
    assert len(segments(archive)) == 2
    reader = archive.open()
    assert len(list(reader.list(config(), filter={"even": True}))) == 16 * EVERY + 1


def test_merge_drops_what_is_not_there() -> None:
    """Merging keeps the rows that count: those of removed checkpoints are left behind."""
    archive = MemoryArchive()
    fabricated(archive, 0, 16 * EVERY + 1)
    for number in range(1, 16 * EVERY - 10):
        archive.remove(archive.layout.checkpoint("t", "", f"{number:05}"))
    list(archive.open().list(config(), filter={"step": 1}))
    found = segments(archive)
    assert sum(map(len, found.values())) == 11


def test_two_mergers_at_once() -> None:
    """Two readers that merge the same segments, in any order of their requests, lose no row."""
    for order in ("AB", "BA"):
        archive = MemoryArchive()
        fabricated(archive, 0, 16 * EVERY + 1)
        folder, describe = archive.layout.thread("t"), describer(MemorySaver().serde)
        mergers = {name: archive.open() for name in order}
        found = {name: one.driver.run(index(archive.layout, folder, describe)) for name, one in mergers.items()}
        for name in order:
            mergers[name].driver.run(tend(found[name], name.lower() * 8))
        reader = archive.open()
        assert ids(reader.list(config(), filter={"step": 500})) == ["00500"]
        assert len(gets(archive, reader, "checkpoint")) == 2
        assert len(list(archive.open().list(config(), filter={"even": True}))) == 8 * EVERY + 1


def test_segment_that_vanishes_means_list_again() -> None:
    """A reader whose segment was merged away meanwhile lists again, and answers right."""
    bucket = GatedBucket()
    archive = MemoryArchive(bucket=bucket)
    fabricated(archive, 0, 16 * EVERY + 1)
    bucket.holds = lambda request: isinstance(request, Get) and "/_manifest/" in request.key
    reader = archive.open()
    call = Background(lambda: ids(reader.list(config(), filter={"step": 500})))
    assert bucket.reached.wait(10)
    list(archive.open().list(config(), filter={"step": 1}))
    assert len(segments(archive)) == 1
    bucket.release()
    assert call.result() == ["00500"]
    assert sum(isinstance(request, List) for request in requests(reader)) >= 4


def test_merge_deletes_only_after_the_union_is_there() -> None:
    """At no moment of a merge does a row lack: the union is stored before its parts go."""
    archive = MemoryArchive()
    fabricated(archive, 0, 16 * EVERY + 1)
    reader = archive.open()
    list(reader.list(config(), filter={"step": 1}))
    changes = [type(request) for request in requests(reader) if isinstance(request, PutRequest | Delete)]
    assert changes == [PutRequest, Delete]


# What it costs


def test_filter_over_ten_thousand() -> None:
    """A filter over ten thousand checkpoints reads the manifest, what it returns, and headers of the newest."""
    archive = MemoryArchive()
    fabricated(archive, 0, 10_000)
    cold, warm = archive.open(), archive.open()
    # Those after the last multiple of 64, and the first of all, are in no segment until the first reader puts them
    # into one; it merges the others too.
    for reader, unread, read in ((cold, 10_000 - 156 * EVERY, 156), (warm, 0, 2)):
        found = ids(reader.list(config(), filter={"hundredth": True}, limit=10))
        assert found == [f"{number:05}" for number in range(9900, 8900, -100)]
        whole = [get for get in gets(archive, reader, "checkpoint") if get.first_bytes is None]
        assert [get.key for get in whole] == [archive.layout.checkpoint("t", "", name) for name in found]
        headers = [get for get in gets(archive, reader, "checkpoint") if get.first_bytes is not None]
        assert len(headers) == unread
        assert len(gets(archive, reader, "segment")) == read
        assert len(gets(archive, reader, "writes")) == 0
    assert len(warm.driver.rounds) <= 11 + 3
