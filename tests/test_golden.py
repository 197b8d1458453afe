"""Objects of a released format are read for ever, and give what they always gave."""

from __future__ import annotations

import hashlib
import json

import pytest
from golden_objects import CHECKPOINTS, FOLDER, KEYS, REMOVALS, SEGMENTS, VALUES, WRITES, made

from manifests import check_digest, decode_checkpoint, decode_value, decode_writes
from manifests.removals import decode_removals
from manifests.segments import decode_segment, rows_in

# Never edit a line of these. A new format gets a folder, a list and a reader of its own.
SHA256 = {
    "smallest.checkpoint.msgpack": "a405b919818809424093f611d4eea95fbb05b0094d5c29b03fa806e31fc82739",
    "full.checkpoint.msgpack": "13ab301568ff3851a093d02fff2b5c6d17916bce74b7e02665cbf181cf0f2ad9",
    "document.value.bin": "0826466ae18d56f9b4ba1a2a495d0f9afd9d17fba0185a16978027d2f516878b",
    "empty.value.bin": "f1a655e247f13c94638088a23bf275e554b3ea4c7984abe6f3ea08a63fb86a65",
    "one.writes.parquet": "f30956ac320c70adecd8bf2f570810ca65d97a61b7f9eec8364645fb2109f76d",
    "many.writes.parquet": "37e2c8a7d0fcc405d21c8a43f1557a706efac80496c0600319b0c351a34bee83",
    "mixed.manifest.parquet": "119fbed869f1b8ddce66daeee0926b8c86d04fdd9f44aed501dbebb96f8c931e",
    "mixed.removals.parquet": "d2f4f39ac99047178553b631e96e1720d05e2a0621cef828a88783c6110d460d",
    "keys.json": "550561869b9ecad5db5830906e946ec6bef1cf57b69503e34d2809617563fbd5",
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
    """Every value of a golden checkpoint is found, inline or in its value object."""
    found = decode_checkpoint((FOLDER / name).read_bytes(), key=name)
    for channel, entry in found.header.channels.items():
        data = VALUES["document.value.bin"] if entry.value else found.inline(entry)
        assert len(check_digest(data, entry, channel=channel, key=name)) == entry.length


@pytest.mark.parametrize("name", VALUES)
def test_value_objects_give_what_they_gave(name: str) -> None:
    """A golden value object gives the recorded bytes."""
    assert decode_value((FOLDER / name).read_bytes(), key=name) == VALUES[name]


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
