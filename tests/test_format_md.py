"""The written format is the format: its examples run, its tables and limits are the code's."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import ormsgpack
import pyarrow as pa
import pytest
import zstandard
from damage import type_of
from golden_objects import FOLDER, SMALLEST

import manifests
from manifests import checkpoints, encode_checkpoint, frames, keys, removals, segments, structure, values, writes
from manifests.checkpoints import header_length
from s3_saver.operations import indexing
from s3_saver.settings import GRACE

LAW = Path(manifests.__file__).parent / "FORMAT.md"
TEXT = LAW.read_text("utf-8")


def table_of(title: str) -> list[list[str]]:
    """The cells of the table in the section with this title, without its head."""
    section = re.search(rf"^## \d+\. {re.escape(title)}\n(.*?)(?:^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert section is not None
    table = re.findall(r"(?:^\|.*\n)+", section[1], re.MULTILINE)[-1]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All Python examples run, one after another, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    blocks = [
        (TEXT[: match.start(1)].count("\n"), match[1])
        for match in re.finditer(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    ]
    assert len(blocks) >= 8
    names: dict[str, object] = {}
    for line, block in blocks:
        # Blank lines before a block give its errors the line that it has in the file.
        exec(compile("\n" * line + block, str(LAW), "exec"), names)
    assert names["data"] == (FOLDER / "smallest.checkpoint.msgpack").read_bytes()


def test_every_header_field_is_described() -> None:
    """The table of the header has exactly the fields that are written, in their order."""
    body = encode_checkpoint(SMALLEST.header, SMALLEST.payload)
    header = ormsgpack.unpackb(zstandard.decompress(body[9 : header_length(body, key="k")]))
    assert (
        [row[0].strip("`") for row in table_of("The checkpoint object")]
        == list(header)
        == list(manifests.Header.__slots__)
    )


@pytest.mark.parametrize(
    ("title", "schema"),
    [
        ("The writes batch", writes.SCHEMA),
        ("The manifest", segments.SCHEMA),
        ("Removal records", removals.SCHEMA),
    ],
)
def test_every_column_is_described(title: str, schema: pa.Schema) -> None:
    """The table of each kind of Parquet object has exactly the columns that are written, with their ids and types."""
    assert [(row[0], row[1].strip("`"), row[2]) for row in table_of(title)] == [
        (
            field.metadata[b"PARQUET:field_id"].decode(),
            field.name,
            f"{type_of(field)}, nullable" if field.nullable else type_of(field),
        )
        for field in schema
    ]


def test_limits_are_the_codes() -> None:
    """Each limit that the text names is the one that holds."""
    text = " ".join(TEXT.split())
    for said in (
        f"`{{R}}` would be longer than {keys.THREAD_BYTES_MAX} bytes, or `{{N}}` than {keys.NAMESPACE_BYTES_MAX}",
        f"at most {keys.PREFIX_BYTES_MAX} bytes of UTF-8, `{{ID}}` at most {keys.ID_BYTES_MAX} bytes",
        f"over {structure.PROJECTED_BYTES_MAX:,} bytes",
        f"`{checkpoints.CHECKPOINT_MAGIC.decode()}`",
        f"| 4 | `{values.VALUE_MAGIC.decode()}` | | 1 | the format, `{frames.FORMAT:02x}` |",
        f"have at most {2 * frames.PATCHED_BYTES_MAX // 2**20} MiB",
        f"first {checkpoints.HEADER_GUESS_BYTES // 1024} KiB",
        *(f"`s3_saver.{{kind}}.format`: `{kind.FORMAT}`" for kind in (writes, segments, removals)),
        f"index the last {indexing.EVERY} checkpoints",
        "**The grace period** is one hour" if timedelta(hours=1) == GRACE else "another grace period",
        ", ".join(f"`{name}`" for name in checkpoints.STRUCTURE),
    ):
        assert said in text


def test_every_kind_of_key_is_described() -> None:
    """The forms at the head of the key module are those of the text."""
    forms = re.findall(r"^    (\{prefix\}\S+)$", keys.__doc__ or "", re.MULTILINE)
    assert len(forms) == 11
    assert re.findall(r"^(\{prefix\}\S+)", TEXT, re.MULTILINE) == forms


def test_the_law_is_shipped() -> None:
    """The text lies inside the package, so every installation has it."""
    assert LAW.is_file()
    assert "FORMAT.md" in (manifests.__doc__ or "")
