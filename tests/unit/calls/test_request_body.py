"""Bodies of uploads: read for dead letters and derived keys, and sent unchanged."""

import io
import tempfile

import httpx
import pytest
import requests

import redrive
from redrive.calls.effects import request as known_request
from redrive.calls.effects.request import BodyMissing, body_of, content_of
from redrive.testing import Answer, FaultyServer

QUICK = redrive.Retry(attempts=3, base=0, cap=0)
ORDER = b"order 7"


OPENED = []


@pytest.fixture(autouse=True)
def _closed_files():
    yield
    while OPENED:
        OPENED.pop().close()


def open_file(content=ORDER):
    file = tempfile.TemporaryFile()  # noqa: SIM115  # closed by the fixture
    OPENED.append(file)
    file.write(content)
    file.seek(0)
    return file


class Pipe(io.RawIOBase):
    """A file that cannot be rewound."""

    def __init__(self, content):
        self._content = io.BytesIO(content)

    def read(self, size=-1):
        return self._content.read(size)


def upload_of(kind, content=ORDER):
    """Keywords for httpx."""
    made = {
        "bytes": lambda: {"content": content},
        "form": lambda: {"files": {"file": ("o.csv", content, "text/csv")}, "data": {"kind": "v"}},
        "form of a file": lambda: {"files": {"file": ("o.csv", open_file(content))}},
        "BytesIO": lambda: {"content": io.BytesIO(content)},
        "file": lambda: {"content": open_file(content)},
        "list": lambda: {"content": [content[:2], content[2:]]},
        "generator": lambda: {"content": iter([content])},
        "pipe": lambda: {"content": Pipe(content)},
        "form of a pipe": lambda: {"files": {"file": ("o.csv", Pipe(content))}},
    }
    return made[kind]()


READABLE = ["bytes", "form", "form of a file", "BytesIO", "file"]
ONCE_ONLY = ["generator", "pipe"]


@pytest.fixture
def server():
    with FaultyServer() as server:
        server.on("/upload", Answer(201))
        yield server


@pytest.fixture(params=["httpx", "requests"])
def send(request, server):
    """Sends a POST by a service, and raises for its status."""
    opened = []

    def sender(service):
        if request.param == "httpx":
            client = httpx.Client(transport=service.httpx_transport(), base_url=server.url)
            opened.append(client)
            return lambda method, path, **options: client.request(method, path, **options).raise_for_status()
        session = requests.Session()
        session.mount("http://", service.requests_adapter())
        opened.append(session)

        def send_by_requests(method, path, content=None, **options):
            data = options.pop("data", None) if content is None else content
            session.request(method, server.url + path, data=data, **options).raise_for_status()

        return send_by_requests

    yield sender
    for client in opened:
        client.close()


def keys_of(server, path):
    return [request.headers.get("Idempotency-Key") for request in server.requests if request.path == path]


class TestBody:
    @pytest.mark.parametrize("kind", [*READABLE, "list"])
    def test_body_is_what_is_sent(self, kind):
        request = httpx.Request("POST", "http://bank/upload", **upload_of(kind))
        body = body_of(request)
        assert ORDER in body
        assert b"".join(request.stream) == body

    @pytest.mark.parametrize("kind", READABLE)
    def test_body_is_the_same_after_it_was_sent(self, kind):
        request = httpx.Request("POST", "http://bank/upload", **upload_of(kind))
        sent = b"".join(request.stream)
        assert body_of(request) == sent

    def test_file_is_read_from_where_requests_starts(self):
        file = open_file(b"header;order 7")
        file.seek(7)
        request = requests.Request("POST", "http://bank/upload", data=file).prepare()
        assert body_of(request) == ORDER
        assert file.tell() == 7
        file.read()
        assert body_of(request) == ORDER
        assert file.read() == b""

    def test_bytearray_is_in_memory(self):
        assert body_of(requests.Request("POST", "http://bank/upload", data=bytearray(ORDER)).prepare()) == ORDER

    @pytest.mark.parametrize("kind", [*ONCE_ONLY, "form of a pipe"])
    def test_body_that_can_be_read_once_is_not_read(self, kind):
        request = httpx.Request("POST", "http://bank/upload", **upload_of(kind))
        with pytest.raises(BodyMissing, match="only once"):
            body_of(request)
        assert ORDER in b"".join(request.stream)

    def test_closed_file_is_missing(self):
        with open_file() as file:
            request = httpx.Request("POST", "http://bank/upload", content=file)
        with pytest.raises(BodyMissing, match="cannot be read"):
            body_of(request)

    def test_changed_file_is_missing(self):
        file = open_file()
        request = httpx.Request("POST", "http://bank/upload", content=file)
        file.truncate(3)
        with pytest.raises(BodyMissing, match="has changed"):
            body_of(request)

    @pytest.mark.parametrize("kind", ["file", "form"])
    def test_large_file_is_not_read(self, kind, monkeypatch):
        monkeypatch.setattr(known_request, "MOST_BYTES", 3)
        request = httpx.Request("POST", "http://bank/upload", **upload_of(kind))
        with pytest.raises(BodyMissing, match="larger than"):
            body_of(request)

    def test_request_without_a_body_has_none_missing(self):
        assert body_of(httpx.Request("GET", "http://bank/")) in (None, b"")
        assert body_of(requests.Request("GET", "http://bank/").prepare()) is None

    def test_boundary_does_not_make_forms_different(self):
        def content(order):
            return content_of(httpx.Request("POST", "http://bank/upload", **upload_of("form", order)))

        assert content(ORDER) == content(ORDER) != content(b"order 8")


class TestUploadKeys:
    """Inside a guarded function an upload has a key that is derived from its body, or the call is not retried."""

    def service(self):
        return redrive.Service("bank", retry=QUICK, breaker=None, budget=None, idempotent="key")

    @pytest.mark.parametrize("kind", READABLE)
    def test_upload_is_retried_with_its_key(self, server, send, kind):
        server.on("/status", Answer(502), Answer(200))
        service = self.service()
        request = send(service)

        @service
        def submit():
            request("POST", "/upload", **upload_of(kind))
            request("GET", "/status")

        submit()
        first, second = keys_of(server, "/upload")
        assert first == second is not None
        assert all(ORDER in request.body for request in server.requests if request.path == "/upload")

    def test_different_uploads_have_different_keys(self, server, send):
        service = self.service()
        request = send(service)

        @service
        def submit():
            for order in (b"order 7", b"order 8"):
                request("POST", "/upload", **upload_of("form", order))

        submit()
        assert len(set(keys_of(server, "/upload"))) == 2

    @pytest.mark.parametrize("kind", ONCE_ONLY)
    def test_upload_without_a_key_ends_the_call(self, server, send, kind):
        server.on("/status", Answer(502), Answer(200))
        service = self.service()
        request = send(service)

        @service
        def submit():
            request("POST", "/upload", **upload_of(kind))
            request("GET", "/status")

        with pytest.raises((httpx.HTTPStatusError, requests.HTTPError)) as failed:
            submit()
        assert server.count("/upload") == 1
        assert "without an Idempotency-Key" in str(failed.value.__notes__)

    @pytest.mark.parametrize(("method", "headers"), [("PUT", {}), ("POST", {"Idempotency-Key": "own"})])
    def test_upload_that_needs_no_derived_key_is_retried(self, server, send, method, headers):
        server.on("/status", Answer(502), Answer(200))
        service = self.service()
        request = send(service)

        @service
        def submit():
            request(method, "/upload", headers=headers, **upload_of("generator"))
            request("GET", "/status")

        submit()
        assert server.count("/upload") == 2

    def test_rejected_upload_may_be_retried(self, server, send):
        server.on("/upload", Answer(503, headers={"Retry-After": "0"}), Answer(201))
        service = self.service()
        request = send(service)

        @service
        def submit():
            try:
                request("POST", "/upload", **upload_of("generator"))
            except (httpx.HTTPStatusError, requests.HTTPError):
                raise redrive.Transient("later") from None

        submit()
        assert server.count("/upload") == 2

    def test_upload_outside_a_function_is_not_read(self, server):
        service = self.service()

        looked = []

        class Watched(io.BytesIO):
            def seekable(self):
                looked.append(1)
                return True

        with httpx.Client(transport=service.httpx_transport()) as client:
            assert client.post(server.url + "/upload", content=Watched(ORDER)).status_code == 201
        assert keys_of(server, "/upload") != [None]
        assert looked == []


class TestResentFiles:
    """A file is sent again from where it was when it was first sent."""

    def service(self):
        return redrive.Service("bank", retry=QUICK, breaker=None, budget=None, idempotent="key")

    @pytest.mark.parametrize("make", [io.BytesIO, open_file])
    @pytest.mark.parametrize("start", [0, 7])
    def test_seekable_file_is_rewound(self, server, send, make, start):
        server.on("/upload", Answer(503), Answer(503), Answer(201))
        file = make(b"header;order 7")
        file.seek(start)
        send(self.service())("POST", "/upload", content=file, headers={"Content-Length": str(14 - start)})
        assert [request.body for request in server.requests] == [b"header;order 7"[start:]] * 3

    def test_redirect_rewinds_the_file(self, server):
        server.on("/first", Answer(307, headers={"Location": server.url + "/upload"}))
        with httpx.Client(transport=self.service().httpx_transport(), follow_redirects=True) as client:
            assert client.post(server.url + "/first", content=io.BytesIO(ORDER)).status_code == 201
        assert [request.body for request in server.requests] == [ORDER, ORDER]

    def test_pipe_is_sent_once(self, server, send):
        server.on("/upload", Answer(503), Answer(201))
        with pytest.raises((httpx.HTTPStatusError, requests.HTTPError)):
            send(self.service())("POST", "/upload", content=Pipe(ORDER))
        assert server.count("/upload") == 1

    def test_bytearray_is_sent_again(self, server):
        server.on("/upload", Answer(503), Answer(201))
        with requests.Session() as session:
            session.mount("http://", self.service().requests_adapter())
            assert session.post(server.url + "/upload", data=bytearray(ORDER)).status_code == 201
        assert [request.body for request in server.requests] == [ORDER, ORDER]


class TestResumedAttempts:
    """An attempt that begins where the last one stopped must not lose a POST that equals an answered one."""

    @pytest.mark.parametrize("failures", [1, 2])
    def test_equal_post_after_a_resume_is_rejected(self, server, send, failures):
        server.on("/status", *[Answer(502)] * failures, Answer(200))
        service = redrive.Service("bank", retry=QUICK, breaker=None, budget=None, idempotent="key")
        request, todo = send(service), ["POST", "GET", "POST"]

        @service
        def work():
            while todo:
                if todo[0] == "POST":
                    request("POST", "/upload", content=ORDER)
                else:
                    request("GET", "/status")
                todo.pop(0)

        with pytest.raises(redrive.Permanent, match="equal request was answered"):
            work()
        assert server.count("/upload") == 1

    def test_function_that_reads_before_it_posts_starts_over(self, server, send):
        server.on("/status", lambda request: Answer(502 if request.number == 2 else 200))
        service = redrive.Service("bank", retry=QUICK, breaker=None, budget=None, idempotent="key")
        request = send(service)

        @service
        def work():
            request("GET", "/status")
            request("POST", "/upload", content=ORDER)
            request("GET", "/status")

        work()
        first, second = keys_of(server, "/upload")
        assert first == second is not None
