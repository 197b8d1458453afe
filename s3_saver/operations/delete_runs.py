"""Removing the checkpoints of runs, in all threads, found through the runs' markers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from manifests.keys import Layout, run_part
from manifests.segments import Row
from s3_saver.bucket import every
from s3_saver.operations.excluding import Refused, remove_and_sweep
from s3_saver.operations.keep import Writes, by_namespace, needed_by
from s3_saver.operations.listing import all_keys
from s3_saver.operations.removing import Doomed
from s3_saver.operations.survey import LINKS, Describe, Index

# The run that a checkpoint belongs to: its metadata's, decoded where the manifest may not say.
RunOf = Callable[[Row], str | None]


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
    grace_ms: int,
    uniques: Iterator[str],
) -> dict[str, str]:
    """Remove the runs' checkpoints and their writes from one thread. Returns the keys that stayed.

    Raises `Refused`, with nothing removed, where a survivor needs one of them or a copy into the thread is under way.
    """

    async def decide(found: Index) -> list[Doomed]:
        return await _doomed(found, run_ids, run_of)

    removed = await remove_and_sweep(layout, thread_folder, describe, decide, grace_ms=grace_ms, uniques=uniques)
    return removed.failed


async def _doomed(found: Index, run_ids: Collection[str], run_of: RunOf) -> list[Doomed]:
    runs = {folder: run_of(row) for folder, row in found.rows((*LINKS, "metadata"))}
    doomed: list[Doomed] = []
    for namespace, members in by_namespace(found).items():
        gone = {name for name, item in members.items() if runs[item.folder] in run_ids}
        survivor = max(members.keys() - gone, default=None)
        if gone and survivor is not None:
            needs = sorted((await needed_by(members, survivor, Writes())).keys() & gone)
            if needs:
                raise Refused(
                    f"in namespace {namespace!r} checkpoint {survivor!r} would stay, which needs {needs[0]!r}"
                )
        doomed += [Doomed(members[name], f"run {runs[members[name].folder]}") for name in sorted(gone)]
    return doomed
