"""Exception classes of the table, by name and by traceback: the verdict of the real error, and rules that count."""

import builtins
import importlib
import sqlite3
import traceback

import confluent_kafka
import pydantic
import pymysql
import pytest

import redrive
from redrive.classify.classifier import Classifier
from redrive.classify.tables.types import TYPES
from redrive.explain import exception_names
from redrive.explain.question import read
from redrive.explain.tracebacks import of_traceback, parse

KNOWN = [name for name in sorted(TYPES) if (cls := exception_names.find_class(name)) and issubclass(cls, Exception)]
ARGUMENTS = [(), ("x",), ("x", "y"), ("x", "y", "z"), (1, "x"), ("x", []), ("x", {}, "y"), ("x", "d", 0)]


def real(cls):
    """An error of the class as a program makes it; None where only the library can."""
    for arguments in ARGUMENTS:
        try:
            return cls(*arguments)
        except Exception:
            continue
    return None


def class_at(path):
    module, _, name = path.rpartition(".")
    while module:
        try:
            owner = importlib.import_module(module)
        except ModuleNotFoundError:
            module, _, outer = module.rpartition(".")
            name = f"{outer}.{name}"
        else:
            for part in name.split("."):
                owner = getattr(owner, part)
            return owner
    return getattr(builtins, name)


def traceback_of(cls, said=""):
    home = "" if cls.__module__ == "builtins" else f"{cls.__module__}."
    frame = '  File "x.py", line 1, in <module>\n    f()\n'
    return f"Traceback (most recent call last):\n{frame}{home}{cls.__qualname__}{said and f': {said}'}\n"


def told_of(error):
    return of_traceback(parse("".join(traceback.format_exception(error))))


def raised(*statements):
    connection = sqlite3.connect(":memory:")
    for statement in statements[:-1]:
        connection.execute(statement)
    with pytest.raises(sqlite3.Error) as caught:
        connection.execute(statements[-1])
    connection.close()
    return caught.value


class TestTable:
    @pytest.mark.parametrize("name", KNOWN)
    @pytest.mark.parametrize("by", ["name", "traceback", "traceback that says something"])
    def test_verdict_and_rule_are_those_of_the_real_error(self, name, by):
        cls = exception_names.find_class(name)
        said = "x" if by.endswith("something") else ""
        question = read(name)[0] if by == "name" else of_traceback(parse(traceback_of(cls, said)))
        assert isinstance(question.failure, cls)
        verdict = Classifier().classify(question.failure, "call")
        errors = [question.failure]
        if (made := real(cls)) is not None:
            assert Classifier().classify(made, "call").kind == verdict.kind
            errors.append(made)
        other = "permanent" if verdict.kind == "transient" else "transient"
        ruled = redrive.Classifier().rule(class_at(question.condition), kind=other)
        assert [ruled.classify(error, "call").kind for error in errors] == [other] * len(errors)


class TestTracebackClass:
    @pytest.mark.parametrize(
        ("error", "cls"),
        [
            (raised("CREATE TABLE t (a PRIMARY KEY)", *["INSERT INTO t VALUES (1)"] * 2), sqlite3.IntegrityError),
            (raised("CREATE TABLE t (a NOT NULL)", "INSERT INTO t VALUES (NULL)"), sqlite3.IntegrityError),
            (sqlite3.DatabaseError("file is not a database"), sqlite3.DatabaseError),
            (pymysql.IntegrityError(1062, "Duplicate entry '1'"), pymysql.IntegrityError),
            (pymysql.ProgrammingError(1146, "no such table"), pymysql.ProgrammingError),
        ],
    )
    def test_code_in_the_text_does_not_change_the_class(self, error, cls):
        failure = told_of(error).failure
        assert type(failure) is cls
        ruled = redrive.Classifier().rule(cls, kind="quota")
        assert ruled.classify(failure, "call").kind == ruled.classify(error, "call").kind == "quota"
        assert Classifier().classify(failure, "call").kind == Classifier().classify(error, "call").kind

    def test_rule_for_another_class_does_not_count(self):
        failure = told_of(sqlite3.IntegrityError("UNIQUE constraint failed: t.a")).failure
        ruled = redrive.Classifier().rule(sqlite3.OperationalError, kind="transient")
        assert ruled.classify(failure, "call").kind == "row"

    def test_rule_for_a_validation_error_counts(self):
        model = pydantic.create_model("Order", fee=(int, ...))
        with pytest.raises(pydantic.ValidationError) as caught:
            model(fee="x")
        ruled = redrive.Classifier().rule(pydantic.ValidationError, kind="quota")
        for question in (told_of(caught.value), *read("pydantic.ValidationError")):
            assert ruled.classify(question.failure, "call").kind == "quota"

    def test_error_of_an_aws_service_is_a_client_error(self):
        botocore = pytest.importorskip("botocore.exceptions")
        said = "An error occurred (NoSuchKey) when calling the GetObject operation: no such key"
        head = 'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\n    f()\n'
        failure = of_traceback(parse(f"{head}botocore.errorfactory.NoSuchKey: {said}\n")).failure
        assert isinstance(failure, botocore.ClientError)
        assert failure.response["Error"]["Code"] == "NoSuchKey"

    def test_kafka_error_keeps_its_class(self):
        said = 'KafkaError{code=_TRANSPORT,val=-195,str="Broker transport failure"}'
        failure = of_traceback(parse(traceback_of(confluent_kafka.error.ProduceError, said))).failure
        assert isinstance(failure, confluent_kafka.error.ProduceError)

    @pytest.mark.parametrize(
        ("code", "cls"),
        [
            ("SQLITE_CONSTRAINT_UNIQUE", sqlite3.IntegrityError),
            ("SQLITE_NOTADB", sqlite3.DatabaseError),
            ("SQLITE_BUSY", sqlite3.OperationalError),
        ],
    )
    def test_code_of_sqlite_has_its_class(self, code, cls):
        [question] = read(code)
        assert type(question.failure) is cls
