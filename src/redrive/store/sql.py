"""`in_ids(column, ids)`, `in_texts(column, texts)`: IN for any number of values, as one parameter.

A parameter each would end at 32,766 of them on SQLite and at 65,535 on PostgreSQL, and the statement would be written
again for every number of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from sqlalchemy import BigInteger, BindParameter, ColumnElement, Text, literal
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement


class _Listed(FunctionElement[int]):
    """The numbers of a JSON array, as rows."""

    name = "listed"
    type = BigInteger()
    inherit_cache = True


@compiles(_Listed, "sqlite")
def _on_sqlite(element: _Listed, compiler: SQLCompiler, **options: Any) -> str:
    return f"(SELECT value FROM json_each({compiler.process(element.clauses, **options)}))"


@compiles(_Listed, "postgresql")
def _on_postgres(element: _Listed, compiler: SQLCompiler, **options: Any) -> str:
    numbers = compiler.process(element.clauses, **options)
    return f"(SELECT value::bigint FROM jsonb_array_elements_text(CAST({numbers} AS jsonb)))"


class _ListedTexts(FunctionElement[str]):
    """The texts of a JSON array, as rows."""

    name = "listed_texts"
    type = Text()
    inherit_cache = True


@compiles(_ListedTexts, "sqlite")
def _texts_on_sqlite(element: _ListedTexts, compiler: SQLCompiler, **options: Any) -> str:
    return f"(SELECT value FROM json_each({compiler.process(element.clauses, **options)}))"


@compiles(_ListedTexts, "postgresql")
def _texts_on_postgres(element: _ListedTexts, compiler: SQLCompiler, **options: Any) -> str:
    texts = compiler.process(element.clauses, **options)
    return f"(SELECT value FROM jsonb_array_elements_text(CAST({texts} AS jsonb)))"


def in_ids(column: ColumnElement[int], ids: Iterable[int] | BindParameter[str]) -> ColumnElement[bool]:
    """Whether the column is one of these ids; of a statement that is made once, of the ids given as `as_list` later."""
    listed = ids if isinstance(ids, BindParameter) else literal(as_list(ids))
    return column.bool_op("IN")(_Listed(listed))


def in_texts(column: ColumnElement[str], texts: Iterable[str]) -> ColumnElement[bool]:
    """Return whether the column is one of these texts."""
    return column.bool_op("IN")(_ListedTexts(literal(json.dumps(list(texts)))))


def as_list(ids: Iterable[int]) -> str:
    """Return ids as the text of one parameter."""
    return json.dumps(list(ids))
