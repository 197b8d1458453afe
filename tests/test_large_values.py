"""Large values: references, patches in two levels, and what they cost; whatever goes, what stays reads whole."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from kit import (
    Archive,
    FailingBucket,
    MemoryArchive,
    archive_fixture,  # noqa: F401 - a fixture
    config,
    found,
    kind_fixture,  # noqa: F401 - a fixture
    loop_fixture,  # noqa: F401 - a fixture
    on_a_real_server,
    put,
    values_at,
)
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from manifests import Entry, decode_checkpoint
from s3_saver.bucket import Get
from s3_saver.bucket import Put as PutRequest
from s3_saver.errors import CheckpointConflictError, CorruptObjectError, StoreUnavailableError

DICE = random.Random(7)
WORDS = ["".join(DICE.choices("abcdefghijklmnopqrstuvwxyz", k=DICE.randint(2, 9))) for _ in range(600)]
RARE = [1 / (number + 3) for number in range(len(WORDS))]


def text(length: int, dice: random.Random = DICE) -> str:
    """Words, some of them often, as in a language."""
    words: list[str] = []
    while sum(map(len, words)) + len(words) < length:
        words += dice.choices(WORDS, RARE, k=20)
    return " ".join(words)[:length]


MESSAGES = [text(2_800) for _ in range(90)]
DOCUMENT = text(300_000)


def talk(saver: Any, steps: int, *, thread_id: str = "t", run_every: int = 1000) -> list[Any]:
    """A chat: `messages` grows, `documents` stays. The config of each step."""
    last = None
    configs = []
    for number in range(steps):
        last = put(
            saver,
            thread_id,
            id=f"{number:04}",
            parent=last,
            values={"messages": MESSAGES[: number + 1], "documents": DOCUMENT},
            changed=("messages", "documents") if last is None else ("messages",),
            metadata={"source": "loop", "step": number, "run_id": f"run {number // run_every}"},
        )
        configs.append(last.config)
    return configs


def assert_whole(saver: Any, steps: list[int], thread_id: str = "t") -> None:
    """Every checkpoint that stays reads exactly as it was put, alone and in the listing."""
    listed = {item.checkpoint["id"]: item.checkpoint["channel_values"] for item in saver.list(config(thread_id))}
    assert sorted(listed) == [f"{number:04}" for number in steps]
    for number in steps:
        expected = {"messages": MESSAGES[: number + 1], "documents": DOCUMENT}
        assert listed[f"{number:04}"] == expected
        assert values_at(saver, config(thread_id, "", f"{number:04}")) == expected


def entry_of(archive: Archive, checkpoint_id: str, channel: str, thread_id: str = "t") -> Entry:
    key = archive.layout.checkpoint(thread_id, "", checkpoint_id)
    return decode_checkpoint(archive.read(key), key=key).header.channels[channel]


def bytes_of(archive: Archive, *kinds: str) -> int:
    return sum(len(archive.read(key)) for kind in kinds for key in archive.keys_of(kind))


# What is stored


@on_a_real_server
def test_a_growing_value_costs_little_more_than_it_grew(archive: Archive) -> None:
    """Sixty steps, 300 kB and more each, take as much as two or three whole ones; each reads back as it was."""
    saver = archive.open()
    talk(saver, 60)
    assert_whole(archive.open(), list(range(60)))
    whole = sum(len(repr(MESSAGES[: number + 1])) + len(DOCUMENT) for number in range(60))
    assert whole > 20_000_000
    assert bytes_of(archive, "checkpoint", "value") < 900_000
    assert all(len(archive.read(key)) < 40_000 for key in archive.keys_of("checkpoint"))


def test_two_levels() -> None:
    """A patch in a payload builds on a middle value, that on a key value, and nothing on a third."""
    archive = MemoryArchive()
    talk(archive.open(), 90)
    depths: Counter[tuple[bool, int]] = Counter()
    for number in range(90):
        entry = entry_of(archive, f"{number:04}", "messages")
        depths[entry.offset is not None, len(entry.values)] += 1
        assert entry.size < 30_000 or not entry.values
    # Inline, the first key value, patches against a key value and against a middle value.
    assert depths.keys() == {(True, 0), (False, 1), (True, 1), (True, 2)}
    assert depths[True, 2] > depths[True, 1]
    # Key and middle values, fewer than one in four steps, and the document.
    assert 3 < len(archive.keys_of("value")) < 20


def test_rounds_of_a_chat() -> None:
    """A put is one round in nine of ten steps, and three at most; the document goes up once."""
    archive = MemoryArchive()
    saver = archive.open()
    rounds: list[int] = []
    last = None
    for number in range(63):
        saver.driver.rounds.clear()
        values = {"messages": MESSAGES[: number + 1], "documents": DOCUMENT}
        changed = ("messages",) if last else ("messages", "documents")
        last = put(saver, id=f"{number:04}", parent=last, values=values, changed=changed)
        rounds.append(len(saver.driver.rounds))
    assert sum(count == 1 for count in rounds) >= 0.9 * len(rounds)
    assert max(rounds) <= 3
    reader = archive.open()
    reader.get_tuple(config())
    assert len(reader.driver.rounds) == 3


def test_who_resumes_builds_on_what_it_read() -> None:
    """After a read of the newest checkpoint, a put in a new process is one round and a patch."""
    archive = MemoryArchive()
    last = found(archive.open(), talk(archive.open(), 40)[-1])
    saver = archive.open()
    saver.get_tuple(config())
    saver.driver.rounds.clear()
    values = {"messages": MESSAGES[:41], "documents": DOCUMENT}
    saver.put(last.config, checkpoint_after(last, values), {"source": "loop"}, {"messages": "2"})
    assert [type(request) for round_ in saver.driver.rounds for request in round_][:1] == [PutRequest]
    assert len(saver.driver.rounds) == 1
    assert entry_of(archive, "9000", "messages").values
    assert_after(archive, values)


def test_who_did_not_read_fetches_what_it_builds_on() -> None:
    """A process that knows nothing reads the parent, and what its value is made of, in a round each."""
    archive = MemoryArchive()
    last = found(archive.open(), talk(archive.open(), 40)[-1])
    saver = archive.open()
    values = {"messages": MESSAGES[:41], "documents": DOCUMENT}
    saver.put(last.config, checkpoint_after(last, values), {"source": "loop"}, {"messages": "2"})
    gets = [[request.key for request in round_ if isinstance(request, Get)] for round_ in saver.driver.rounds]
    assert [len(keys) for keys in gets] == [1, 2, 0]
    assert entry_of(archive, "9000", "messages").size > 0
    assert_after(archive, values)


def checkpoint_after(last: Any, values: dict[str, Any]) -> Any:
    versions = last.checkpoint["channel_versions"] | {"messages": "2"}
    return last.checkpoint | {"id": "9000", "channel_values": values, "channel_versions": versions}


def assert_after(archive: Archive, values: dict[str, Any]) -> None:
    assert values_at(archive.open(), config("t", "", "9000")) == values


def test_an_unchanged_patch_becomes_a_reference() -> None:
    """Where a value that went up beside a checkpoint is the next one's too, it leaves the payloads."""
    archive = MemoryArchive()
    saver = archive.open()
    last = None
    for number in range(60):
        values = {"messages": MESSAGES[: number + 1], "k": 0}
        last = put(saver, id=f"{number:04}", parent=last, values=values, changed=("messages",) if last else None)
        before = len(archive.keys_of("value"))
        values = {"messages": MESSAGES[: number + 1], "k": number}
        last = put(saver, id=f"{number:04}a", parent=last, values=values, changed=("k",))
        assert len(archive.keys_of("value")) == before
    entries = [entry_of(archive, f"{number:04}a", "messages") for number in range(60)]
    assert sum(entry.offset is None for entry in entries) > 3
    for number in range(60):
        assert values_at(archive.open(), config("t", "", f"{number:04}a"))["messages"] == MESSAGES[: number + 1]


def test_forks_build_on_their_own_parent() -> None:
    """Two branches of one parent grow apart; each reads its own messages."""
    archive = MemoryArchive()
    saver = archive.open()
    talk(saver, 30)
    fork = found(saver, config("t", "", "0029"))
    for branch in "ab":
        last: Any = fork
        for number in range(20):
            values = {"messages": [*MESSAGES[:30], *[f"{branch} {n} {MESSAGES[n]}" for n in range(number + 1)]]}
            checkpoint = last.checkpoint | {
                "id": f"1{branch}{number:02}",
                "channel_values": values | {"documents": DOCUMENT},
                "channel_versions": fork.checkpoint["channel_versions"] | {"messages": f"{number + 2}"},
            }
            where = saver.put(last.config, checkpoint, {"source": "loop"}, {"messages": f"{number + 2}"})
            last = found(saver, where)
    reader = archive.open()
    for branch in "ab":
        for number in range(20):
            messages = values_at(reader, config("t", "", f"1{branch}{number:02}"))["messages"]
            assert messages == [*MESSAGES[:30], *[f"{branch} {n} {MESSAGES[n]}" for n in range(number + 1)]]


def test_a_value_that_has_nothing_in_common_is_stored_whole() -> None:
    """Where a patch would save little, a new key value goes before the checkpoint."""
    archive = MemoryArchive()
    saver = archive.open()
    last = None
    for number in range(4):
        noise = random.Random(number).randbytes(200_000)
        last = put(saver, id=str(number), parent=last, values={"own": noise}, changed=("own",))
        entry = entry_of(archive, str(number), "own")
        assert (entry.offset, len(entry.values)) == (None, 1)
    assert len(archive.keys_of("value")) == 4
    for number in range(4):
        assert values_at(archive.open(), config("t", "", str(number)))["own"] == random.Random(number).randbytes(
            200_000
        )


def test_a_value_of_another_type_is_no_base() -> None:
    """Bytes do not build on text, and text does not build on bytes."""
    archive = MemoryArchive()
    saver = archive.open()
    first = put(saver, id="1", values={"own": DOCUMENT})
    put(saver, id="2", parent=first, values={"own": DOCUMENT.encode()})
    assert entry_of(archive, "2", "own").offset is None
    assert values_at(archive.open(), config()) == {"own": DOCUMENT.encode()}


def test_encrypted_values_are_never_patched() -> None:
    """They have nothing in common with the bytes before; unchanged they are referred to all the same."""
    archive = MemoryArchive()
    saver = archive.open(serde=EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef"))
    talk(saver, 30)
    entries = [entry_of(archive, f"{number:04}", "messages") for number in range(30)]
    assert not any(entry.offset is not None and entry.values for entry in entries)
    assert len({entry_of(archive, f"{number:04}", "documents").values for number in range(30)}) == 1
    reader = archive.open(serde=EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef"))
    assert_whole(reader, list(range(30)))


# What goes, and what stays


@on_a_real_server
def test_prune_copy_and_run_deletion_keep_what_is_needed(archive: Archive) -> None:
    """After each of them every checkpoint that stays reads exactly as it was put, also when values are swept."""
    saver = archive.open()
    talk(saver, 60, run_every=20)
    saver.copy_thread("t", "copy")
    assert_whole(archive.open(), list(range(60)), "copy")
    saver.delete_for_runs(["run 1"])
    stay = [*range(20), *range(40, 60)]
    assert_whole(archive.open(), stay, "t")
    saver.prune(["t", "copy"], strategy="keep_last", keep=7, exclusive=True)
    assert_whole(archive.open(), list(range(53, 60)), "t")
    assert_whole(archive.open(), list(range(53, 60)), "copy")
    saver.prune(["t"], exclusive=True)
    assert_whole(archive.open(), [59], "t")
    names = [key for key in archive.keys_of("value") if "thread_id=t/" in key]
    assert len(names) == len({name for c in ("messages", "documents") for name in entry_of(archive, "0059", c).values})


def test_who_goes_on_after_an_exclusive_prune() -> None:
    """What went up beside a checkpoint may be swept; a run that begins then builds on what the checkpoint needs."""
    for steps in range(36, 60):
        archive = MemoryArchive()
        saver = archive.open()
        where = talk(saver, steps)[-1]
        archive.open().prune(["t"], exclusive=True)
        last = found(saver, where)
        values = {"messages": MESSAGES[: steps + 1], "documents": DOCUMENT}
        saver.put(where, checkpoint_after(last, values), {"source": "loop"}, {"messages": "2"})
        assert_after(archive, values)


def test_a_parent_that_is_gone_is_no_base() -> None:
    """Where the parent was removed since, values are stored anew, whole, from the bytes that there are."""
    archive = MemoryArchive()
    saver = archive.open()
    talk(saver, 45)
    archive.bucket.clock_ms += 1_900_000
    for key in [*archive.keys_of("checkpoint")]:
        archive.remove(key)
    put(saver, id="0045", parent=None, values={"k": 1})
    last = found_or_none(saver)
    assert last is not None
    values = {"messages": MESSAGES[:46], "documents": DOCUMENT}
    checkpoint = last.checkpoint | {
        "id": "9000",
        "channel_values": values | {"documents": "not what the parent has"},
        "channel_versions": {"messages": "2", "documents": "1"},
    }
    saver.put(config("t", "", "0044"), checkpoint, {"source": "loop"}, {"messages": "2"})
    assert entry_of(archive, "9000", "messages").offset is None
    assert values_at(archive.open(), config("t", "", "9000"))["messages"] == MESSAGES[:46]


def found_or_none(saver: Any) -> Any:
    return saver.get_tuple(config())


def test_the_same_content_in_other_places_is_the_same() -> None:
    """A put that is repeated by another process lays values out differently: it is a success, other content is not."""
    archive = MemoryArchive()
    saver = archive.open()
    talk(saver, 45)
    again = archive.open()
    values = {"messages": MESSAGES[:45], "documents": DOCUMENT}
    parent = found(again, config("t", "", "0043"))
    stored = found(again, config("t", "", "0044"))
    before = archive.keys_of("checkpoint")
    fresh = archive.open()
    fresh.put(parent.config, stored.checkpoint, stored.metadata, {"messages": "x"})
    assert archive.keys_of("checkpoint") == before
    changed = stored.checkpoint | {"channel_values": values | {"messages": [*MESSAGES[:44], "other"]}}
    with pytest.raises(CheckpointConflictError):
        archive.open().put(parent.config, changed, stored.metadata, {"messages": "x"})


# What goes wrong


@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("damage", ["lost", "cut", "another", "swapped"])
def test_a_damaged_base_is_found_out(level: int, damage: str) -> None:
    """Whichever of the two objects is lost or wrong, the read says so and names it; it never guesses."""
    archive = MemoryArchive()
    talk(archive.open(), 60)
    names = entry_of(archive, "0059", "messages").values
    assert len(names) == 2
    key = archive.layout.value("t", names[level])
    if damage == "lost":
        archive.remove(key)
    elif damage == "cut":
        archive.write(key, archive.read(key)[:-5])
    elif damage == "another":
        archive.write(key, archive.read(archive.layout.value("t", entry_of(archive, "0059", "documents").values[0])))
    else:
        archive.write(key, archive.read(archive.layout.value("t", names[1 - level])))
    with pytest.raises(CorruptObjectError, match=names[level]):
        archive.open().get_tuple(config())
    assert values_at(archive.open(), config("t", "", "0003"))["messages"] == MESSAGES[:4]


def test_a_value_beside_that_fails_hurts_nobody() -> None:
    """Whichever request of a put fails, the call raises and can be repeated, or has stored the checkpoint."""
    for after in (False, True):
        raised = 0
        for step in range(30, 50):
            for number in range(4):
                bucket = FailingBucket()
                archive = MemoryArchive(bucket=bucket)
                saver = archive.open()
                last = found(saver, talk(saver, step)[-1])
                values = {"messages": MESSAGES[: step + 1], "documents": DOCUMENT}
                arguments = (last.config, checkpoint_after(last, values), {"source": "loop"}, {"messages": "2"})
                bucket.arm(number, after=after)
                try:
                    saver.put(*arguments)
                except StoreUnavailableError:
                    raised += 1
                    bucket.arm(None)
                    saver.put(*arguments)
                bucket.arm(None)
                assert_after(archive, values)
        assert raised


def test_memory_of_values_is_bounded() -> None:
    """What is remembered of large values has a bound, however many threads a saver serves."""
    archive = MemoryArchive()
    saver = archive.open()
    for number in range(40):
        put(saver, f"t{number}", id="1", values={"own": random.Random(number).randbytes(4_000_000)})
    cache = saver._shared.cache
    assert sum(len(raw) for raw in cache._values.values()) == cache._value_bytes <= 64 * 2**20
    assert values_at(saver, config("t0"))["own"] == random.Random(0).randbytes(4_000_000)
