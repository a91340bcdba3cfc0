"""Error codes of client libraries: AWS, Kafka, gRPC."""

from __future__ import annotations

import botocore.exceptions as aws
import botocore.session
import confluent_kafka
import grpc
import pytest
from botocore.config import Config
from confluent_kafka import KafkaError, KafkaException

from redrive import Classifier, classify
from redrive.classify.tables.services import KAFKA
from redrive.model.calls import Kind


def client_error(code, status=400, message="it says so", headers=None):
    response = {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers or {}},
    }
    return aws.ClientError(response, "PutItem")


@pytest.mark.parametrize(
    ("error", "kind", "rule"),
    [
        (client_error("ThrottlingException"), "rate_limited", "aws.ThrottlingException"),
        (client_error("SlowDown", 503), "rate_limited", "aws.SlowDown"),
        (client_error("ProvisionedThroughputExceededException"), "rate_limited", None),
        (client_error("ExpiredToken"), "auth", "aws.ExpiredToken"),
        (client_error("InvalidClientTokenId", 403), "auth", None),
        (client_error("RequestTimeout"), "transient", None),
        (client_error("InternalError", 500), "ambiguous", None),
        (client_error("TransactionConflictException"), "retry_now", None),
        (client_error("ConditionalCheckFailedException"), "row", None),
        (client_error("NoSuchKey", 404), "row", "http.404"),
        (client_error("NoSuchBucket", 404), "permanent", "aws.NoSuchBucket"),
        (client_error("AccessDenied", 403), "permanent", "http.4xx"),
        (client_error("NewInThisYear", 503), "transient", "http.503"),
        (aws.ClientError({}, "PutItem"), "ambiguous", "type.botocore.ClientError"),
        (aws.NoCredentialsError(), "auth", None),
        (aws.PartialCredentialsError(provider="env", cred_var="secret"), "auth", None),
        (aws.ReadTimeoutError(endpoint_url="https://s3"), "transient", "type.botocore.ReadTimeoutError"),
        (aws.ConnectionClosedError(endpoint_url="https://s3"), "transient", None),
        (aws.ParamValidationError(report="Missing Bucket"), "permanent", None),
        (aws.NoRegionError(), "permanent", "type.botocore.BotoCoreError"),
    ],
    ids=lambda value: repr(value)[:70],
)
def test_aws_is_judged_by_code_then_status_then_type(error, kind, rule):
    verdict = classify(error)
    assert verdict.kind == kind
    assert rule is None or verdict.rule == rule


def test_aws_verdict_has_message_status_and_wait():
    verdict = classify(client_error("ThrottlingException", headers={"retry-after": "2"}))
    assert (verdict.detail, verdict.status, verdict.retry_after) == ("it says so", 400, 2.0)
    verdict = classify(client_error("AccessDenied", 403))
    assert verdict.reason == "HTTP 403 Forbidden: AccessDenied"
    assert verdict.detail == "it says so"


def test_bucket_behind_a_closed_port_is_transient(refused_port):
    client = botocore.session.Session().create_client(
        "s3",
        region_name="eu-central-1",
        endpoint_url=f"http://127.0.0.1:{refused_port}",
        aws_access_key_id="a",
        aws_secret_access_key="b",
        config=Config(retries={"total_max_attempts": 1}),
    )
    with pytest.raises(aws.EndpointConnectionError) as caught:
        client.list_buckets()
    client.close()
    assert (classify(caught.value).kind, classify(caught.value).reason) == (Kind.TRANSIENT, "connection refused")


def kafka(name, **flags):
    code = getattr(KafkaError, name)
    return KafkaError(code, "it says so", *(flags.get(flag, False) for flag in ("fatal", "retriable", "txn")))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (kafka("_TRANSPORT"), "transient"),
        (kafka("_ALL_BROKERS_DOWN"), "transient"),
        (kafka("LEADER_NOT_AVAILABLE"), "transient"),
        (kafka("_QUEUE_FULL"), "transient"),
        (kafka("SASL_AUTHENTICATION_FAILED"), "auth"),
        (kafka("TOPIC_AUTHORIZATION_FAILED"), "permanent"),
        (kafka("MSG_SIZE_TOO_LARGE"), "row"),
        (kafka("_VALUE_DESERIALIZATION"), "row"),
        (kafka("THROTTLING_QUOTA_EXCEEDED"), "rate_limited"),
        (kafka("RECORD_LIST_TOO_LARGE"), "resource"),
        (kafka("UNKNOWN_TOPIC_OR_PART"), "ambiguous"),
        (kafka("INVALID_CONFIG"), "permanent"),
        (kafka("INVALID_CONFIG", retriable=True), "transient"),
        (kafka("_TRANSPORT", fatal=True), "permanent"),
    ],
    ids=repr,
)
def test_kafka_code_decides_raised_or_passed_to_a_callback(error, kind):
    for failure in (error, KafkaException(error)):
        verdict = classify(failure)
        assert (verdict.kind, verdict.rule, verdict.detail) == (kind, f"kafka.{error.name()}", "it says so")


def test_every_kafka_code_of_the_table_exists():
    assert [name for name in KAFKA if not hasattr(KafkaError, name)] == []


def test_kafka_exception_without_a_code_is_judged_by_type():
    assert classify(KafkaException("odd")).rule == "type.confluent_kafka.KafkaException"
    assert classify(confluent_kafka.IllegalStateException()).kind is Kind.PERMANENT


def test_rule_can_match_a_kafka_error_that_is_no_exception():
    classifier = Classifier().rule(when=lambda error: error.code() == KafkaError._PARTITION_EOF, kind="discard")
    assert classifier.classify(kafka("_PARTITION_EOF")).kind is Kind.DISCARD
    assert classifier.classify(kafka("_TRANSPORT")).kind is Kind.TRANSIENT


GRPC_KINDS = {
    "CANCELLED": "permanent",
    "UNKNOWN": "ambiguous",
    "INVALID_ARGUMENT": "permanent",
    "DEADLINE_EXCEEDED": "transient",
    "NOT_FOUND": "row",
    "ALREADY_EXISTS": "permanent",
    "PERMISSION_DENIED": "permanent",
    "RESOURCE_EXHAUSTED": "rate_limited",
    "FAILED_PRECONDITION": "permanent",
    "ABORTED": "retry_now",
    "OUT_OF_RANGE": "permanent",
    "UNIMPLEMENTED": "permanent",
    "INTERNAL": "ambiguous",
    "UNAVAILABLE": "transient",
    "DATA_LOSS": "permanent",
    "UNAUTHENTICATED": "auth",
}


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_grpc_is_judged_by_status(code):
    error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details="it says so")
    verdict = classify(error)
    assert (verdict.kind, verdict.rule) == (GRPC_KINDS[code.name], f"grpc.{code.name}")
    assert verdict.detail == "it says so"


def test_real_grpc_call_to_a_closed_port_is_transient(refused_port):
    with grpc.insecure_channel(f"127.0.0.1:{refused_port}") as channel:
        call = channel.unary_unary("/a.B/C")
        with pytest.raises(grpc.RpcError) as caught:
            call(b"", timeout=10)
    assert (classify(caught.value).kind, classify(caught.value).rule) == (Kind.TRANSIENT, "grpc.UNAVAILABLE")


def test_grpc_error_without_a_code_is_judged_by_type():
    assert classify(grpc.RpcError("odd")).rule == "type.grpc.RpcError"
