"""`FaultyServer`: a real HTTP server on this machine that fails as configured, and records its requests."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from redrive.testing.faulty_server.answer import Answer, check_seconds
from redrive.testing.faulty_server.http1 import Message, Request
from redrive.testing.faulty_server.listener import HOST, Connection, Decision, Listener
from redrive.testing.faulty_server.routes import TOKEN_PATH, Handler, KeyGate, Routes, Step, TokenGate, matches


class FaultyServer:
    """Serves HTTP/1.1 on 127.0.0.1, from its own thread, between entering and leaving a `with` block.

        with FaultyServer() as server:
            server.on("/orders", *Answer(503).times(2), Answer(json={"ok": True}))
            ...                                 # point the pipeline at server.url
            assert server.count("/orders") == 3

    Every method may be called from any thread, handlers included, before the server runs as well as while it does.
    """

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        """Exceptions of handlers; the first is raised again at the end of the `with` block."""
        self._lock = threading.Lock()
        self._listener: Listener | None = None
        self._port: int | None = None
        self._routes = Routes()
        self._tokens: TokenGate | None = None
        self._keys: KeyGate | None = None
        self._spike: tuple[int, float] | None = None
        self._requests: list[Request] = []
        self._numbers: Counter[str] = Counter()

    # -- what to answer ---------------------------------------------------------------------------------------------

    def on(self, path: str, *steps: Step, method: str | None = None) -> None:
        """Answer requests to a path, or to a pattern such as `/pages/*`, with these steps in turn; then with the last.

        A step is an `Answer`, or a function from `Request` to `Answer`, which runs on the server's thread and so must
        not wait (`Answer(delay=...)` does). Each path follows the script separately. An exact path wins over a
        pattern, a named method over any, and then the latest call.
        """
        with self._lock:
            self._routes.add(path, steps, method=method)

    def require_token(self, *, uses: int | None = None) -> None:
        """Answer 401 unless a bearer token is sent that came from `issue_token()` or `POST /token`.

        A token is valid for `uses` requests, or until `expire_tokens()`.

        uses  number of requests that a token is valid for; None for no limit
        """
        with self._lock:
            self._tokens = TokenGate(uses=uses)

    def issue_token(self) -> str:
        """Return a new token; tokens issued before stay valid."""
        with self._lock:
            return self._require_token_gate().issue()

    def expire_tokens(self) -> None:
        """Make every token issued so far invalid."""
        with self._lock:
            self._require_token_gate().expire_all()

    def limit_keys(
        self,
        quotas: Mapping[str, int | None],
        *,
        header: str | None = None,
        query: str | None = None,
        bearer: bool = False,
    ) -> None:
        """Let each key make its quota of requests (None: any number), then answer 403 `quotaExceeded`; 401 if unknown.

        The key is read from a header, from a query parameter, or from `Authorization: Bearer`.

        quotas  number of requests by key
        header  the name of the header
        query   the name of the query parameter
        bearer  whether it is a bearer token
        """
        with self._lock:
            self._keys = KeyGate(quotas, header=header, query=query, bearer=bearer)

    def reset_quota(self) -> None:
        """Give every key its whole quota again."""
        with self._lock:
            if self._keys is None:
                raise RuntimeError("no keys are limited: call limit_keys() first")
            self._keys.reset()

    def spike(self, *, every: int, delay: float) -> None:
        """Answer every n-th request `delay` seconds late, n being `every`; a delay of 0 ends it."""
        if every < 1:
            raise ValueError(f"every must be from 1 up, not {every!r}")
        check_seconds("delay", delay)
        with self._lock:
            self._spike = (every, delay)

    # -- requests so far --------------------------------------------------------------------------------------------

    @property
    def requests(self) -> list[Request]:
        """Every request that arrived in full, in order."""
        with self._lock:
            return list(self._requests)

    def count(self, path: str = "*", *, method: str | None = None) -> int:
        """Return the number of requests to a path or pattern."""
        return len(self._find_requests(path, method))

    def times(self, path: str = "*", *, method: str | None = None) -> list[float]:
        """Return when they came, in seconds of `time.monotonic()`."""
        return [request.at for request in self._find_requests(path, method)]

    def rate(self, path: str = "*", *, bucket: float = 1.0) -> list[int]:
        """Return the number of requests in each period of `bucket` seconds, beginning with the first request."""
        check_seconds("bucket", bucket)
        if bucket == 0:
            raise ValueError("bucket must be more than 0 seconds")
        times = self.times(path)
        if not times:
            return []
        counts = Counter(int((at - times[0]) / bucket) for at in times)
        return [counts[index] for index in range(max(counts) + 1)]

    def reset(self) -> None:
        """Forget the requests and errors and restart every script; rules, tokens and quotas stay."""
        with self._lock:
            self._routes.restart()
            self._requests = []
            self._numbers.clear()
            self.errors.clear()

    def clear(self) -> None:
        """Forget everything, the rules included, as if newly made."""
        with self._lock:
            self._routes = Routes()
            self._tokens = self._keys = self._spike = None
        self.reset()

    # -- life cycle -------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The URL of the server, without a slash at the end."""
        if self._port is None:
            raise RuntimeError("the server was never started: use `with FaultyServer() as server:` or start()")
        return f"http://{HOST}:{self._port}"

    def start(self) -> None:
        """Listen on a free port."""
        if self._listener is not None:
            raise RuntimeError(f"the server is already running at {self.url}")
        self._listener = Listener(self._decide)
        self._port = self._listener.port

    def stop(self) -> None:
        """Drop every connection and free the port; without effect where it does not run."""
        if self._listener is not None:
            self._listener.stop()
            self._listener = None

    def down(self) -> None:
        """Reset every connection and refuse new ones, until `up()`."""
        self._running().down()

    def up(self) -> None:
        """Listen again, on the same port."""
        self._running().up()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self.errors and error is None:
            raise self.errors[0]

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    # -- decisions --------------------------------------------------------------------------------------------------

    def _running(self) -> Listener:
        if self._listener is None:
            raise RuntimeError("the server is not running: use `with FaultyServer() as server:` or start()")
        return self._listener

    def _require_token_gate(self) -> TokenGate:
        if self._tokens is None:
            raise RuntimeError("no tokens are in use: call require_token() first")
        return self._tokens

    def _find_requests(self, path: str, method: str | None) -> list[Request]:
        wanted_method = method.upper() if method else None
        return [
            request
            for request in self.requests
            if (wanted_method is None or request.method == wanted_method) and matches(path, request.path)
        ]

    def _decide(self, message: Message, connection: Connection) -> Decision:
        with self._lock:
            request = self._record(message, connection)
            step = self._step(request)
            wait = self._spike_delay()
        # A handler runs without the lock, so that it may use the server itself.
        answer = step if isinstance(step, Answer) else self._handle(step, request)
        request.status = answer.outcome
        return Decision(answer, answer.delay + wait)

    def _record(self, message: Message, connection: Connection) -> Request:
        method, path, query, target, headers, body, _ = message
        self._numbers[path] += 1
        request = Request(
            method=method,
            path=path,
            query=query,
            target=target,
            headers=headers,
            body=body,
            at=time.monotonic(),
            number=self._numbers[path],
            connection=connection.number,
        )
        self._requests.append(request)
        return request

    def _step(self, request: Request) -> Step:
        if self._tokens is not None and request.path == TOKEN_PATH:
            exact = self._routes.exact(request)
            return self._tokens.grant(request) if exact is None else exact
        for gate in (self._tokens, self._keys):
            rejection = gate.check(request) if gate is not None else None
            if rejection is not None:
                return rejection
        step = self._routes.step(request)
        if step is None:
            return Answer(404, json={"error": f"no answer is set for {request.method} {request.path}"})
        return step

    def _spike_delay(self) -> float:
        if self._spike is None:
            return 0.0
        every, delay = self._spike
        return delay if len(self._requests) % every == 0 else 0.0

    def _handle(self, handler: Handler, request: Request) -> Answer:
        try:
            answer: object = handler(request)
            if not isinstance(answer, Answer):
                raise TypeError(f"a handler must return an Answer, not {answer!r}")
        except BaseException as error:  # pytest.fail() raises no Exception, and must not be lost either
            self.errors.append(error)
            return Answer(500, json={"error": f"{type(error).__name__}: {error}"})
        return answer
