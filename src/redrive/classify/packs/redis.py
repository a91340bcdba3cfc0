"""redis-py, whose server errors are distinguished by the first word of their message."""

from __future__ import annotations

from redrive.classify.packs.pack import Pack
from redrive.classify.tables.entry import AUTH, PERMANENT, RESOURCE, RETRY_NOW, ROW, TRANSIENT, Entry

PACK = Pack(
    "redis",
    types={
        "AskError": Entry(RETRY_NOW, "slot moves to another node"),
        "AuthenticationError": Entry(AUTH, "login failed"),
        "AuthenticationWrongNumberOfArgsError": Entry(AUTH, "login failed"),
        "AuthorizationError": Entry(PERMANENT, "permission denied"),
        "BusyLoadingError": Entry(TRANSIENT, "Redis is loading its data"),
        "ChildDeadlockedError": Entry(PERMANENT, "bug: client used by a forked child"),
        "ClusterCrossSlotError": Entry(PERMANENT, "keys of several slots in one command"),
        "ClusterDownError": Entry(TRANSIENT, "Redis cluster is down"),
        "ClusterError": Entry(TRANSIENT, "Redis cluster has no answer"),
        "ConnectionError": Entry(TRANSIENT, "connection failed"),
        "CrossSlotTransactionError": Entry(PERMANENT, "keys of several slots in one transaction"),
        "DataError": Entry(ROW, "value not storable in Redis"),
        "ExecAbortError": Entry(PERMANENT, "transaction aborted by a wrong command"),
        "IncorrectPolicyType": Entry(PERMANENT, "bug: policy not known to the client"),
        "InvalidResponse": Entry(TRANSIENT, "answer not readable"),
        "InvalidPipelineStack": Entry(TRANSIENT, "answer not readable"),
        "LockError": Entry(TRANSIENT, "lock held by another client"),
        "LockNotOwnedError": Entry(PERMANENT, "lock lost"),
        "MasterDownError": Entry(TRANSIENT, "Redis primary is down"),
        "MaxConnectionsError": Entry(TRANSIENT, "no free connection"),
        "ModuleError": Entry(PERMANENT, "Redis module error"),
        "MovedError": Entry(RETRY_NOW, "slot moved to another node"),
        "NoPermissionError": Entry(PERMANENT, "permission denied"),
        "NoScriptError": Entry(PERMANENT, "script not loaded"),
        "OutOfMemoryError": Entry(RESOURCE, "Redis is out of memory"),
        "PubSubError": Entry(PERMANENT, "bug: subscription used wrongly"),
        "ReadOnlyError": Entry(TRANSIENT, "connected to a replica, as after a failover"),
        # Also raised where no node of the cluster can be reached; its cause then tells why.
        "RedisClusterException": Entry(TRANSIENT, "Redis cluster not usable"),
        "RedisError": Entry(PERMANENT, "Redis error"),
        "ResponseError": Entry(PERMANENT, "command refused by Redis"),
        "SlotNotCoveredError": Entry(TRANSIENT, "no node has the slot"),
        "TimeoutError": Entry(TRANSIENT, "timed out"),
        "TryAgainError": Entry(RETRY_NOW, "slot moves to another node"),
        "UnblockedError": Entry(TRANSIENT, "unblocked by another client"),
        "WatchError": Entry(RETRY_NOW, "watched key changed"),
    },
    texts={
        # Codes of the server that the client has no class for.
        "ResponseError": (
            ("^BUSY ", Entry(TRANSIENT, "Redis is busy with a script")),
            ("^BUSYGROUP", Entry(PERMANENT, "consumer group exists already")),
        )
    },
    wraps=True,
)
