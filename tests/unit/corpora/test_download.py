"""Downloads are continued where they stopped, checked against the right checksum, and fetched from a mirror."""

from __future__ import annotations

import hashlib
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from amlp_fairseq.corpora.download import download, read_checksums

CONTENT = bytes(range(256)) * 9
DIGEST = hashlib.sha256(CONTENT).hexdigest()
URL = "http://nowhere.invalid/data/corpus.tgz"


@pytest.fixture
def mirror(tmp_path: Path) -> str:
    path = tmp_path / "mirror/nowhere.invalid/data/corpus.tgz"
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    return f"file://{tmp_path}/mirror/"


def test_a_download_is_kept_and_not_repeated(mirror: str, tmp_path: Path) -> None:
    found = download(URL, tmp_path / "new/out", DIGEST, mirror)
    assert found.path.read_bytes() == CONTENT
    assert (found.url, found.sha256, found.kind) == (URL, DIGEST, "published")
    assert read_checksums(tmp_path / "new/out/SHA256SUMS") == {"corpus.tgz": DIGEST}
    assert download(URL, tmp_path / "new/out", DIGEST, "file:///none") == found


@pytest.mark.parametrize("begun", [CONTENT[:700], CONTENT, CONTENT + b"more"], ids=["part", "whole", "too long"])
def test_a_stopped_download_goes_on(begun: bytes, mirror: str, tmp_path: Path) -> None:
    (tmp_path / "corpus.tgz.part").write_bytes(begun)
    assert download(URL, tmp_path, DIGEST, mirror).path.read_bytes() == CONTENT
    assert not (tmp_path / "corpus.tgz.part").exists()


def test_what_arrived_is_continued_not_replaced(mirror: str, tmp_path: Path) -> None:
    """A wrong beginning shows in the checksum."""
    (tmp_path / "corpus.tgz.part").write_bytes(b"x" * 700)
    with pytest.raises(ValueError, match=f"corpus.tgz has the SHA-256 .*, the published one is {DIGEST}: "):
        download(URL, tmp_path, DIGEST, mirror)
    assert (tmp_path / "corpus.tgz").read_bytes() == b"x" * 700 + CONTENT[700:]
    assert not (tmp_path / "SHA256SUMS").exists()


def test_the_first_checksum_is_recorded(mirror: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where nobody has published one; later files must have it."""
    assert download(URL, tmp_path, None, mirror).kind == "recorded"
    assert "corpus.tgz: nobody has published a checksum; recorded in" in capsys.readouterr().err
    assert download(URL, tmp_path, None, mirror).kind == "recorded"
    assert "nobody has published" not in capsys.readouterr().err
    (tmp_path / "corpus.tgz").write_bytes(b"other")
    with pytest.raises(ValueError, match=f"the recorded one is {DIGEST}"):
        download(URL, tmp_path, None, mirror)


def test_given_checksums_win(mirror: str, tmp_path: Path) -> None:
    (tmp_path / "sums").write_text(f"{DIGEST} *corpus.tgz\n{'0' * 64}  with space.tgz\n", encoding="utf-8")
    sums = read_checksums(tmp_path / "sums")
    assert sums == {"corpus.tgz": DIGEST, "with space.tgz": "0" * 64}
    assert download(URL, tmp_path, "0" * 64, mirror, sums).kind == "given"
    with pytest.raises(ValueError, match=r"--checksums has no line for corpus\.tgz"):
        download(URL, tmp_path, DIGEST, mirror, {})


def test_failures_are_named(mirror: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "corpus.tgz.part").write_bytes(CONTENT[:700])
    with pytest.raises(ValueError, match=re.escape("file:///none/nowhere.invalid/data/corpus.tgz: download failed;")):
        download(URL, tmp_path, DIGEST, "file:///none")
    assert (tmp_path / "corpus.tgz.part").read_bytes() == CONTENT[:700]
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match="curl is needed to download it"):
        download(URL, tmp_path, DIGEST, mirror)


def test_a_server_that_fails_costs_nothing_that_has_arrived(tmp_path: Path) -> None:
    """One that refuses (403) is not one that cannot resume, or has nothing more to send (416)."""

    class Refuses(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(403)

    (tmp_path / "corpus.tgz.part").write_bytes(CONTENT[:700])
    with ThreadingHTTPServer(("127.0.0.1", 0), Refuses) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(ValueError, match="download failed; what has arrived is kept"):
            download(f"http://127.0.0.1:{server.server_port}/corpus.tgz", tmp_path, DIGEST)
        server.shutdown()
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.tgz.part"]
    assert (tmp_path / "corpus.tgz.part").read_bytes() == CONTENT[:700]


def test_lines_of_checksums(tmp_path: Path) -> None:
    """Empty ones are nothing; one that is not of sha256sum is named."""
    path = tmp_path / "sums"
    path.write_text(f"\n{DIGEST}  a.tgz\n \n", encoding="utf-8")
    assert read_checksums(path) == {"a.tgz": DIGEST}
    path.write_text(f"{DIGEST}  a.tgz\n\nb.tgz\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"sums, line 3: 'b\.tgz' is not a checksum and a name, as sha256sum writes"):
        read_checksums(path)
