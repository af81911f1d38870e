"""A page that shows how translations come about: one file, for any browser, that loads nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib.resources import files

from amlp_fairseq.translator.steps import Decoding, moments

#: Where the data stand in the template.
MARK = "@DATA@"


def render(decodings: Sequence[Decoding]) -> str:
    """The page, from ``watch.html``; the data are the fields of ``Decoding``, with the time of each step."""
    systems = [
        {**asdict(decoding), "steps": [{**asdict(step), "time": step.time} for step in decoding.steps]}
        for decoding in decodings
    ]
    data = json.dumps({"moments": [0, *moments(decodings)], "systems": systems}, ensure_ascii=False)
    for sign in "<>&\u2028\u2029":  # JSON that HTML takes for nothing else
        data = data.replace(sign, f"\\u{ord(sign):04x}")
    template = files(__package__).joinpath("watch.html").read_text(encoding="utf-8")
    return template.replace(MARK, data)
