"""`redrive observe`: files for Grafana and Prometheus."""

from __future__ import annotations

from redrive.cli.command import command, noun
from redrive.cli.session import Session

app = noun("Print a Grafana dashboard and Prometheus alert rules.")


@command(app)
def grafana(session: Session) -> None:
    """Print a Grafana dashboard with a panel for every metric, as JSON to import.

    Examples: redrive observe grafana > dashboard.json; redrive observe grafana | jq .title
    """
    from redrive.observe.grafana import dashboard

    session.out.document(dashboard())


@command(app)
def rules(session: Session) -> None:
    """Print Prometheus alert rules for redrive itself: no watch runs, the store is down, messages are not delivered.

    Examples: redrive observe rules > redrive-rules.yml; redrive observe rules --json
    """
    from redrive.observe.grafana import rules, rules_yaml

    if session.out.json:
        session.out.document(rules())
    else:
        session.out.text(rules_yaml().rstrip())
