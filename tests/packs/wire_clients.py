"""One connection of each client with a protocol of its own to a port on loopback, with a short timeout."""

from __future__ import annotations

import asyncio

from tests.packs.http_clients import client, url, wait


@client("redis")
def _redis(port):
    import redis

    never = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
    with redis.Redis(port=port, retry=never, socket_timeout=wait(), protocol=2) as api:
        api.get("key")


@client("pymongo")
def _pymongo(port):
    import pymongo

    options = {"serverSelectionTimeoutMS": 300, "connectTimeoutMS": 300, "socketTimeoutMS": 300}
    with pymongo.MongoClient("127.0.0.1", port, **options) as api:
        api.admin.command("ping")


@client("psycopg")
def _psycopg(port):
    import psycopg

    psycopg.connect(f"host=127.0.0.1 port={port} user=u dbname=d connect_timeout=2 sslmode=disable")


@client("psycopg2")
def _psycopg2(port):
    import psycopg2

    psycopg2.connect(f"host=127.0.0.1 port={port} user=u dbname=d connect_timeout=2 sslmode=disable")


@client("asyncpg")
def _asyncpg(port):
    import asyncpg

    asyncio.run(asyncpg.connect(host="127.0.0.1", port=port, user="u", password="p", ssl=False, timeout=wait()))


@client("sqlalchemy")
def _sqlalchemy(port):
    import sqlalchemy

    engine = sqlalchemy.create_engine(f"postgresql+psycopg://u@127.0.0.1:{port}/d?connect_timeout=2&sslmode=disable")
    engine.connect()


@client("pymysql")
def _pymysql(port):
    import pymysql

    pymysql.connect(host="127.0.0.1", port=port, user="u", connect_timeout=wait(), read_timeout=wait())


@client("mysql")
def _mysql(port):
    import mysql.connector

    mysql.connector.connect(host="127.0.0.1", port=port, user="u", connection_timeout=1, use_pure=True)


@client("oracledb")
def _oracledb(port):
    import oracledb

    oracledb.connect(user="u", password="p", host="127.0.0.1", port=port, service_name="s", tcp_connect_timeout=wait())


@client("pymssql")
def _pymssql(port):
    import pymssql

    pymssql.connect(server="127.0.0.1", port=port, user="u", password="p", login_timeout=1, timeout=1)


@client("cassandra")
def _cassandra(port):
    from cassandra.cluster import Cluster

    cluster = Cluster(["127.0.0.1"], port=port, connect_timeout=wait(), control_connection_timeout=wait())
    try:
        cluster.connect()
    finally:
        cluster.shutdown()


@client("kafka")
def _kafka(port):
    import kafka

    kafka.KafkaProducer(bootstrap_servers=f"127.0.0.1:{port}", bootstrap_timeout_ms=500, request_timeout_ms=500)


@client("aiokafka")
def _aiokafka(port):
    import aiokafka

    async def connect():
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=f"127.0.0.1:{port}", request_timeout_ms=300)
        try:
            await producer.start()
        finally:
            await producer.stop()

    asyncio.run(connect())


@client("confluent_kafka")
def _confluent_kafka(port):
    from confluent_kafka.admin import AdminClient

    options = {"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0, "logger": _silent()}
    AdminClient(options).list_topics(timeout=1)


def _silent():
    import logging

    logger = logging.Logger("silent")
    logger.addHandler(logging.NullHandler())
    return logger


@client("pika")
def _pika(port):
    import pika

    options = {"socket_timeout": wait(), "stack_timeout": wait(), "blocked_connection_timeout": wait()}
    pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, connection_attempts=1, **options))


@client("aio_pika")
def _aio_pika(port):
    import aio_pika

    asyncio.run(aio_pika.connect(f"amqp://u:p@127.0.0.1:{port}/", timeout=wait()))


@client("kombu")
def _kombu(port):
    import kombu

    with kombu.Connection(f"amqp://u:p@127.0.0.1:{port}//", connect_timeout=wait()) as connection:
        connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)


@client("nats")
def _nats(port):
    import nats

    async def connect():
        async def ignore(_):
            pass

        limits = {"connect_timeout": wait(), "max_reconnect_attempts": 1, "reconnect_time_wait": 0}
        await nats.connect(f"nats://127.0.0.1:{port}", allow_reconnect=False, error_cb=ignore, **limits)

    asyncio.run(connect())


@client("paramiko")
def _paramiko(port):
    import paramiko

    with paramiko.SSHClient() as api:
        api.set_missing_host_key_policy(paramiko.AutoAddPolicy())
        api.connect(
            "127.0.0.1",
            port,
            username="u",
            password="p",
            timeout=wait(),
            banner_timeout=wait(),
            auth_timeout=wait(),
            allow_agent=False,
            look_for_keys=False,
        )


@client("asyncssh")
def _asyncssh(port):
    import asyncssh

    async def connect():
        options = {"known_hosts": None, "login_timeout": wait(), "connect_timeout": wait(), "config": []}
        await asyncssh.connect("127.0.0.1", port, username="u", password="p", **options)

    asyncio.run(connect())


@client("smtplib")
def _smtplib(port):
    import smtplib

    api = smtplib.SMTP("127.0.0.1", port, timeout=wait())
    try:
        api.sendmail("from@example.com", ["to@example.com"], "text")
    finally:
        api.close()


@client("ftplib")
def _ftplib(port):
    import ftplib

    api = ftplib.FTP()
    try:
        api.connect("127.0.0.1", port, timeout=wait())
        api.login("u", "p")
    finally:
        api.close()


@client("imaplib")
def _imaplib(port):
    import imaplib

    imaplib.IMAP4("127.0.0.1", port, timeout=wait()).login("u", "p")


@client("poplib")
def _poplib(port):
    import poplib

    api = poplib.POP3("127.0.0.1", port, timeout=wait())
    try:
        api.user("u")
        api.pass_("p")
    finally:
        api.close()


@client("socket")
def _socket(port):
    import socket

    with socket.create_connection(("127.0.0.1", port), timeout=wait()) as connection:
        connection.sendall(b"hello")
        if not connection.recv(1):
            raise EOFError


@client("grpc")
def _grpc(port):
    import grpc

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        channel.unary_unary("/bank.Ledger/Post")(b"", timeout=wait())


@client("websockets")
def _websockets(port):
    from websockets.sync.client import connect

    with connect(f"ws://127.0.0.1:{port}", open_timeout=wait(), close_timeout=wait()):
        pass


@client("websocket")
def _websocket(port):
    import websocket

    websocket.create_connection(f"ws://127.0.0.1:{port}", timeout=wait())


@client("pymemcache")
def _pymemcache(port):
    from pymemcache import Client

    Client(("127.0.0.1", port), connect_timeout=wait(), timeout=wait()).get("key")


@client("neo4j")
def _neo4j(port):
    import neo4j

    limits = {"connection_timeout": wait(), "connection_acquisition_timeout": 1}
    with neo4j.GraphDatabase.driver(f"bolt://127.0.0.1:{port}", auth=("u", "p"), **limits) as driver:
        driver.verify_connectivity()


@client("pyiceberg")
def _pyiceberg(port):
    from pyiceberg.catalog.rest import RestCatalog

    RestCatalog("c", uri=url(port))
