"""amlp-fairseq serve: every client gets the translations of its own texts, whatever others do meanwhile."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import re
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import commands
import httpx
import pytest
from small_systems import WORDS, System
from test_model_folders import folder_of

from amlp_fairseq import Translator
from amlp_fairseq.server.limits import Limits
from amlp_fairseq.server.server import listen, server
from amlp_fairseq.translator.stream import Stream, Tell
from amlp_fairseq.translator.texts import Partial
from amlp_fairseq.translator.translator import Translation

SECONDS = 60  # in which everything here has long happened
OPTIONS = [
    *("--max-batch", "16", "--max-texts", "20", "--max-characters", "300", "--max-body", "20000"),
    *("--max-waiting", "300", "--read-timeout", "1", "--long", "refuse", "--max-length", "40", "--nbest", "2"),
]
TOO_LONG = " ".join(["w1"] * 41)


def wait_for(true: Callable[[], Any]) -> Any:
    """The first value of a function that is true."""
    end = time.monotonic() + SECONDS
    while not (value := true()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return value


def started(folder: Path, output: Path, *options: str) -> tuple[Any, str]:
    """The process of a server and its address."""
    words = ["serve", "--model", folder, "--port", "0", *options]
    output.touch()
    child = commands.start("amlp_fairseq.cli.main", *words, output=output)

    def printed() -> Any:
        assert child.is_alive(), output.read_text(encoding="utf-8")
        return re.search(r"http://\S+", output.read_text(encoding="utf-8"))

    return child, wait_for(printed)[0]


@pytest.fixture(scope="module")
def folder(system: Callable[[str], System], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(system("ibdecoder"), tmp_path_factory.mktemp("serving") / "model")


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[tuple[str, int]]:
    """The address of a server, and its process."""
    child, address = started(folder, folder.parent / "out", *OPTIONS)
    yield address, child.pid
    child.terminate()
    child.join(SECONDS)
    assert child.exitcode == -signal.SIGTERM
    assert "Traceback" not in (folder.parent / "out").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def texts(folder: Path) -> dict[str, Translation]:
    """Texts, one of them empty, one of unknown words, and what the translator itself makes of them."""
    rng = random.Random(1)
    found = [" ".join(rng.choices(WORDS, k=rng.randint(1, 9))) for _ in range(40)] + ["", "ein unbekanntes Wort"]
    return dict(zip(found, Translator(folder, nbest=2).translations(found), strict=True))


def as_expected(answers: list[dict[str, Any]], expected: list[Translation]) -> None:
    assert [answer["text"] for answer in answers] == [each.text for each in expected]
    assert [answer["calls"] for answer in answers] == [each.calls for each in expected]
    for answer, each in zip(answers, expected, strict=True):
        assert answer["score"] == pytest.approx(each.score, abs=1e-4)
        assert [text for text, _ in answer["alternatives"]] == [text for text, _ in each.alternatives]


@asynccontextmanager
async def connection(address: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    url = httpx.URL(address)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def head(length: int) -> bytes:
    return f"POST /translate HTTP/1.1\r\nHost: here\r\nContent-Length: {length}\r\n\r\n".encode()


async def slowly(writer: asyncio.StreamWriter, data: bytes, answer: asyncio.Future[Any]) -> None:
    """Write now and then until there is an answer, or no connection."""
    while not answer.done():
        writer.write(data)
        await asyncio.sleep(0.1)


async def ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> None:
    """The connection of a slow client ends without another word."""
    rest = asyncio.ensure_future(reader.read())
    await slowly(writer, data, rest)
    assert isinstance(rest.exception(), ConnectionResetError) or rest.result() == b""


async def slow_body(address: str) -> None:
    """A byte now and then: 408, and the connection ends."""
    async with connection(address) as (reader, writer):
        writer.write(head(1000))
        answer = asyncio.ensure_future(reader.readuntil(b"}"))
        await slowly(writer, b" ", answer)
        assert answer.result().startswith(b"HTTP/1.1 408 ")
        await ends(reader, writer, b" ")


async def slow_head(address: str) -> None:
    """The connection ends before its headers do."""
    async with connection(address) as (reader, writer):
        writer.write(b"POST /translate HTTP/1.1\r\n")
        await ends(reader, writer, b"a: b\r\n")


async def cancelled(address: str, body: bytes) -> None:
    """A client that does not wait for its answer."""
    async with connection(address) as (_, writer):
        writer.write(head(len(body)) + body)
        await writer.drain()


async def refused(client: httpx.AsyncClient, status: int, content: bytes, says: str) -> None:
    answer = await client.post("/translate", content=content)
    assert (answer.status_code, says in answer.json()["error"]) == (status, True), answer.text


async def client_of(client: httpx.AsyncClient, texts: dict[str, Translation], requests: int, seed: int) -> None:
    """Requests of random texts, one after the other."""
    rng = random.Random(seed)
    for _ in range(requests):
        chosen = rng.choices(list(texts), k=rng.randint(0, 6))
        answer = await client.post("/translate", json={"texts": chosen})
        assert answer.status_code == 200, answer.text
        as_expected(answer.json()["translations"], [texts[text] for text in chosen])


async def load(address: str, texts: dict[str, Translation], clients: int, requests: int) -> None:
    """Clients at the same time, with others that are slow, send too much or nonsense, or go away; one asks all the time
    whether the server is well."""
    body = json.dumps({"texts": list(texts)[:20]}).encode()
    async with httpx.AsyncClient(base_url=address, timeout=SECONDS, limits=httpx.Limits(max_connections=100)) as client:
        work = [client_of(client, texts, requests, seed) for seed in range(clients)]
        others = [cancelled(address, body) for _ in range(clients // 5)]
        others += [slow_body(address), slow_body(address), slow_head(address)]
        for _ in range(clients // 10):
            too_long = json.dumps({"texts": ["w1", TOO_LONG]}).encode()
            others += [
                refused(client, 422, too_long, "texts[1]: 41 pieces"),
                refused(client, 413, b" " * 20_001, "more than 20000 bytes"),
                refused(client, 400, b'{"texts": ["w1"', "not JSON"),
            ]
        mixed = [*work, *others]
        random.Random(1).shuffle(mixed)
        tasks = asyncio.gather(*mixed)
        while not tasks.done():
            health = await client.get("/health")
            assert (health.status_code, health.json()["ready"]) == (200, True)
            await asyncio.sleep(0.05)
        await tasks


def test_load(served: tuple[str, int], texts: dict[str, Translation]) -> None:
    address, _ = served
    asyncio.run(load(address, texts, clients=50, requests=4))
    wait_for(lambda: httpx.get(f"{address}/health").json()["waiting"] == 0)


def resident(process: int) -> int:
    """Bytes of memory of a process."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) << 10


@pytest.mark.parametrize(("requests", "most"), [(8, 32), pytest.param(500, 96, marks=pytest.mark.long)])
def test_memory(served: tuple[str, int], texts: dict[str, Translation], requests: int, most: int) -> None:
    """Hundreds of requests (ten thousand) with all that goes wrong. The model alone takes some MB more for a while, as
    batches of new shapes come; what the server itself keeps is counted in test_nothing_is_kept."""
    address, process = served
    asyncio.run(load(address, texts, clients=20, requests=8))
    before = resident(process)
    asyncio.run(load(address, texts, clients=20, requests=requests))
    assert resident(process) - before < most << 20


BAD: dict[str, tuple[int, bytes, str]] = {
    "empty": (400, b"", "not JSON"),
    "broken": (400, b'{"texts": [', "not JSON"),
    "deep": (400, b'{"texts": ' + b"[" * 15_000, "not JSON"),
    "not utf-8": (400, b'{"texts": ["\xff"]}', "not UTF-8: byte 12"),
    "half a character": (400, b'{"texts": ["\\ud800"]}', "texts[0] has half a surrogate pair"),
    "no object": (400, b'["w1"]', 'must be {"texts"'),
    "no texts": (400, b"{}", 'must be {"texts"'),
    "one text": (400, b'{"texts": "w1"}', "list of strings, not a string"),
    "a number": (400, b'{"texts": ["w1", 1]}', "texts[1] must be a string, not a number"),
    "null": (400, b'{"texts": [null]}', "texts[0] must be a string, not null"),
    "an option": (400, b'{"texts": ["w1"], "beam": 3}', "unknown key 'beam'"),
    "a language": (400, b'{"texts": ["w1"], "target_lang": "xx"}', "source_lang, target_lang: "),
    "half a language": (400, b'{"texts": ["w1"], "source_lang": "\\ud800"}', "half a surrogate pair"),
    "no language": (400, b'{"texts": ["w1"], "source_lang": 3}', "source_lang must be a string, not a number"),
    "streams": (400, b'{"texts": ["w1", "w2"], "stream": true}', "one text can be streamed, not 2"),
    "stream what": (400, b'{"texts": ["w1"], "stream": "yes"}', "stream must be true or false, not a string"),
    "a long stream": (422, json.dumps({"texts": [TOO_LONG], "stream": True}).encode(), "texts[0]: 41 pieces"),
    "nbest above": (400, b'{"texts": ["w1"], "nbest": 3}', "nbest must be a number from 1 to 2"),
    "nbest below": (400, b'{"texts": ["w1"], "nbest": 0}', "nbest must be a number from 1 to 2"),
    "nbest true": (400, b'{"texts": ["w1"], "nbest": true}', "nbest must be a number from 1 to 2"),
    "too many": (413, json.dumps({"texts": [""] * 21}).encode(), "21 texts: at most 20"),
    "too many characters": (413, json.dumps({"texts": ["", "w" * 301]}).encode(), "texts[1] has 301 characters"),
    "too many bytes": (413, b" " * 20_001, "more than 20000 bytes"),
    "too long for the model": (422, json.dumps({"texts": ["w1", TOO_LONG]}).encode(), "texts[1]: 41 pieces"),
}


def test_mistakes(served: tuple[str, int]) -> None:
    """Each has its answer, on a connection that goes on."""
    with httpx.Client(base_url=served[0], timeout=SECONDS) as client:
        for name, (status, content, says) in BAD.items():
            for body in (content, iter([content])):  # with its length in advance, and without
                answer = client.post("/translate", content=body)
                assert (answer.status_code, says in answer.json()["error"]) == (status, True), f"{name}: {answer.text}"
        assert client.get("/translate").status_code == 405
        assert client.get("/translate").headers["allow"] == "POST"
        assert client.post("/health").status_code == 405
        assert "POST /translate" in client.get("/nowhere").json()["error"]
        assert client.post("/translate", json={"texts": ["w1"]}).status_code == 200


def test_far_too_much(served: tuple[str, int]) -> None:
    """A client that sends 5 MB before it reads gets the answer; more is not kept."""
    answer = httpx.post(f"{served[0]}/translate", content=(b" " * 50_000 for _ in range(100)), timeout=SECONDS)
    assert answer.status_code == 413


def test_answers(served: tuple[str, int], folder: Path, texts: dict[str, Translation]) -> None:
    with httpx.Client(base_url=served[0], timeout=SECONDS) as client:
        health = {"model": "model", "languages": ["en", "de"], "ready": True, "waiting": 0}
        assert client.get("/health").json() == health
        home = client.get("/").json()
        assert client.post("/translate", json=home["POST /translate"]).status_code == 200
        assert home["limits"]["max_texts"] == 20
        text = next(iter(texts))
        two, one = (
            client.post("/translate", json={"texts": [text], "nbest": nbest}).json()["translations"][0]
            for nbest in (2, 1)
        )
        assert (len(two["alternatives"]), one["alternatives"]) == (1, [])
        assert one["text"] == two["text"] == texts[text].text


def test_texts_of_several_sentences() -> None:
    """Every sentence is translated, and line feeds come back."""
    translator = Translator(commands.ROOT / "examples/models/ar", nbest=2)
    text = "She falls asleep. He sleeps.\r\n\nHe sleeps."
    with serving(translator) as (address, _):
        body = {"texts": [text], "nbest": 1}
        (answer,) = httpx.post(f"{address}/translate", json=body, timeout=SECONDS).json()["translations"]
    assert answer["text"] == "Sie schläft ein. Er schläft.\r\n\nEr schläft."
    assert [part["text"] for part in answer["parts"]] == ["Sie schläft ein.", "Er schläft.", "Er schläft."]
    assert [part["alternatives"] for part in answer["parts"]] == [[]] * 3
    assert (answer["alternatives"], answer["cuts"]) == ([], 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals(number: signal.Signals, folder: Path, tmp_path: Path) -> None:
    """It ends by its signal."""
    output = tmp_path / "out"
    output.touch()
    words = ["serve", "--model", folder, "--port=0", "--max-texts", "1"]
    child = commands.start("amlp_fairseq.cli.main", *words, output=output)
    address = wait_for(lambda: re.search(r"http://\S+", output.read_text(encoding="utf-8")))[0]
    assert httpx.post(f"{address}/translate", json={"texts": ["", ""]}).status_code == 413
    os.kill(child.pid, number)
    child.join(SECONDS)
    assert child.exitcode == -number
    printed = output.read_text(encoding="utf-8").splitlines()
    following, *rest = printed[printed.index(f"model translates en to de on {address}") + 1 :]
    assert following.startswith(f"next: curl {address}/translate ")
    assert rest == (["amlp-fairseq serve: interrupted"] if number == signal.SIGINT else [])


def test_no_server(folder: Path, tmp_path: Path) -> None:
    """One line each."""
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        for options, says in (
            (["--port", port], f"serve: --host 127.0.0.1 --port {port}: Address already in use"),
            (["--port", "0", "--host", "192.0.2.1"], "serve: --host 192.0.2.1 --port 0: Cannot assign"),
            (["--port", "65536"], "--port: '65536': a number from 0 to 65535"),
            (["--timeout", "nan"], "--timeout: 'nan': a number of seconds above 0"),
            (["--port", "0", "--host", ""], "--host: '': an address is needed, 0.0.0.0 for all"),
            (["--max-batch", "0"], "--max-batch: '0': a number from 1"),
        ):
            output = commands.run("amlp_fairseq.cli.main", "serve", "--model", folder, *options, check=False)
            assert (says in output, output.count("\n")) == (True, 1), output


def events(address: str, text: str, **options: Any) -> Iterator[dict[str, Any]]:
    """The events of a stream."""
    body = {"texts": [text], "stream": True, **options}
    with httpx.stream("POST", f"{address}/translate", json=body, timeout=SECONDS) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line:
                yield json.loads(line.removeprefix("data: "))


def test_streams(served: tuple[str, int], texts: dict[str, Translation]) -> None:
    """What a Translator says, several at a time, beside other requests and clients that go away."""
    address, _ = served
    for text in list(texts)[:3]:
        next(events(address, text))
    with ThreadPoolExecutor(4) as executor:
        loaded = executor.submit(asyncio.run, load(address, texts, clients=4, requests=2))
        streams = [*executor.map(lambda text: list(events(address, text, nbest=1)), texts)]
        loaded.result()
    for (text, expected), (*partial, last) in zip(texts.items(), streams, strict=True):
        as_expected([last["translation"]], [replace(expected, alternatives=())])
        assert len(partial) >= expected.calls - 1, text
        assert all(len(each["parts"]) == 2 for each in partial)


class Held:
    """Translates in capitals, once it is let to."""

    folder, languages, tokens = Path("held"), ("en", "de"), None
    nbest = 1

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.streams: list[str] = []
        self.go_on = threading.Event()

    def pair(self, source: str | None, target: str | None) -> tuple[str, str]:
        return self.languages

    def translations(self, texts: list[str], source_lang: str, target_lang: str) -> list[Translation]:
        self.seen += texts
        assert self.go_on.wait(SECONDS)
        return [Translation(text.upper()) for text in texts]

    def stream(self, text: str, source_lang: str, target_lang: str) -> Stream[Partial]:
        def work(tell: Tell[Partial]) -> None:
            (translation,) = self.translations([text], source_lang, target_lang)
            tell(Partial("", (translation.text,), translation))

        self.streams.append(text)
        return Stream(work)


@contextmanager
def held(**limits: Any) -> Iterator[tuple[Any, str, Any]]:
    """A translator that is held, the address of its server, and that server."""
    translator: Any = Held()
    with serving(translator, **limits) as (address, uvicorn):
        try:
            yield translator, address, uvicorn
        finally:
            translator.go_on.set()


@contextmanager
def serving(translator: Any, **limits: Any) -> Iterator[tuple[str, Any]]:
    """The address of a server, and that server, which runs in a thread."""
    ready: list[str] = []
    with listen("127.0.0.1", 0) as listener:
        uvicorn = server(translator, listener, Limits(**limits), ready.append)
        thread = threading.Thread(target=uvicorn.run, args=[[listener]])
        thread.start()
        try:
            yield wait_for(lambda: ready)[0], uvicorn
        finally:
            uvicorn.should_exit = True
            thread.join(SECONDS)
            assert not thread.is_alive()


def post(address: str, *texts: str) -> httpx.Response:
    return httpx.post(f"{address}/translate", json={"texts": texts}, timeout=SECONDS)


class Post(threading.Thread):
    """A request whose answer is waited for elsewhere."""

    def __init__(self, address: str, text: str) -> None:
        super().__init__()
        self.address, self.text = address, text
        self.start()

    def run(self) -> None:
        self.answer = post(self.address, self.text)

    def joined(self) -> Any:
        self.join(SECONDS)
        return self.answer.json()["translations"][0]["text"]


def waiting(address: str) -> Any:
    return httpx.get(f"{address}/health", timeout=SECONDS).json()["waiting"]


def test_too_many_requests() -> None:
    """Health answers while the model is busy, and so does a refusal."""
    with held(max_waiting=2) as (translator, address, _):
        first, second = Post(address, "a"), Post(address, "b")
        wait_for(lambda: waiting(address) == 2)
        answer = post(address, "c")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert "2 requests are waiting" in answer.json()["error"]
        translator.go_on.set()
        assert (first.joined(), second.joined()) == ("A", "B")
        assert post(address, "d").status_code == 200


def test_too_many_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are open are answered, further ones are refused until one of them ends."""
    monkeypatch.setattr("amlp_fairseq.server.server.CONNECTIONS", 3)
    with held() as (_, address, _):
        clients = [httpx.Client(base_url=address, timeout=SECONDS) for _ in range(3)]
        for client in [*clients, *clients]:
            assert client.get("/health").status_code == 200
        answer = httpx.get(f"{address}/health", timeout=SECONDS)
        assert (answer.status_code, answer.headers["connection"]) == (503, "close")
        assert answer.text == "500 connections are open: try again later\n"
        assert clients[0].get("/health").status_code == 200
        clients.pop().close()
        wait_for(lambda: httpx.get(f"{address}/health", timeout=SECONDS).status_code == 200)
        for client in clients:
            client.close()


async def half_behind_whole(address: str) -> None:
    """A request that has begun in the same packet as others has no more time than any."""
    whole = b"GET /health HTTP/1.1\r\nHost: here\r\n\r\n"
    async with connection(address) as (reader, writer):
        writer.write(whole + whole + whole[:20])
        for _ in range(2):
            assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 ")
        rest = asyncio.ensure_future(reader.read())
        await asyncio.wait([rest], timeout=SECONDS / 2)
        assert isinstance(rest.exception(), ConnectionResetError) or rest.result() == b""


def test_half_a_request_behind_a_whole_one() -> None:
    with held(read_timeout=0.5) as (_, address, _):
        asyncio.run(half_behind_whole(address))


def test_too_long_a_time() -> None:
    with held(timeout=0.2) as (translator, address, _):
        first = post(address, "a")
        assert (first.status_code, first.json()["error"].split(":")[0]) == (504, "no translation within 0.2 s")
        assert post(address, "b").status_code == 504
        assert waiting(address) == 0
        translator.go_on.set()
        wait_for(lambda: post(address, "c").status_code == 200)
        assert translator.seen.count("b") == 0


def test_streams_take_turns() -> None:
    """One that takes too long ends with an error, as does one that waits for it; then there is room again."""
    with held(timeout=0.3, max_waiting=2) as (translator, address, _), ThreadPoolExecutor(2) as executor:
        both = [executor.submit(list, events(address, text)) for text in "ab"]
        wait_for(lambda: len(translator.streams) == 2)
        answer = httpx.post(f"{address}/translate", json={"texts": ["c"], "stream": True}, timeout=SECONDS)
        assert answer.status_code == 503
        ends = [each.result()[-1] for each in both]
        assert ends == [{"error": "no translation within 0.3 s"}] * 2
        translator.go_on.set()
        (only,) = wait_for(lambda: [*events(address, "d")])
        assert only["translation"]["text"] == "D"


def test_gone_clients_are_dropped() -> None:
    with held() as (translator, address, _):
        first = Post(address, "a")
        wait_for(lambda: translator.seen)
        url, body = httpx.URL(address), b'{"texts": ["gone"]}'
        with socket.create_connection((url.host, url.port)) as client:
            client.sendall(head(len(body)) + body)
            wait_for(lambda: waiting(address) == 2)
        wait_for(lambda: waiting(address) == 1)
        translator.go_on.set()
        assert first.joined() == "A"
        assert post(address, "b").json()["translations"][0]["text"] == "B"
        assert translator.seen == ["a", "b"]


def test_nothing_is_kept() -> None:
    """Not one object for a request, whatever its end was."""
    with held() as (translator, address, _), httpx.Client(base_url=address, timeout=SECONDS) as client:
        translator.go_on.set()
        body = json.dumps({"texts": ["a", "b"]}).encode()

        def kept() -> int:
            gc.collect()
            return len(gc.get_objects())

        def requests(count: int) -> None:
            for _ in range(count):
                assert client.post("/translate", content=body).status_code == 200
                assert client.post("/translate", content=b"[").status_code == 400
                with socket.create_connection((client.base_url.host, client.base_url.port)) as gone:
                    gone.sendall(head(len(body)) + body)
            translator.seen.clear()
            wait_for(lambda: client.get("/health").json()["waiting"] == 0)

        requests(50)
        before = kept()
        requests(200)
        # connections that clients have left are closed a moment later
        wait_for(lambda: kept() < before + 100)


def test_a_server_that_ends_finishes_what_has_begun() -> None:
    with held(max_batch=1) as (translator, address, uvicorn):
        begun = [Post(address, text) for text in "abc"]
        wait_for(lambda: waiting(address) == 3)
        uvicorn.should_exit = True

        def refuses() -> bool:
            try:
                socket.create_connection((httpx.URL(address).host, httpx.URL(address).port)).close()
            except ConnectionRefusedError:
                return True
            return False

        wait_for(refuses)
        translator.go_on.set()
        assert [each.joined() for each in begun] == ["A", "B", "C"]
