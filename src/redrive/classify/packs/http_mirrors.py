"""HTTP clients that have the exceptions of another one: httpx2 those of httpx, niquests those of requests."""

from __future__ import annotations

from redrive.classify.packs.pack import Pack
from redrive.classify.tables.web import WEB_TYPES


def _mirror(library: str, original: str) -> Pack:
    prefix = f"{original}."
    types = {name.removeprefix(prefix): entry for name, entry in WEB_TYPES.items() if name.startswith(prefix)}
    return Pack(library, types=types, wraps=True)


PACKS = (_mirror("httpx2", "httpx"), _mirror("niquests", "requests"))
