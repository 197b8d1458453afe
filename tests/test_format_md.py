"""The written format is the format: its examples run, its tables and limits are the code's."""

from __future__ import annotations

import re
from pathlib import Path

import ormsgpack
import pytest
import zstandard
from golden_objects import FOLDER, SMALLEST

import manifests
from manifests import checkpoints, encode_checkpoint, keys, structure, writes
from manifests.checkpoints import header_length

LAW = Path(manifests.__file__).parent / "FORMAT.md"
TEXT = LAW.read_text("utf-8")


def tables() -> list[list[list[str]]]:
    """The cells of each table, without its head."""
    found = re.findall(r"(?:^\|.*\n)+", TEXT, re.MULTILINE)
    return [
        [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]] for table in found
    ]


def test_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All Python examples run, one after another, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    blocks = [
        (TEXT[: match.start(1)].count("\n"), match[1])
        for match in re.finditer(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    ]
    assert len(blocks) >= 7
    names: dict[str, object] = {}
    for line, block in blocks:
        # Blank lines before a block give its errors the line that it has in the file.
        exec(compile("\n" * line + block, str(LAW), "exec"), names)
    assert names["data"] == (FOLDER / "smallest.checkpoint.msgpack").read_bytes()


def test_every_header_field_is_described() -> None:
    """The table of the header has exactly the fields that are written, in their order."""
    body = encode_checkpoint(SMALLEST.header, SMALLEST.payload)
    header = ormsgpack.unpackb(zstandard.decompress(body[9 : header_length(body, key="k")]))
    described = next(table for table in tables() if table[0][0] == "`namespace`")
    assert [row[0].strip("`") for row in described] == list(header) == list(manifests.Header.__slots__)


def test_every_column_is_described() -> None:
    """The table of the batch has exactly the columns that are written, with their ids and types."""
    described = next(table for table in tables() if table[0][0] == "1")
    assert [(row[0], row[1].strip("`"), row[2]) for row in described] == [
        (
            field.metadata[b"PARQUET:field_id"].decode(),
            field.name,
            f"{field.type}, nullable" if field.nullable else str(field.type),
        )
        for field in writes.SCHEMA
    ]


def test_limits_are_the_codes() -> None:
    """Each limit that the text names is the one that holds."""
    text = " ".join(TEXT.split())
    for said in (
        f"`{{R}}` would be longer than {keys.THREAD_BYTES_MAX} bytes, or `{{N}}` than {keys.NAMESPACE_BYTES_MAX}",
        f"at most {keys.PREFIX_BYTES_MAX} bytes of UTF-8, `{{ID}}` at most {keys.ID_BYTES_MAX} bytes",
        f"over {structure.PROJECTED_BYTES_MAX:,} bytes",
        f"`{checkpoints.CHECKPOINT_MAGIC.decode()}`",
        f"`{checkpoints.VALUE_MAGIC.decode()}`, the format byte `{checkpoints.FORMAT:02x}`",
        f"first {checkpoints.HEADER_GUESS_BYTES // 1024} KiB",
        f"`s3_saver.writes.format`: `{writes.FORMAT}`",
        ", ".join(f"`{name}`" for name in checkpoints.STRUCTURE),
    ):
        assert said in text


def test_every_kind_of_key_is_described() -> None:
    """The forms at the head of the key module are those of the text."""
    forms = re.findall(r"^    (\{prefix\}\S+)$", keys.__doc__ or "", re.MULTILINE)
    assert len(forms) == 7
    assert re.findall(r"^(\{prefix\}\S+)", TEXT, re.MULTILINE) == forms


def test_the_law_is_shipped() -> None:
    """The text lies inside the package, so every installation has it."""
    assert LAW.is_file()
    assert "FORMAT.md" in (manifests.__doc__ or "")
