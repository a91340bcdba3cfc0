"""The rule on conditions that the settings define: a value above or below its limit; used by the registry."""

from __future__ import annotations

from redrive.alerts.config.settings import AlertSettings, ConditionSettings
from redrive.alerts.delivery.format import TITLE_LENGTH, command, safe_line
from redrive.alerts.facts.snapshot import Figure, Judgement, LevelSnapshot
from redrive.model.alerts import Facts, Finding, Subject


def defined_conditions(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return the defined conditions that hold. A condition without a value does not hold."""
    defined = settings.defined
    known = [
        figure for figure in snapshot.figures if figure.name in defined and snapshot.knows("conditions", figure.name)
    ]
    findings = [
        finding for figure in known if (finding := _make_finding(figure, defined[figure.name], settings)) is not None
    ]
    judged = snapshot.judged("conditions", "level:condition:", (figure.name for figure in snapshot.figures))
    return Judgement(findings=tuple(findings)) + judged


def _make_finding(figure: Figure, own: ConditionSettings, settings: AlertSettings) -> Finding | None:
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
