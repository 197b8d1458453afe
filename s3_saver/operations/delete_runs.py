"""Removing the checkpoints of runs, in all threads, found through the runs' markers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from manifests.keys import Layout, run_part
from manifests.segments import Row
from s3_saver.bucket import every
from s3_saver.operations.keep import Writes, needed_by
from s3_saver.operations.listing import all_keys
from s3_saver.operations.prune import by_namespace
from s3_saver.operations.removing import Doomed, remove, sweep
from s3_saver.operations.survey import LINKS, Describe, index

# The run that a checkpoint belongs to: its metadata's, decoded where the manifest may not say.
RunOf = Callable[[Row], str | None]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A thread that was left alone, and why."""

    thread: str
    why: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened in one thread: refused, or done but for the keys that stayed."""

    refusal: Refusal | None
    failed: dict[str, str]


async def threads_of_runs(layout: Layout, run_ids: Collection[str]) -> list[str]:
    """The folders of the threads that the runs wrote to. One round where each run has fewer than 1,000 threads."""
    # Where metadata is encrypted, the run stands in keys as a hash.
    parts = {run_part(run_id, hidden=hidden) for run_id in run_ids for hidden in (False, True)}
    listed = await every(all_keys(layout.markers(part)) for part in sorted(parts))
    threads = {layout.parse(item.key).thread for keys in listed for item in keys if layout.kind(item.key) == "marker"}
    return [layout.thread_folder(thread) for thread in sorted(threads)]


async def delete_runs_in(
    layout: Layout,
    thread_folder: str,
    run_ids: Collection[str],
    describe: Describe,
    run_of: RunOf,
    *,
    grace_seconds: float,
    uniques: Iterator[str],
) -> Outcome:
    """Remove the runs' checkpoints and their writes from one thread, or nothing where a survivor needs one of them."""
    found = await index(layout, thread_folder, describe)
    thread = layout.thread_part(thread_folder)
    if found.survey.of("copying"):
        return Outcome(Refusal(thread, "a copy into it has not ended"), {})
    runs = {folder: run_of(row) for folder, row in found.rows((*LINKS, "metadata"))}
    doomed: list[Doomed] = []
    for namespace, members in by_namespace(found).items():
        gone = {name for name, item in members.items() if runs[item.folder] in run_ids}
        survivor = max(members.keys() - gone, default=None)
        if gone and survivor is not None:
            needs = sorted((await needed_by(members, survivor, Writes())).keys() & gone)
            if needs:
                why = f"in namespace {namespace!r} checkpoint {survivor!r} would stay, which needs {needs[0]!r}"
                return Outcome(Refusal(thread, why), {})
        doomed += [Doomed(members[name], f"run {runs[members[name].folder]}") for name in sorted(gone)]
    # A deletion that was killed may have left writes of checkpoints that are gone already.
    if not doomed and not found.survey.of("removal"):
        return Outcome(None, {})
    failed = await remove(thread_folder, doomed, grace_seconds=grace_seconds, uniques=uniques)
    swept = await sweep(layout, thread_folder, describe, grace_seconds=grace_seconds)
    return Outcome(None, {**failed, **swept.failed})
