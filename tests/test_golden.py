"""Objects of a released format are read for ever, and give what they always gave."""

from __future__ import annotations

import hashlib
import json

import pytest
from golden_objects import CHECKPOINTS, FOLDER, KEYS, REMOVALS, SEGMENTS, VALUE_FILES, VALUES, WRITES, made

from manifests import decode_checkpoint, decode_value, decode_writes, resolver, value_of
from manifests.removals import decode_removals
from manifests.segments import decode_segment, rows_in

# Never edit a line of these. A new format gets a folder, a list and a reader of its own.
SHA256 = {
    "smallest.checkpoint.msgpack": "2fa380a4db512c388fdcddddaff6161bb2c3203218c31b442ec20be4ea64a5ef",
    "full.checkpoint.msgpack": "2b5157dc7512cbc5853c6d5bbe99699a5002164965c489dfd07b3bafed190507",
    "document.value.bin": "e1e5f5e7557f2bebe6c9ee3c71658664a9151435731008270ebc65532fe9c055",
    "grown.value.bin": "186ebe6546ab99fa2f63390fff60cff757183eb84055175b99f9ca4ad2034feb",
    "empty.value.bin": "675eb310959df23bb010ac75b897c62c42ca9ac5f23847035614a5fddcb54729",
    "one.writes.parquet": "f30956ac320c70adecd8bf2f570810ca65d97a61b7f9eec8364645fb2109f76d",
    "many.writes.parquet": "37e2c8a7d0fcc405d21c8a43f1557a706efac80496c0600319b0c351a34bee83",
    "mixed.manifest.parquet": "119fbed869f1b8ddce66daeee0926b8c86d04fdd9f44aed501dbebb96f8c931e",
    "mixed.removals.parquet": "d2f4f39ac99047178553b631e96e1720d05e2a0621cef828a88783c6110d460d",
    "keys.json": "9f2d3386588cbfef7a43ecc7883fea6b8911c4a022e08254ca8efbb7ded41d69",
}


def test_golden_files_never_change() -> None:
    """Each file has the digest that it had when it was made, and none was added or lost."""
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in FOLDER.iterdir()} == SHA256


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_checkpoints_give_what_they_gave(name: str) -> None:
    """Header, payload and digest of a golden checkpoint object are the recorded ones."""
    data = (FOLDER / name).read_bytes()
    found = decode_checkpoint(data, key=name)
    assert (found.header, found.payload) == (CHECKPOINTS[name].header, CHECKPOINTS[name].payload)
    assert found.sha256 == bytes.fromhex(SHA256[name])


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_values_of_golden_checkpoints_have_their_digests(name: str) -> None:
    """Every value of a golden checkpoint is found, inline, in its value object, or by patches."""
    found = decode_checkpoint((FOLDER / name).read_bytes(), key=name)
    objects = {value: (FOLDER / VALUE_FILES[value]).read_bytes() for value in found.header.values}
    for channel, entry in found.header.channels.items():
        data = value_of(found, channel, resolver(objects, key=name), key=name)
        assert len(data) == entry.length


@pytest.mark.parametrize("name", VALUES)
def test_value_objects_give_what_they_gave(name: str) -> None:
    """A golden value object gives the recorded bytes."""
    data, base = VALUES[name]
    assert decode_value((FOLDER / name).read_bytes(), base, key=name) == data


@pytest.mark.parametrize("name", WRITES)
def test_writes_give_what_they_gave(name: str) -> None:
    """A golden writes batch gives the recorded rows."""
    namespace, checkpoint_id, rows = WRITES[name]
    data = (FOLDER / name).read_bytes()
    assert decode_writes(data, key=name, namespace=namespace, checkpoint_id=checkpoint_id) == rows


@pytest.mark.parametrize("name", SEGMENTS)
def test_segments_give_what_they_gave(name: str) -> None:
    """A golden segment of a manifest gives the recorded rows."""
    assert list(rows_in(decode_segment((FOLDER / name).read_bytes(), key=name))) == SEGMENTS[name]


@pytest.mark.parametrize("name", REMOVALS)
def test_removal_records_give_what_they_gave(name: str) -> None:
    """A golden removal record gives the recorded removals."""
    assert decode_removals((FOLDER / name).read_bytes(), key=name) == REMOVALS[name]


def test_keys_are_built_as_they_were() -> None:
    """Every golden key is built again letter by letter; another spelling would lose what is stored."""
    assert {name: build() for name, build in KEYS.items()} == json.loads((FOLDER / "keys.json").read_text("utf-8"))


def test_todays_writer_makes_what_readers_of_the_golden_objects_know() -> None:
    """Objects made now have the golden ones' beginnings; their bytes may differ with the compressor's release."""
    for name, data in made().items():
        assert data[:5] == (FOLDER / name).read_bytes()[:5]
