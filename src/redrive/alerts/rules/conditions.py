"""Rules on conditions that the settings define: a number that is above or below its limit."""

from __future__ import annotations

from redrive.alerts.config.settings import AlertSettings, ConditionSettings
from redrive.alerts.delivery.format import TITLE_LENGTH, command
from redrive.alerts.delivery.safe_text import safe_line
from redrive.alerts.facts.snapshot import Figure, Judgement, LevelSnapshot
from redrive.model.alerts import Facts, Finding, Subject


def defined_conditions(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return the conditions of the settings that hold; where there is nothing to measure, none does."""
    defined = settings.defined
    known = [one for one in snapshot.figures if one.name in defined and snapshot.knows("conditions", one.name)]
    findings = [finding for one in known if (finding := _held(one, defined[one.name], settings)) is not None]
    judged = snapshot.judged("conditions", "level:condition:", (one.name for one in snapshot.figures))
    return Judgement(findings=tuple(findings)) + judged


def _held(figure: Figure, own: ConditionSettings, settings: AlertSettings) -> Finding | None:
    value = figure.value
    if value is None or own.severity is None:
        return None
    if own.above is not None and value > own.above:
        beyond, limit = "above", own.above
    elif own.below is not None and value < own.below:
        beyond, limit = "below", own.below
    else:
        return None
    name = figure.name
    subject = Subject(kind="custom", name=name)
    if own.pipeline is not None:
        subject = Subject(kind="pipeline", name=own.pipeline)
    about = () if own.pipeline is None else (own.pipeline,)
    return Finding(
        key=f"condition:{name}",
        condition=name,
        urgency=own.severity,
        subject=subject,
        title=safe_line(f"{own.title or name}: {value:,.10g} is {beyond} {limit:,.10g}", TITLE_LENGTH),
        facts=Facts(
            measured={"value": value, "threshold": limit},
            affected=about,
            commands=tuple(command("runs", "ls", "--pipeline", one) for one in about),
            sql=own.query,
        ),
        evidence=f"level:condition:{name}",
        persist=settings.persist if own.persist is None else own.persist,
    )
