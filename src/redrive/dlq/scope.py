"""Which letters a target may be sent: its own pipeline's, unless others are asked for."""

from __future__ import annotations

from collections.abc import Mapping

from redrive.dlq.filters import Filter
from redrive.dlq.target import Target
from redrive.errors import LetterError

_MOST_NAMED = 5


def scoped(target: Target, chosen: Filter, *, any_pipeline: bool) -> Filter:
    """Return the filter of the letters that the target may be sent.

    A pipeline takes its own letters. A function has no pipeline, so the caller must say which letters it is for.
    """
    if any_pipeline or chosen.pipeline is not None:
        return chosen
    if target.pipeline is not None:
        return chosen.but(pipeline=(target.pipeline,))
    if chosen == Filter(status=chosen.status):
        raise LetterError(
            "the target is a function, and a replay without a filter would send it the letters of every pipeline; "
            "pass pipeline= (--pipeline) or another filter, or any_pipeline=True (--any-pipeline)"
        )
    return chosen


def must_be_one_pipeline(by_pipeline: Mapping[str, int]) -> None:
    """Refuse to send the letters of several pipelines to one function that nobody said takes them all."""
    if len(by_pipeline) > 1:
        raise LetterError(
            f"the selected letters belong to {len(by_pipeline)} pipelines ({named(by_pipeline)}); pass pipeline= "
            "(--pipeline) for each one that the target takes, or any_pipeline=True (--any-pipeline). "
            "Nothing was changed"
        )


def must_be_its_own(target: Target, others: Mapping[str, int]) -> None:
    """Refuse letters that were named by id and belong to other pipelines than the target."""
    if others:
        raise LetterError(
            f"{sum(others.values()):,} of the named letters belong to other pipelines ({named(others)}), not to "
            f"{target.pipeline!r}; pass any_pipeline=True (--any-pipeline) if the target takes them. "
            "Nothing was changed"
        )


def must_be_records(dead_tasks: Mapping[str, str]) -> None:
    """Refuse the letters of dead tasks: a target would be sent their input, and the task itself would stay dead.

    Args:
        dead_tasks: their runs, each with the name of its flow.
    """
    if dead_tasks:
        run, flow = next(iter(dead_tasks.items()))
        raise LetterError(
            f"among the selected letters are dead tasks of the flow {flow!r}, which a replay does not run; use "
            f"`redrive tasks retry --run {run}`, and select other letters by pipeline or error type. "
            "Nothing was changed"
        )


def named(by_pipeline: Mapping[str, int]) -> str:
    """Return pipelines with their number of letters, for a message."""
    most = sorted(by_pipeline.items(), key=lambda pair: (-pair[1], pair[0]))
    listed = ", ".join(f"{name}: {count:,}" for name, count in most[:_MOST_NAMED])
    return listed + (", …" if len(most) > _MOST_NAMED else "")
