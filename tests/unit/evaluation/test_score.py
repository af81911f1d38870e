"""amlp-fairseq score: every sentence once, in input order, with sacreBLEU's numbers."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import sacrebleu
import sentencepiece

from amlp_fairseq.evaluation import score as module
from amlp_fairseq.text import bleu

REFERENCES = [
    "The cat sat on the mat .",
    "Two dogs run through the wet grass .",
    "A man in a red shirt climbs a steep wall .",
    "Nobody is here .",
]
HYPOTHESES = [
    "the cat sat on a mat .",
    "Two dogs are running through the grass .",
    "A man in a red shirt climbs a wall .",
    "No one is here .",
]


def generated(hypotheses: list[str], order: list[int] | None = None, steps: list[int] | None = None) -> str:
    """What fairseq-generate prints for hypotheses, in ``order``; I- lines if there are ``steps``."""
    found = ["2026-11-21 05:00:00 | INFO | fairseq_cli.generate | loading model(s) from checkpoint.pt"]
    for i in order or range(len(hypotheses)):
        words = hypotheses[i].split()
        scores = " ".join(["-0.5000"] * (len(words) + 1))
        found += [f"S-{i}\tsource {i}", f"T-{i}\ttarget {i}", f"H-{i}\t-0.25\t{hypotheses[i]}"]
        found += [f"D-{i}\t-0.25\t{hypotheses[i]}", f"P-{i}\t{scores}"]
        if steps is not None:
            found.append(f"I-{i}\t{steps[i]}")
    return "\n".join(found) + "\n"


def score(
    output: str, references: list[str] = REFERENCES, word_by_word: bool = False, **options: Any
) -> dict[str, Any]:
    """All that the command finds in an output of fairseq-generate."""
    hypotheses = module.outputs_of(output, len(references), "fairseq")
    return module.score(hypotheses, [references], **options) | module.costs(output, word_by_word)


def test_numbers_are_sacrebleus() -> None:
    result = score(generated(HYPOTHESES))
    assert result["bleu"] == round(sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score, 2)
    assert result["chrf"] == round(sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score, 2)
    assert 0 < result["bleu"] < 100
    assert result["sentences"] == 4
    assert f"version:{sacrebleu.__version__}" in result["bleu_signature"]
    assert "tok:13a" in result["bleu_signature"]
    assert result["chrf_signature"].startswith("nrefs:1|")


@pytest.mark.parametrize(
    ("hypothesis", "reference", "tokenised", "split"),
    [
        # 6 tokens "Das gut-bezahlte Haus steht dort ." for the Moses tokeniser; 8 once the hyphen is a word: equal.
        ("Das gut-bezahlte Haus steht dort.", "Das gut-bezahlte Haus steht dort.", 100.0, 100.0),
        # One of 6 tokens differs: precisions 5/6, 3/5, 2/4, 1/3. Split: 7/8, 5/7, 4/6, 3/5.
        ("Das gut-bezahlte Haus steht dort.", "Das schlecht-bezahlte Haus steht dort.", 53.73, 70.71),
        # Not a word with a hyphen: a dash stays alone.
        ("Er kam - und ging wieder.", "Er kam - und ging wieder.", 100.0, 100.0),
    ],
)
def test_tokenised_and_compound_split_bleu(hypothesis: str, reference: str, tokenised: float, split: float) -> None:
    result = score(generated([hypothesis]), [reference])
    assert result["tokenised_bleu"] == pytest.approx(tokenised, abs=0.01)
    assert result["compound_split_bleu"] == pytest.approx(split, abs=0.01)


@pytest.mark.parametrize("language", ["zh", "zh-CN", "ZH_tw", "zho_Hans", "cmn", "zh-Hant-HK", "yue_Hant"])
def test_chinese_has_no_spaces(language: str) -> None:
    """One of 12 characters differs, the seventh: precisions 11/12, 9/11, 7/10, 5/9."""
    result = score(generated(["我昨天在大学看书学习了。"]), ["我昨天在大学读书学习了。"], language=language)
    assert result["bleu"] == pytest.approx(100 * (11 / 12 * 9 / 11 * 7 / 10 * 5 / 9) ** 0.25, abs=0.01)
    assert "|tok:zh|" in result["bleu_signature"]
    assert not {"tokenised_bleu", "compound_split_bleu"} & result.keys()  # it would be one word


@pytest.fixture
def fresh_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which sacreBLEU looks for its model of pieces; there is no network."""
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_spm.SACREBLEU_DIR", str(tmp_path))
    monkeypatch.setattr("urllib.request.urlopen", refuse)
    bleu._subword_bleu.cache_clear()
    yield tmp_path
    bleu._subword_bleu.cache_clear()


def refuse(address: str, *_: object) -> None:
    raise URLError(f"no way to {address}")


@pytest.mark.parametrize("language", ["th", "tha_Thai", "tha"])
def test_thai_is_counted_in_characters_without_a_network(
    language: str, fresh_pieces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of 9 characters differs, the last: precisions 8/9, 7/8, 6/7, 5/6."""
    result = score(generated(["สวัสดีครบ"]), ["สวัสดีครก"], language=language)
    assert result["bleu"] == pytest.approx(100 * (8 / 9 * 7 / 8 * 6 / 7 * 5 / 6) ** 0.25, abs=0.01)
    assert "|tok:char|" in result["bleu_signature"]
    assert "BLEU is of characters" in capsys.readouterr().err


@pytest.mark.parametrize("language", ["mya_Mymr", "lo", "khm"])
def test_languages_without_spaces_are_counted_in_pieces_of_flores(language: str, fresh_pieces: Path) -> None:
    """Pieces of one character each, so that the number is that of characters."""
    text = fresh_pieces / "text"
    text.write_text("a b c d e f g h i j\n" * 20, encoding="utf-8")
    options = {"vocab_size": 14, "model_type": "char", "character_coverage": 1.0}
    (fresh_pieces / "models").mkdir()
    model = fresh_pieces / "models/flores200sacrebleuspm"
    sentencepiece.SentencePieceTrainer.train(input=str(text), model_prefix=str(model), minloglevel=2, **options)
    model.with_suffix(".model").rename(model)
    result = score(generated(["abcdefgh"]), ["abcdefgi"], language=language)
    # "▁" and 8 characters, the last differs
    assert result["bleu"] == pytest.approx(100 * (8 / 9 * 7 / 8 * 6 / 7 * 5 / 6) ** 0.25, abs=0.01)
    assert "|tok:flores200|" in result["bleu_signature"]


def test_words_are_those_of_the_language() -> None:
    """Moses does not split off the full stop of a German ordinal number; of an English one it does."""
    texts = generated(["Er kam am 3. Mai an ."]), ["Er kam am 3 . Mai an ."]
    short = score(*texts, language="de")
    assert score(*texts, language="deu_Latn") == score(*texts, language="de-DE") == short
    assert score(*texts, language="en")["tokenised_bleu"] > short["tokenised_bleu"]


@pytest.mark.parametrize(
    ("code", "extra", "library"), [("ja", "ja", "MeCab"), ("jpn_Jpan", "ja", "MeCab"), ("kor", "ko", "mecab_ko")]
)
def test_a_tokeniser_that_is_not_installed(
    code: str, extra: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ValueError, match=rf'sacreBLEU\'s tokeniser for it: pip install "sacrebleu\[{extra}\]"'):
        score(generated(HYPOTHESES), language=code)


def test_several_references() -> None:
    """A line is right if one of them says it; with a second set of them, that is sacreBLEU's number for both."""
    other = ["the cat sat on a mat .", "Two dogs ran .", "A man climbs .", "No one is here ."]
    result = module.score(HYPOTHESES, [REFERENCES, other], "en")
    assert result["bleu"] == round(sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES, other]).score, 2)
    assert result["chrf"] == round(sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES, other]).score, 2)
    assert str(result["bleu_signature"]).startswith("nrefs:2|")
    assert module.score(HYPOTHESES, [REFERENCES, HYPOTHESES])["tokenised_bleu"] == 100
    for metric, field in (("bleu", "tokenised_bleu"), ("rouge", "rouge_l")):
        one, both = (
            module.score(HYPOTHESES, sets, "en", metric)[field] for sets in ([REFERENCES], [REFERENCES, other])
        )
        assert both > one


def test_what_is_wrong_with_outputs() -> None:
    result = score(generated(["a a b b b a", "", "c d c d", "e"]), REFERENCES)
    assert (result["empty_outputs"], result["repeated_words"]) == (1, 3)


def test_sentences_are_put_in_order() -> None:
    """fairseq prints them sorted by length."""
    order = [2, 0, 3, 1]
    assert score(generated(HYPOTHESES, order)) == score(generated(HYPOTHESES))
    in_printed_order = sacrebleu.corpus_bleu([HYPOTHESES[i] for i in order], [REFERENCES]).score
    assert score(generated(HYPOTHESES, order))["bleu"] != pytest.approx(in_printed_order, abs=1)


def test_ids_of_several_digits() -> None:
    references = [f"This is the sentence with number {i} ." for i in range(120)]
    assert score(generated(references, sorted(range(120), key=str)), references)["bleu"] == 100


def test_references_without_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "references").touch()
    with pytest.raises(ValueError, match=r"references is empty$"):
        module.read_references(tmp_path / "references")
    (tmp_path / "references").write_text("\n")  # one, which is empty
    assert module.read_references(tmp_path / "references") == [""]


@pytest.mark.parametrize(
    ("order", "references", "complaint"),
    [
        ([0, 1, 3], 4, "3 outputs for 4 references; missing or unexpected: [2]"),
        ([0, 1, 2, 3], 3, "4 outputs for 3 references; missing or unexpected: [3]"),
        ([1, 2, 3], 3, "3 outputs for 3 references; missing or unexpected: [0, 3]"),
    ],
    ids=["too few", "too many", "others"],
)
def test_each_sentence_must_be_there(order: list[int], references: int, complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)):
        score(generated(HYPOTHESES, order), REFERENCES[:references])


@pytest.mark.parametrize(
    ("text", "form", "complaint"),
    [
        ("Traceback (most recent call last):\n", "auto", "1 lines for 4 references"),
        ("", "auto", "0 lines for 4 references"),
        ("\n".join([*HYPOTHESES, "one more"]), "auto", "5 lines for 4 references"),
        ("\n".join(HYPOTHESES), "fairseq", "0 outputs for 4 references"),
        (generated(HYPOTHESES), "lines", "21 lines for 4 references"),
        ("\n".join([*HYPOTHESES[:3], "D-7\tis a seat"]), "auto", "1 of 4 lines begin as those of fairseq-generate"),
    ],
)
def test_outputs_that_do_not_fit(text: str, form: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        module.outputs_of(text, 4, form)


def test_lines_as_translate_writes_them() -> None:
    """Also an empty one, and one that looks like another format if it is said that there are lines."""
    for lines in (HYPOTHESES, ["", *HYPOTHESES[:2], ""], [*HYPOTHESES[:3], "see S-1\tand D-1\t"]):
        assert module.outputs_of("".join(line + "\n" for line in lines), 4) == lines
    seat = [*HYPOTHESES[:3], "D-7\tis a seat"]
    assert module.outputs_of("\n".join(seat), 4, "lines") == seat


def test_lines_of_fairseq_alone() -> None:
    """What ``grep ^D-`` or ``grep ^H-`` leaves of its output."""
    for kind in "DH":
        printed = [line for line in generated(HYPOTHESES, [2, 0, 3, 1]).splitlines() if line.startswith(kind)]
        assert module.outputs_of("\n".join(printed), 4) == HYPOTHESES


def test_first_of_several_hypotheses_counts() -> None:
    """``--nbest`` prints a sentence's D- lines best first."""
    best = generated(HYPOTHESES)
    both = re.sub(r"^(D-(\d+)\t).*$", r"\g<0>\n\g<1>-9.0\tworse \g<2>", best, flags=re.MULTILINE)
    assert both.count("\nD-") == 8
    assert score(both) == score(best)


@pytest.mark.parametrize("line", ["D-3\t-0.5\t", "D-3\t-0.5"], ids=["as printed", "without trailing tab"])
def test_empty_hypothesis(line: str) -> None:
    output = generated(HYPOTHESES).replace(f"D-3\t-0.25\t{HYPOTHESES[3]}", line)
    assert line + "\n" in output
    expected = sacrebleu.corpus_bleu([*HYPOTHESES[:3], ""], [REFERENCES]).score
    assert score(output)["bleu"] == round(expected, 2)
    assert score(output)["bleu"] < score(generated(HYPOTHESES))["bleu"]


def test_text_that_looks_like_an_output() -> None:
    """Only the start of a line tells what it is."""
    source = "S-1\tsee D-2\t-0.1\tnonsense, or I-2\t99\n"
    assert score(source + generated(HYPOTHESES)) == score(generated(HYPOTHESES))


def test_steps_that_the_decoder_reports() -> None:
    assert score(generated(HYPOTHESES, steps=[4, 5, 5, 3]))["steps_per_sentence"] == 4.25


def test_steps_of_an_autoregressive_decoder() -> None:
    """No I- lines: a step for each word and for the end symbol, (8 + 9 + 11 + 6) / 4, if it is known to be one."""
    assert [len(h.split()) for h in HYPOTHESES] == [7, 8, 10, 5]
    assert score(generated(HYPOTHESES), word_by_word=True)["steps_per_sentence"] == 8.5
    assert "steps_per_sentence" not in score(generated(HYPOTHESES))


@pytest.mark.parametrize(
    ("line", "milliseconds"),
    [
        ("Translated 4 sentences (34 tokens) in 0.5s (8.00 sentences/s, 68.00 tokens/s)", 125.0),
        ("Translated 3 sentences (20 tokens) in 0.0s (80.00 sentences/s, 533.33 tokens/s)", 12.5),
        ("Translated 1,000 sentences (12,345 tokens) in 1234.5s (0.81 sentences/s, 10.00 tokens/s)", 1234.5),
    ],
)
def test_time_per_sentence(line: str, milliseconds: float) -> None:
    logged = f"2026-11-21 05:00:00 | INFO | fairseq_cli.generate | {line}\n"
    assert score(generated(HYPOTHESES) + logged)["milliseconds_per_sentence"] == milliseconds


def test_no_time_where_none_is_logged() -> None:
    assert "milliseconds_per_sentence" not in score(generated(HYPOTHESES))


def test_command_scores_lines_against_several_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.txt").write_text("".join(line + "\n" for line in HYPOTHESES), encoding="utf-8")
    texts = ("".join(line + "\n" for line in each) for each in (HYPOTHESES, REFERENCES))
    run_main(tmp_path, *texts, monkeypatch, str(tmp_path / "other.txt"))
    result = json.loads(capsys.readouterr().out)
    assert (result["bleu"], result["sentences"]) == (100, 4)
    (tmp_path / "other.txt").write_text("one line\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"^REFERENCES .*other\.txt has 1 lines, .*reference\.txt 4: each has a line"):
        module.main()


def run_main(folder: Path, output: str, references: str, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    (folder / "generated.txt").write_bytes(output.encode())
    (folder / "reference.txt").write_bytes(references.encode())
    words = ["score", str(folder / "generated.txt"), str(folder / "reference.txt"), *arguments]
    monkeypatch.setattr(sys, "argv", words)
    module.main()


@pytest.mark.parametrize("ending", ["\n", ""], ids=["newline at the end", "no newline at the end"])
def test_command_prints_one_json_object(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = generated(HYPOTHESES, [3, 1, 0, 2])
    run_main(tmp_path, output, "\n".join(REFERENCES) + ending, monkeypatch, "--language", "en")
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    result = json.loads(printed)
    assert result["bleu"] == score(generated(HYPOTHESES))["bleu"]
    assert {"device", "threads", "python", "torch", "fairseq-fixed", "sacrebleu", "commit", "date"} <= result.keys()


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1e"], ids=ascii)
def test_only_newlines_end_a_line(
    character: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In references and outputs alike; Python's ``splitlines`` would split at these."""
    lines = [text.replace(" ", f" {character} ", 1) for text in REFERENCES]
    assert len("\n".join(lines).splitlines()) == 8
    run_main(tmp_path, generated(lines, [1, 0, 3, 2]), "\n".join(lines) + "\n", monkeypatch)
    result = json.loads(capsys.readouterr().out)
    assert result["sentences"] == 4
    assert result["bleu"] == 100


def test_empty_references_are_sentences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also the last one."""
    run_main(tmp_path, generated([*HYPOTHESES[:3], ""]), "\n".join(REFERENCES[:3]) + "\n\n", monkeypatch)
    result = json.loads(capsys.readouterr().out)
    assert result["sentences"] == 4
    assert result["bleu"] == round(sacrebleu.corpus_bleu([*HYPOTHESES[:3], ""], [[*REFERENCES[:3], ""]]).score, 2)


@pytest.mark.parametrize("name", ["generated.txt", "reference.txt"])
def test_what_is_not_utf8_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file and the line."""
    texts = {"generated.txt": generated(HYPOTHESES).encode(), "reference.txt": "\n".join(REFERENCES).encode()}
    texts[name] = b"\xef\xbb\xbf\ngood\nna\xefve\n" + texts[name]
    for each, content in texts.items():
        (tmp_path / each).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["score", *texts])
    with pytest.raises(ValueError, match=f"^{name}, line 3: this is not UTF-8; if it is Latin-1: iconv .* {name}$"):
        module.main()


def test_a_byte_order_mark_is_no_part_of_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_main(tmp_path, generated(REFERENCES), "\ufeff" + "\n".join(REFERENCES), monkeypatch)
    assert json.loads(capsys.readouterr().out)["chrf"] == 100
