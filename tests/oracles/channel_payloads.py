"""What Slack and PagerDuty document that they take, as checks that name what is wrong.

Slack: docs.slack.dev/reference/block-kit (header, section and context blocks, text objects), and
docs.slack.dev/messaging/formatting-message-text (which characters are to be escaped).
PagerDuty: developer.pagerduty.com/docs/events-api-v2 (Overview: size limits; Send an Alert Event: parameters).
"""

import json
import re
from datetime import datetime

_ENTITY = re.compile(r"&(?!amp;|lt;|gt;)")
_LINK = re.compile(r"<https?://[^<>|\s]+\|[^<>|]+>")


class Misshapen(AssertionError):
    """The receiver would refuse it, or show something else than was meant."""


def _must(condition, what):
    if not condition:
        raise Misshapen(what)


def _has(found, required, optional=()):
    _must(isinstance(found, dict), f"no object: {found!r}")
    missing, unknown = set(required) - set(found), set(found) - set(required) - set(optional)
    _must(not missing, f"misses {sorted(missing)}: {found!r}")
    _must(not unknown, f"has unknown {sorted(unknown)}")


def _text(value, most, what):
    _must(isinstance(value, str), f"{what} is no text: {value!r}")
    _must(1 <= len(value) <= most, f"{what} has {len(value)} characters, of 1 to {most}")


# ── Slack ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_slack(payload):
    """The payload of an incoming webhook."""
    _has(payload, ["text", "blocks"], ["unfurl_links", "unfurl_media"])
    _text(payload["text"], 4_000, "text")
    _mrkdwn(payload["text"], "text")
    for name in ("unfurl_links", "unfurl_media"):
        _must(isinstance(payload.get(name, False), bool), f"{name} is no boolean")
    blocks = payload["blocks"]
    _must(isinstance(blocks, list) and 1 <= len(blocks) <= 50, "there are 1 to 50 blocks")
    for block in blocks:
        _must(isinstance(block, dict) and block.get("type") in _BLOCKS, f"an unknown block: {block!r}")
        _BLOCKS[block["type"]](block)
    # Not documented, but answered with msg_blocks_too_long.
    _must(len(json.dumps(blocks, ensure_ascii=False)) <= 13_000, "all blocks are too long together")
    json.dumps(payload, ensure_ascii=False).encode()


def _header(block):
    _has(block, ["type", "text"], ["block_id"])
    _has(block["text"], ["type", "text"], ["emoji"])
    _must(block["text"]["type"] == "plain_text", "a header is plain text")
    _text(block["text"]["text"], 150, "a header")


def _section(block):
    _has(block, ["type"], ["text", "fields", "block_id"])
    _must("text" in block or "fields" in block, "a section has text or fields")
    if "text" in block:
        _text_object(block["text"], 3_000)
    if "fields" in block:
        fields = block["fields"]
        _must(isinstance(fields, list) and 1 <= len(fields) <= 10, "there are 1 to 10 fields")
        for field in fields:
            _text_object(field, 2_000)


def _context(block):
    _has(block, ["type", "elements"], ["block_id"])
    elements = block["elements"]
    _must(isinstance(elements, list) and 1 <= len(elements) <= 10, "there are 1 to 10 elements")
    for element in elements:
        _text_object(element, 3_000)


_BLOCKS = {"header": _header, "section": _section, "context": _context}


def _text_object(found, most):
    _has(found, ["type", "text"], ["verbatim"])
    _must(found["type"] == "mrkdwn", f"no text object: {found!r}")
    _text(found["text"], most, "a text object")
    _must(found.get("verbatim") is True, "names in foreign text would be made mentions of")
    _mrkdwn(found["text"], "a text object")


def _mrkdwn(text, what):
    rest = _LINK.sub("", text)
    _must("<" not in rest and ">" not in rest, f"{what} has an unescaped < or >: {text!r}")
    _must(not _ENTITY.search(text), f"{what} has an unescaped &: {text!r}")
    _must(text.count("```") % 2 == 0, f"{what} leaves code open: {text!r}")


# ── PagerDuty ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_pagerduty(body):
    """The body of a request to /v2/enqueue."""
    _must(len(body) <= 512_000, f"{len(body)} bytes are more than 512 KB")
    event = json.loads(body)
    action = event.get("event_action")
    _must(action in ("trigger", "acknowledge", "resolve"), f"no event_action: {action!r}")
    if action == "trigger":
        _has(
            event, ["routing_key", "event_action", "dedup_key", "payload"], ["links", "images", "client", "client_url"]
        )
        _payload(event["payload"])
        for link in event.get("links", []):
            _has(link, ["href"], ["text"])
            _must(link["href"].startswith(("http://", "https://")), f"no address: {link!r}")
        _text(event.get("client", "-"), 1_024, "client")
    else:
        _has(event, ["routing_key", "event_action", "dedup_key"])
    _must(re.fullmatch(r"\w{32}", event["routing_key"]), "a routing key has 32 characters")
    _text(event["dedup_key"], 255, "dedup_key")
    return event


def _payload(payload):
    required = ["summary", "source", "severity"]
    _has(payload, required, ["timestamp", "component", "group", "class", "custom_details"])
    _text(payload["summary"], 1_024, "summary")
    _must(payload["severity"] in ("critical", "error", "warning", "info"), f"no severity: {payload['severity']!r}")
    for name in ("source", "component", "group", "class"):
        _text(payload.get(name, "-"), 1_024, name)
    if "timestamp" in payload:
        _must(datetime.fromisoformat(payload["timestamp"]).tzinfo is not None, "the timestamp has no zone")
    _must(isinstance(payload.get("custom_details", {}), dict), "custom_details is no object")
