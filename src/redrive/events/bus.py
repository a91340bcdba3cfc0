"""The event bus: writes the execution log, one line per attempt, and passes events to hooks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import fields

from redrive._internal.masked_errors import masked_traceback
from redrive.classify.signals import is_interrupt
from redrive.events.log_lines import fields_of, line_of
from redrive.model.calls import Attempt, CallFailed, Event, Kind, format_duration
from redrive.model.tasks import TaskEnded

Hook = Callable[[Event], None]

ATTEMPTS = logging.getLogger("redrive.attempts")
EVENTS = logging.getLogger("redrive.events")

_FIELDS = tuple(field.name for field in fields(Attempt))
_ATTEMPTS = (Attempt, TaskEnded)

# Hooks for every service and run of the program, called after a service's own.
everywhere: list[Hook] = []


def on_event(hook: Hook) -> Callable[[], None]:
    """Call `hook` with every event of every service and every run; return the function that ends it."""
    if not callable(hook):
        raise TypeError(f"on_event needs a function that takes an event, not {type(hook).__name__}")
    everywhere.append(hook)
    return lambda: everywhere.remove(hook) if hook in everywhere else None


def _is_logged(event: CallFailed) -> bool:
    """Return whether the event is logged: the text of a failure costs time, and most programs do not log at DEBUG."""
    return EVENTS.isEnabledFor(logging.ERROR if event.exhausted else logging.DEBUG)


class EventBus:
    """Publishes the events of one service or one pipeline: to its own hook, to listeners, and to global hooks."""

    __slots__ = ("hooks", "listeners")

    def __init__(self, hook: Hook | None) -> None:
        if hook is not None and not callable(hook):
            raise TypeError(f"on_event needs a function that takes an event, not {type(hook).__name__}")
        self.hooks: tuple[Hook, ...] = () if hook is None else (hook,)
        self.listeners: tuple[Hook, ...] = ()

    def with_listeners(self, listeners: Iterable[Hook]) -> EventBus:
        """Return a bus with the same hooks and these listeners."""
        bus = EventBus(None)
        bus.hooks, bus.listeners = self.hooks, tuple(listeners)
        return bus

    @property
    def has_hooks(self) -> bool:
        """Return whether a user's hook is registered: events that come by the thousand are only made for a hook."""
        return bool(self.hooks or everywhere)

    def event(self, event: Event) -> None:
        """Log an event that is not an attempt, and call the hooks. A hook that raises is logged and harms no other."""
        quiet = isinstance(event, _ATTEMPTS) or (type(event) is CallFailed and not _is_logged(event))
        if not quiet:
            level, sentence = line_of(event)
            if EVENTS.isEnabledFor(level):
                EVENTS.log(level, "%s", sentence, extra=fields_of(event))
        for hook in (*self.hooks, *self.listeners, *everywhere):
            try:
                hook(event)
            except Exception as error:
                if is_interrupt(error):
                    raise
                EVENTS.error("an on_event hook failed on %s\n%s", type(event).__name__, masked_traceback(error))

    def attempt(self, attempt: Attempt) -> None:
        """Log one attempt, then call the hooks."""
        fine, sent = attempt.outcome == "success", attempt.elapsed_s is not None
        # Calls that an open circuit rejects come by the thousand; the opening itself was logged once, as an event.
        level = logging.INFO if fine or not sent else logging.WARNING
        if ATTEMPTS.isEnabledFor(level):
            what = attempt.status or attempt.error or ("ok" if fine else "not sent")
            key = "" if attempt.key_id is None else f" with key …{attempt.key_id}"
            after = "" if attempt.attempt == 1 or not sent else f", {attempt.elapsed_s:.1f} s since the call began"
            if attempt.wait_s is not None:
                after += (
                    f", next in {attempt.wait_s:.2f} s" if sent else f", retry in {format_duration(attempt.wait_s)}"
                )
            ATTEMPTS.log(
                level,
                "%s %s attempt %d%s: %s (%s) in %.1f ms%s",
                attempt.service,
                attempt.subject,
                attempt.attempt,
                key,
                "rejected" if attempt.outcome == Kind.ROW else attempt.outcome,  # a call has no rows
                what,
                attempt.latency_ms,
                after,
                extra={name: getattr(attempt, name) for name in _FIELDS},
            )
        self.event(attempt)
