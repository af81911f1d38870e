"""Downloads that can be resumed and are checked."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from amlp_fairseq.common.files import sha256, writing


class Download(NamedTuple):
    """A file that has been downloaded and has the right checksum.

    Attributes:
        kind: where the checksum is from: ``published``, ``given`` by the user, or ``recorded`` by the first download.
    """

    path: Path
    url: str
    sha256: str
    kind: str


def read_checksums(path: Path) -> dict[str, str]:
    """Checksums by name, as ``sha256sum`` writes them; none where there is no file.

    Raises:
        ValueError: naming file and line of what is not a checksum and a name.
    """
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        words = line.split(maxsplit=1)
        if len(words) != 2:
            raise ValueError(f"{path}, line {number}: {line!r} is not a checksum and a name, as sha256sum writes them")
        found[words[1].lstrip("*")] = words[0]
    return found


def download(
    url: str, folder: Path, expected: str | None, mirror: str | None = None, given: Mapping[str, str] | None = None
) -> Download:
    """Fetch a file into a folder unless it is there; its checksum is compared in both cases.

    Args:
        url: where it is.
        folder: where it goes, beside a file SHA256SUMS of what has been fetched.
        expected: the published checksum; None where nobody has published one: then the first download's is recorded.
        mirror: ``http://host/path`` is fetched from ``<mirror>/host/path``.
        given: checksums that replace the published ones, by name.

    Raises:
        ValueError: if the download fails, or the checksum differs.
    """
    name = url.rsplit("/", 1)[1]
    path, sums = folder / name, folder / "SHA256SUMS"
    folder.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        _fetch(f"{mirror.rstrip('/')}/{url.split('://', 1)[1]}" if mirror else url, path)
    actual, recorded, kind = sha256(path), read_checksums(sums), "published"
    if given is not None:
        if name not in given:
            raise ValueError(f"--checksums has no line for {name}")
        kind, expected = "given", given[name]
    elif expected is None:
        kind, expected = "recorded", recorded.get(name, actual)
        if name not in recorded:
            print(f"{name}: nobody has published a checksum; recorded in {sums} for later runs", file=sys.stderr)
    if actual != expected:
        raise ValueError(
            f"{path} has the SHA-256 {actual}, the {kind} one is {expected}: it is corrupt, or another file than this "
            "recipe was written for; remove it and run again"
        )
    with writing(sums) as (file,):
        file.writelines(f"{checksum}  {each}\n" for each, checksum in {**recorded, name: actual}.items())
    return Download(path, url, actual, kind)


def _fetch(url: str, path: Path) -> None:
    """Let curl resume the download; start again if the server cannot resume it or nothing is left to resume."""
    print(f"+ {url}", file=sys.stderr, flush=True)
    part, whole = (path.with_name(path.name + suffix) for suffix in (".part", ".whole.part"))
    words = ["curl", "--fail", "--location", "--retry", "3", url]
    words += [] if sys.stderr.isatty() else ["--no-progress-meter"]
    try:
        status = subprocess.run([*words, "--output", str(part), "--continue-at", "-"]).returncode
        if status in (22, 33, 36) and part.exists():
            # The server may have failed for another reason, which does not cost what has arrived.
            status = subprocess.run([*words, "--output", str(whole)]).returncode
            if status == 0:
                whole.replace(part)
            whole.unlink(missing_ok=True)
    except FileNotFoundError:
        raise ValueError(f"{url}: curl is needed to download it") from None
    if status:
        raise ValueError(f"{url}: download failed; what has arrived is kept, run again to continue")
    part.replace(path)
