"""A translator over HTTP, see docs/serving.md."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from amlp_fairseq.server.batcher import Batcher, Full
from amlp_fairseq.server.limits import Limits
from amlp_fairseq.text.sentences import TooLong
from amlp_fairseq.translator.stream import Stream
from amlp_fairseq.translator.texts import Partial
from amlp_fairseq.translator.translator import Translation, Translator

USAGE = "POST /translate, GET /health, GET /"
#: The keys of a request.
KEYS = ("texts", "nbest", "source_lang", "target_lang", "stream")
#: The answer after an unexpected error.
FAILED = "the server failed; its log says where"
#: Maximum number of open connections; further ones get 503.
CONNECTIONS = 500
_BODY = b"%d connections are open: try again later\n" % CONNECTIONS
TOO_MANY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n"
    b"Retry-After: 1\r\n\r\n%b" % (len(_BODY), _BODY)
)
#: Seconds until an idle connection is closed: more than proxies and clients keep connections, so that none begins a
#: request while the connection is closed.
KEEP_ALIVE = 65


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one.

    Raises:
        OSError: if the address is taken, or not an address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=CONNECTIONS)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else "unknown host"
        raise OSError(f"--host {host} --port {port}: {reason} (--port 0 takes one that is free)") from None


def server(
    translator: Translator, listener: socket.socket, limits: Limits, announce: Callable[[str], None]
) -> uvicorn.Server:
    """The uvicorn server, which ``run([listener])`` starts. On SIGINT or SIGTERM it finishes open requests, then calls
    the previous signal handler.

    Args:
        translator: used by no other thread meanwhile.
        listener: from :func:`listen`.
        limits: see there.
        announce: called with the address (``http://127.0.0.1:8000``) when the server accepts requests.
    """
    host, port = listener.getsockname()[:2]
    address = f"http://[{host}]:{port}" if listener.family == socket.AF_INET6 else f"http://{host}:{port}"
    config = uvicorn.Config(
        application(translator, limits, lambda: announce(address)),
        http=_limited_protocol(limits.read_timeout),
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=math.ceil(limits.read_timeout + limits.timeout),
    )
    return uvicorn.Server(config)


def application(translator: Translator, limits: Limits, started: Callable[[], None]) -> Starlette:
    """The ASGI application; calls ``started`` when it accepts requests."""
    service = _Service(translator, limits)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        with service.batcher:
            started()
            yield

    routes = [
        Route("/", service.home, methods=["GET"]),
        Route("/health", service.health, methods=["GET"]),
        Route("/translate", service.translate, methods=["POST"]),
    ]
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _refused, Exception: _failed})


@dataclass(frozen=True)
class _Wanted:
    """What a request wants; see docs/serving.md."""

    texts: list[str]
    nbest: int
    languages: tuple[str, str]
    stream: bool


class _Service:
    """Answers requests."""

    def __init__(self, translator: Translator, limits: Limits) -> None:
        self.limits, self.translator = limits, translator
        self.batcher = Batcher(translator, limits.max_batch, limits.max_waiting)
        self.facts = {"model": translator.folder.resolve().name, "languages": list(translator.languages)}
        if translator.tokens is not None:
            self.facts["codes"] = list(translator.tokens.codes)
        self.nbest = translator.nbest
        self.streams, self.turn = 0, asyncio.Lock()

    async def home(self, request: Request) -> Response:
        example = {"texts": [f"A sentence ({self.facts['languages'][0]})."], "nbest": self.nbest}
        limits = {"nbest": self.nbest, **asdict(self.limits)}
        return JSONResponse({**self.facts, "usage": USAGE, "POST /translate": example, "limits": limits})

    async def health(self, request: Request) -> Response:
        ready = self.batcher.alive
        answer = {**self.facts, "ready": ready, "waiting": self.batcher.waiting + self.streams}
        return JSONResponse(answer, 200 if ready else 503)

    async def translate(self, request: Request) -> Response:
        try:
            body = await asyncio.wait_for(self._body(request), self.limits.read_timeout)
        except asyncio.TimeoutError:
            # Discard the rest until the client closes: if the server closed first, the client would lose the answer.
            raise HTTPException(408, f"the request did not arrive within {self.limits.read_timeout:g} s") from None
        except ClientDisconnect:
            return Response(status_code=499)  # never sent
        wanted = self._request(body)
        if wanted.stream:
            return await self._streamed(wanted)
        try:
            future = asyncio.wrap_future(self.batcher.submit(wanted.texts, wanted.languages))
        except Full as error:
            raise HTTPException(503, f"{error}: try again later", {"Retry-After": "1"}) from None
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            either: list[asyncio.Future[Any]] = [future, gone]
            await asyncio.wait(either, timeout=self.limits.timeout, return_when=asyncio.FIRST_COMPLETED)
            if future.done():
                answers = [_answer(translation, wanted.nbest) for translation in future.result()]
                return JSONResponse({"translations": answers})
            if gone.done():
                return Response(status_code=499)
            raise HTTPException(504, f"no translation within {self.limits.timeout:g} s: send less, or try again later")
        except TooLong as error:
            raise HTTPException(422, f"texts[{error.number - 1}]: {error}") from None
        finally:
            future.cancel()
            gone.cancel()

    async def _streamed(self, wanted: _Wanted) -> Response:
        """Server-sent events of one text. Streams take turns."""
        if self.streams + self.batcher.waiting >= self.limits.max_waiting:
            raise HTTPException(
                503, f"{self.limits.max_waiting} requests are waiting: try again later", {"Retry-After": "1"}
            )
        source, target = wanted.languages
        try:
            stream = await run_in_threadpool(
                self.translator.stream, wanted.texts[0], source_lang=source, target_lang=target
            )
        except TooLong as error:
            raise HTTPException(422, f"texts[0]: {error}") from None
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        return StreamingResponse(self._events(stream, wanted.nbest), 200, headers, "text/event-stream")

    async def _events(self, stream: Stream[Partial], nbest: int) -> AsyncIterator[str]:
        partials: asyncio.Queue[Partial | None] = asyncio.Queue()
        work = asyncio.ensure_future(self._follow(stream, partials))

        def too_late() -> None:
            stream.close()
            work.cancel()

        timer = asyncio.get_running_loop().call_later(self.limits.timeout, too_late)
        self.streams, found, before = self.streams + 1, None, ""
        try:
            while (partial := await partials.get()) is not None:
                if (found := partial.translation) is not None:
                    yield _event({"translation": _answer(found, nbest)})
                    continue
                new = {} if partial.before == before else {"before": partial.before}
                before = partial.before
                yield _event({**new, "parts": partial.parts})
            await asyncio.wait([work])
            if not work.cancelled() and work.exception() is not None:
                yield _event({"error": FAILED})
                work.result()
            if found is None:
                yield _event({"error": f"no translation within {self.limits.timeout:g} s"})
        finally:
            self.streams -= 1
            timer.cancel()
            too_late()

    async def _follow(self, stream: Stream[Partial], partials: asyncio.Queue[Partial | None]) -> None:
        """What a stream gives, which does not wait for the client to read it."""
        try:
            async with self.turn:
                while (partial := await run_in_threadpool(next, stream, None)) is not None:
                    partials.put_nowait(partial)
        finally:
            partials.put_nowait(None)

    async def _body(self, request: Request) -> bytes:
        """The body of a request. Of a body that is too long the rest is discarded, so that the client reads the answer.

        Raises:
            HTTPException: 413 for a body over the limit.
        """
        limit = self.limits.max_body
        body = bytearray()
        length = int(request.headers.get("content-length", 0))
        if length <= limit:
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    break
        if max(length, len(body)) > limit:
            raise HTTPException(413, f"the request has more than {limit} bytes")
        return bytes(body)

    def _request(self, body: bytes) -> _Wanted:
        """Read a request.

        Raises:
            HTTPException: 400 for malformed requests, 413 for requests over a limit.
        """
        try:
            request = json.loads(body.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise HTTPException(400, f"the request is not UTF-8: byte {error.start}, {error.reason}") from None
        except (ValueError, RecursionError) as error:
            raise HTTPException(400, f"the request is not JSON: {error}") from None
        if not isinstance(request, dict) or "texts" not in request:
            raise HTTPException(400, 'the request must be {"texts": ["…", …]}')
        if unknown := request.keys() - KEYS:
            options = "decoding options are those that the server was started with"
            raise HTTPException(400, f"unknown key {min(unknown)!r}: known are {', '.join(KEYS)}; {options}")
        texts, nbest = request["texts"], request.get("nbest", self.nbest)
        if not isinstance(texts, list):
            raise HTTPException(400, f"texts must be a list of strings, not {_kind(texts)}")
        if len(texts) > self.limits.max_texts:
            raise HTTPException(413, f"{len(texts)} texts: at most {self.limits.max_texts} may be sent at once")
        for index, text in enumerate(texts):
            self._check(f"texts[{index}]", text)
        if type(nbest) is not int or not 1 <= nbest <= self.nbest:
            message = f"nbest must be a number from 1 to {self.nbest}, the server's own (amlp-fairseq serve --nbest)"
            raise HTTPException(400, message)
        stream = request.get("stream", False)
        if not isinstance(stream, bool):
            raise HTTPException(400, f"stream must be true or false, not {_kind(stream)}")
        if stream and len(texts) != 1:
            raise HTTPException(400, f"one text can be streamed, not {len(texts)}")
        given = [request.get(name) for name in KEYS[2:4]]
        for name, code in zip(KEYS[2:4], given, strict=True):
            if code is not None:
                self._check(name, code)
        try:
            return _Wanted(texts, nbest, self.translator.pair(*given), stream)
        except ValueError as error:
            raise HTTPException(400, str(error)) from None

    def _check(self, name: str, text: object) -> None:
        if not isinstance(text, str):
            raise HTTPException(400, f"{name} must be a string, not {_kind(text)}")
        if len(text) > self.limits.max_characters:
            raise HTTPException(413, f"{name} has {len(text)} characters: at most {self.limits.max_characters}")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise HTTPException(400, f"{name} has half a surrogate pair at character {error.start}") from None


def _kind(value: object) -> str:
    """The name of a value's type in JSON."""
    if value is None:
        return "null"
    kinds = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list", dict: "an object"}
    return kinds[type(value)]


def _answer(translation: Translation, nbest: int) -> dict[str, Any]:
    parts = tuple(replace(part, alternatives=part.alternatives[: nbest - 1]) for part in translation.parts)
    return asdict(replace(translation, alternatives=translation.alternatives[: nbest - 1], parts=parts))


def _event(data: dict[str, Any]) -> str:
    """A server-sent event."""
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"


async def _disconnected(request: Request) -> None:
    """Return when the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = error.detail
    if error.status_code in (404, 405):
        detail = f"{request.method} {request.url.path}: {detail}; there are {USAGE}"
    return JSONResponse({"error": detail}, error.status_code, error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    """The answer after an unexpected error, whose traceback uvicorn logs."""
    return JSONResponse({"error": FAILED}, 500)


def _limited_protocol(seconds: float) -> type[H11Protocol]:
    """HTTP/1.1 protocol that closes connections over the limit, and connections on which the headers of the first
    request, or of a request that has begun, are late.

    Args:
        seconds: time for the headers.
    """

    class LimitedProtocol(H11Protocol):
        deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > CONNECTIONS:
                transport.write(TOO_MANY)
                transport.close()
            else:
                self.set_deadline()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.deadline is None and self.cycle.response_complete:
                self.set_deadline()

        def on_response_complete(self) -> None:
            self.no_deadline()
            super().on_response_complete()
            if self.conn.trailing_data[0]:  # the next request has begun
                self.set_deadline()

        def connection_lost(self, exc: Exception | None) -> None:
            self.no_deadline()
            super().connection_lost(exc)

        def set_deadline(self) -> None:
            self.deadline = self.loop.call_later(seconds, self.end_if_late)

        def no_deadline(self) -> None:
            if self.deadline is not None:
                self.deadline.cancel()
            self.deadline = None

        def end_if_late(self) -> None:
            self.deadline = None
            begun = self.conn.their_state is not h11.IDLE or self.conn.trailing_data[0]
            if self.cycle is None or (self.cycle.response_complete and begun):
                self.transport.abort()

    return LimitedProtocol
