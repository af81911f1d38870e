"""Hypotheses of the models of examples/models, among which their teacher chooses."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import commands
import pytest
import torch

from amlp_fairseq import Translator
from amlp_fairseq.cli import watch
from amlp_fairseq.common.files import sha256
from amlp_fairseq.translator import steps
from amlp_fairseq.translator.translator import Translation

MODELS = commands.ROOT / "examples/models"
TEXTS = [
    "Next week a doctor must drink tea.",
    "I want to invite the woman if I am at home with the new dog.",
    "",
    "Although the small child is tired, the boys must visit the old doctor in front of the station at half past ten.",
    "Never seen 漢字 words, and one more.",
]
WRITERS = {"ibdecoder": {"beam": 4, "nbest": 4}, "ibdecoder_sa": {"beam": 8}, "cmlmc": {"iter_decode_with_beam": 5}}


@pytest.mark.parametrize("decode_dtype", [None, "int8"])
@pytest.mark.parametrize("name", WRITERS)
def test_the_teacher_likes_what_it_chooses_at_least_as_well(name: str, decode_dtype: str | None) -> None:
    options = WRITERS[name] | ({} if decode_dtype is None else {"decode_dtype": decode_dtype})
    own = Translator(MODELS / name, **options).translations(TEXTS)
    chosen = Translator(MODELS / name, rescore_path=str(MODELS / "ar"), **options).translations(TEXTS)
    assert [each.text for each in chosen] != [each.text for each in own]
    for before, after in zip(own, chosen, strict=True):
        liked = scores_of_ar([before, after])
        assert liked[1] >= liked[0] - 1e-3
        assert [score for _, score in after.alternatives] == sorted((s for _, s in after.alternatives), reverse=True)


def scores_of_ar(translations: list[Translation]) -> list[float]:
    """Mean log-probabilities, by the model's own forward pass."""
    ar = Translator(MODELS / "ar", backend="pytorch").pytorch()
    dictionary, found = ar.task.target_dictionary, []
    for each in translations:
        source = ar.task.source_dictionary.encode_line(" ".join(each.source_pieces), add_if_not_exist=False).long()
        target = dictionary.encode_line(" ".join(each.pieces), add_if_not_exist=False).long()
        inputs = torch.cat([target[-1:], target[:-1]])
        with torch.no_grad():
            output = ar.model(source[None], torch.tensor([len(source)]), inputs[None])
            lprobs = ar.model.get_normalized_probs(output, log_probs=True)[0]
        found.append(float(lprobs.gather(1, target[:, None]).mean()))
    return found


def test_watch_shows_what_was_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    options = {"beam": 8, "rescore_path": str(MODELS / "ar")}
    found = steps.decode(steps.load(MODELS / "ibdecoder_sa", **options), TEXTS[3])
    (expected,) = Translator(MODELS / "ibdecoder_sa", **options).translations(TEXTS[3:4])
    assert (found.text, found.calls) == (expected.text, expected.calls)
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    commands.call(watch, pytest.MonkeyPatch(), TEXTS[3], "--model", MODELS / "ibdecoder_sa", *words)
    assert f"  {found.calls} decoder calls: {found.text}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (
            "ibdecoder",
            ["--beam", "1", "--rescore-path", "ar"],
            "give --beam 2 or more",
        ),
        (
            "cmlmc",
            ["--iter-decode-with-beam", "1", "--rescore-path", "ar"],
            "--rescore-path needs candidates: --iter-decode-with-beam 2",
        ),
        ("ibdecoder", ["--rescore-path", "ibdecoder_sa"], "--num-directions is 1, the checkpoint has 2"),
        ("ibdecoder", ["--rescore-path", "cmlmc"], "does not generate in interleaved order"),
        ("ibdecoder", ["--rescore-path", "nowhere"], "nowhere"),
        ("ibdecoder", ["--rescore-path", f"{MODELS / 'ar'}:{MODELS / 'ar'}"], "one model is needed, not several"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes(model: str, options: list[str], message: str) -> None:
    words = [str(MODELS / word) if word in ("ar", "ibdecoder_sa", "cmlmc") else word for word in options]
    found = commands.run("amlp_fairseq.cli.main", "translate", "--model", MODELS / model, *words, check=False)
    assert message in found.splitlines()[-1]
    assert "--rescore-path" in found.splitlines()[-1]
    assert "Traceback" not in found


def test_another_dictionary_is_named(tmp_path: Path) -> None:
    other = tmp_path / "other"
    subprocess.run(["cp", "-r", MODELS / "ar", other], check=True)
    lines = (other / "dict.de.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    (other / "dict.de.txt").write_text("".join(lines[1:] + lines[:1]), encoding="utf-8")
    config = json.loads((other / "config.json").read_text(encoding="utf-8"))
    config["checksums"]["dict.de.txt"] = sha256(other / "dict.de.txt")  # as of a model that was made with it
    (other / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for name, options in (("ibdecoder", {"beam": 4, "rescore_path": str(other)}), ("ar", {"draft_path": str(other)})):
        option = "--rescore-path" if "rescore_path" in options else "--draft-path"
        with pytest.raises(ValueError, match=f"{option} {other}: its target dictionary is not that of the model"):
            Translator(MODELS / name, **{"beam": 1, **options})
