"""One request of each HTTP client to a port on loopback, without retries of its own and with a short timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

CLIENTS: dict[str, Callable[[int], object]] = {}

_patience = ContextVar("patience", default=0.25)


def wait() -> float:
    """The seconds that a client waits: few where the server stays silent, many where it answers."""
    return _patience.get()


@contextmanager
def patient() -> Iterator[None]:
    """Let clients wait long enough for an answer on a machine that is busy."""
    token = _patience.set(10.0)
    try:
        yield
    finally:
        _patience.reset(token)


def client(library: str) -> Callable[[Callable[[int], object]], Callable[[int], object]]:
    """Register the function that makes a request with this library."""

    def register(function: Callable[[int], object]) -> Callable[[int], object]:
        CLIENTS[library] = function
        return function

    return register


def url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


@client("requests")
def _requests(port):
    import requests

    requests.get(url(port), timeout=wait()).raise_for_status()


@client("httpx")
def _httpx(port):
    import httpx

    httpx.get(url(port), timeout=wait(), verify=False).raise_for_status()


@client("httpx2")
def _httpx2(port):
    import httpx2

    httpx2.get(url(port), timeout=wait(), verify=False).raise_for_status()


@client("niquests")
def _niquests(port):
    import niquests

    niquests.get(url(port), timeout=wait()).raise_for_status()


@client("aiohttp")
def _aiohttp(port):
    import aiohttp

    async def fetch():
        limits = aiohttp.ClientTimeout(total=wait())
        async with aiohttp.ClientSession(timeout=limits, raise_for_status=True) as session:
            await (await session.get(url(port))).read()

    asyncio.run(fetch())


@client("urllib3")
def _urllib3(port):
    import urllib3

    # It raises nothing for a status: the response itself is what a service judges.
    return urllib3.PoolManager().request("GET", url(port), timeout=wait(), retries=False)


@client("urllib")
def _urllib(port):
    from urllib.request import urlopen

    with urlopen(url(port), timeout=wait()) as answer:
        answer.read()


@client("http")
def _http_client(port):
    from http.client import HTTPConnection

    connection = HTTPConnection("127.0.0.1", port, timeout=wait())
    try:
        connection.request("GET", "/")
        answer = connection.getresponse()
        answer.read()
        return answer
    finally:
        connection.close()


@client("openai")
def _openai(port):
    import openai

    with openai.OpenAI(api_key="k", base_url=url(port), max_retries=0, timeout=wait()) as api:
        api.models.list()


@client("anthropic")
def _anthropic(port):
    import anthropic

    with anthropic.Anthropic(api_key="k", base_url=url(port), max_retries=0, timeout=wait()) as api:
        api.models.list()


@client("elasticsearch")
def _elasticsearch(port):
    import elasticsearch

    with elasticsearch.Elasticsearch(url(port), request_timeout=wait(), max_retries=0, retry_on_timeout=False) as api:
        api.get(index="orders", id="1")


@client("opensearchpy")
def _opensearch(port):
    import opensearchpy

    api = opensearchpy.OpenSearch(url(port), timeout=wait(), max_retries=0)
    try:
        api.get(index="orders", id="1")
    finally:
        api.close()


@client("botocore")
def _botocore(port):
    from botocore.config import Config

    config = Config(connect_timeout=wait(), read_timeout=wait(), retries={"total_max_attempts": 1})
    keys = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "region_name": "eu-west-1"}
    _aws_session().create_client("dynamodb", endpoint_url=url(port), config=config, **keys).list_tables()


@cache
def _aws_session():
    import botocore.session

    # It reads descriptions of services that take a second.
    return botocore.session.get_session()


@client("google.auth")
def _google_auth(port):
    from google.auth.transport.requests import Request
    from google.oauth2._client import refresh_grant

    class Impatient(Request):
        def __call__(self, *arguments, **options):
            return super().__call__(*arguments, **{**options, "timeout": wait()})

    # What `Credentials.refresh` calls; only here its own retries, of three seconds, can be left out.
    refresh_grant(Impatient(), f"{url(port)}/token", "token", "id", "secret", can_retry=False)


@client("google.api_core")
def _google_api_core(port):
    import requests
    from google.api_core.exceptions import from_http_response

    # As the clients of BigQuery and Cloud Storage do it.
    answer = requests.get(url(port), timeout=wait())
    if not answer.ok:
        raise from_http_response(answer)


@client("azure")
def _azure(port):
    from azure.core import PipelineClient
    from azure.core.pipeline.policies import RetryPolicy
    from azure.core.rest import HttpRequest

    options = {"connection_timeout": wait(), "read_timeout": wait()}
    with PipelineClient(url(port), retry_policy=RetryPolicy.no_retries()) as api:
        api.send_request(HttpRequest("GET", f"{url(port)}/items"), **options).raise_for_status()


@client("stripe")
def _stripe(port):
    import stripe

    transport = stripe.RequestsClient(timeout=wait())
    options = {"base_addresses": {"api": url(port)}, "max_network_retries": 0}
    api = stripe.StripeClient("sk_test_1", http_client=transport, **options)
    api.v1.customers.list()


@client("trino")
def _trino(port):
    import trino

    connection = trino.dbapi.connect(host="127.0.0.1", port=port, user="u", request_timeout=wait(), max_attempts=1)
    cursor = connection.cursor()
    cursor.execute("SELECT 1")
    cursor.fetchall()


@client("clickhouse_connect")
def _clickhouse(port):
    import clickhouse_connect

    clickhouse_connect.get_client(
        host="127.0.0.1", port=port, connect_timeout=1, send_receive_timeout=1, query_retries=0
    )


@client("snowflake")
def _snowflake(port):
    import snowflake.connector

    snowflake.connector.connect(
        **{"user": "u", "password": "p", "account": "a", "host": "127.0.0.1", "port": port, "protocol": "http"},
        **{"login_timeout": 1, "network_timeout": 1, "socket_timeout": 1, "disable_ocsp_checks": True},
    )


@client("databricks")
def _databricks(port):
    import databricks.sql

    databricks.sql.connect(
        server_hostname="127.0.0.1",
        _connection_uri=f"{url(port)}/sql/1.0/warehouses/w",
        http_path="/sql/1.0/warehouses/w",
        access_token="t",
        _socket_timeout=wait(),
        _retry_stop_after_attempts_count=1,
        _retry_stop_after_attempts_duration=1,
        enable_telemetry=False,
    )


@client("docker")
def _docker(port):
    import docker

    docker.DockerClient(base_url=f"tcp://127.0.0.1:{port}", version="1.41", timeout=wait()).containers.get("c")


@client("influxdb_client")
def _influxdb(port):
    import influxdb_client

    with influxdb_client.InfluxDBClient(url(port), token="t", org="o", timeout=wait() * 1000, retries=False) as api:
        api.query_api().query("buckets()")


@client("slack_sdk")
def _slack(port):
    from slack_sdk import WebClient

    api = WebClient(token="xoxb-1", base_url=f"{url(port)}/", timeout=1, retry_handlers=[])
    api.chat_postMessage(channel="c", text="t")


@client("kubernetes")
def _kubernetes(port):
    from kubernetes import client as k8s

    options = k8s.Configuration(host=url(port), retries=False)
    k8s.CoreV1Api(k8s.ApiClient(options)).read_namespaced_pod("p", "n", _request_timeout=wait())


@client("hvac")
def _hvac(port):
    import hvac

    hvac.Client(url=url(port), token="t", timeout=wait()).secrets.kv.v2.read_secret_version(path="p")


@client("minio")
def _minio(port):
    import minio
    import urllib3

    pool = urllib3.PoolManager(timeout=wait(), retries=False)
    minio.Minio(f"127.0.0.1:{port}", "k", "s", secure=False, region="r", http_client=pool).stat_object("bucket", "o")


@client("qdrant_client")
def _qdrant(port):
    import qdrant_client

    qdrant_client.QdrantClient(url=url(port), timeout=1, check_compatibility=False).get_collection("c")


@client("github")
def _github(port):
    import github

    github.Github(base_url=url(port), timeout=1, retry=None).get_user("u")


@client("twilio")
def _twilio(port):
    from twilio.http.http_client import TwilioHttpClient
    from twilio.rest import Client

    api = Client("AC1", "t", http_client=TwilioHttpClient(timeout=wait()))
    api.api.base_url = url(port)
    api.api.v2010.accounts("AC1").fetch()


@client("sendgrid")
def _sendgrid(port):
    import sendgrid

    api = sendgrid.SendGridAPIClient("k", host=url(port))
    api.client.timeout = wait()
    api.client.mail.send.post(request_body={})


@client("simple_salesforce")
def _salesforce(port):
    import requests
    import simple_salesforce

    class Impatient(requests.Session):
        def request(self, method, address, **options):
            return super().request(method, address.replace("https://", "http://"), **{**options, "timeout": wait()})

    api = simple_salesforce.Salesforce(instance=f"127.0.0.1:{port}", session_id="s", session=Impatient())
    api.query("SELECT Id FROM Account")


@client("notion_client")
def _notion(port):
    import notion_client

    notion_client.Client(auth="t", base_url=url(port), timeout_ms=int(wait() * 1000)).users.me()


@client("dlt")
def _dlt(port):
    from dlt.sources.helpers.requests import Client

    session = Client(request_timeout=wait(), request_max_attempts=1, raise_for_status=True).session
    session.get(url(port)).raise_for_status()
