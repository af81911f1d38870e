"""amlp-fairseq tables: means, differences of like with like, and whether the papers' orderings hold."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import commands
import pytest
import yaml

from amlp_fairseq.evaluation.tables import Results, claimed, main
from amlp_fairseq.training.config import CONFIGS, load, names
from amlp_fairseq.training.results import read_results

RESULTS = commands.ROOT / "docs/results"


def line(system: str, bleu: float, **other: Any) -> dict[str, Any]:
    facts = {
        **{
            "data": "wmt14_en_de",
            "scale": "paper",
            "system": system,
            "distilled": False,
            "decoding": "beam 4",
            "seed": 1,
        },
        **{"split": "test"},
        **{"bleu": bleu, "tokenised_bleu": bleu + 0.5, "compound_split_bleu": bleu + 1, "chrf": 50.0, "device": "C"},
        **{"steps_per_sentence": 10.0, "milliseconds_per_sentence": 20.0, "parameters": 2500000, "updates": 7},
        "training_seconds": 90,
    }
    return facts | other


def cells(table: str, *start: str) -> list[str]:
    """The cells of the one row of a Markdown table that begins with these."""
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()]
    (found,) = [row for row in rows if row[: len(start)] == list(start)]
    return found


def test_seeds_are_averaged_and_the_last_result_counts() -> None:
    lines = [line("ibdecoder", bleu, seed=seed) for seed, bleu in ((1, 99.0), (2, 26.0), (3, 28.0), (1, 24.0))]
    results = Results(lines)
    assert cells(results.overview(), "ibdecoder", "raw", "beam 4", "test")[4] == "26.00 ± 2.00 (3)"


def test_seeds_are_averaged_whatever_the_order_of_the_options_and_the_name_of_the_folder() -> None:
    options = (
        "--bf16 --lr 2 --finetune-from-model work/{}-1/begun.pt",
        "--finetune-from-model work/{}-2/begun.pt --lr 2 --bf16",
    )
    lines = [
        line("ibdecoder", 25.0 + seed, seed=seed, training_options=each.format("ibdecoder"))
        for seed, each in enumerate(options, 1)
    ]
    row = cells(Results(lines).overview(), "ibdecoder --bf16 --finetune-from-model work/ibdecoder/begun.pt --lr 2")
    assert row[4] == "26.50 ± 0.71 (2)"
    for other in (
        options[0].format("transformer").replace("-1", "-2"),
        options[1].format("ibdecoder").replace("--lr 2", "--lr 3"),
    ):
        apart = [lines[0], line("ibdecoder", 25.0, seed=2, training_options=other)]
        assert "±" not in Results(apart).overview()


def test_results_on_other_data_are_not_averaged() -> None:
    """The newest one says which data; a result without a checksum is of those with its name."""
    checksums = ({"data_sha256": "old"}, {}, {"data_sha256": "new"}, {"data_sha256": "new"})
    lines = [line("ibdecoder", 10.0 * seed, seed=seed, **more) for seed, more in enumerate(checksums, 1)]
    assert cells(Results(lines).overview(), "ibdecoder", "raw", "beam 4", "test")[4] == "30.00 ± 10.00 (3)"
    assert cells(Results(lines[:2]).overview(), "ibdecoder", "raw", "beam 4", "test")[4] == "15.00 ± 7.07 (2)"


def test_a_validation_result_is_another() -> None:
    lines = [line("ibdecoder", 26.0), line("ibdecoder", 90.0, split="valid")]
    results = Results(lines)
    assert cells(results.overview(), "ibdecoder", "raw", "beam 4", "test")[4] == "26.00"
    assert cells(results.overview(), "ibdecoder", "raw", "beam 4", "valid")[4] == "90.00"
    assert cells(results.comparisons()["ibdecoder 2"], "IBDecoder")[3] == "26.00"


def test_old_lines_are_of_the_test_set(tmp_path: Path) -> None:
    lines = [{"subset": "wmt14"}, {"subset": "valid"}, {"subset": "wmt13", "split": "valid"}]
    (tmp_path / "lines").write_text("".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8")
    read = read_results(tmp_path / "lines")
    assert [each["split"] for each in read] == ["test", "valid", "valid"]


def test_differences_are_of_one_kind_of_bleu() -> None:
    """Table 1 of the IBDecoder paper is detokenised, the AAN poster tokenised, DynamicConv's compound-split; of several
    seeds the mean counts."""
    lines = [
        line("transformer", 26.5, seed=1),
        line("transformer", 27.5, seed=2),
        line("transformer", 27.5, distilled=True),
        line("dynamicconv_glu", 29.0, decoding="beam 5", variant="dynamicconv"),
    ]
    tables = Results(lines).comparisons()
    row = cells(tables["ibdecoder 1"], "Transformer", "transformer", "beam 4")
    assert row[3:10] == ["27.00 ± 0.71 (2)", "27.50", "26.9", "27.3", "detokenised", "+0.10", "+0.20"]
    row = cells(tables["aan"], "Transformer")
    assert row[3:] == ["27.50 ± 0.71 (2)", "28.00", "26.37", "", "tokenised", "+1.13", ""]
    assert cells(tables["dynamicconv 1"], "DynamicConv")[8] == "+0.30"  # 30 - 29.7


def test_ablations_are_compared_on_the_validation_set() -> None:
    """Of DynamicConv; a training that diverges has no BLEU to compare with."""
    lines = [
        line("dynamicconv", 99.0, decoding="beam 5", variant="dynamicconv"),
        line("dynamicconv", 26.0, decoding="beam 5", split="valid", variant="dynamicconv"),
        line("dynamicconv_no_softmax", 20.0, decoding="beam 5", split="valid", variant="dynamicconv"),
        line("lightconv", 26.0, decoding="beam 5", split="valid"),
        line("cnn", 99.0, decoding="beam 5", variant="dynamicconv"),
    ]
    table = Results(lines).comparisons()["dynamicconv 3"]
    assert table.splitlines()[0].endswith("| difference | difference, distilled | sent/s | paper: sent/s |")
    row = cells(table, "+ Dynamic weights (DynamicConv)")
    assert row[3:] == ["27.00", "", "26.9 ± 0.2", "", "compound-split, valid", "+0.10", "", "50.00", "62.6"]
    assert cells(table, "DynamicConv w/o softmax-normalization")[5:9] == ["diverges", "", "compound-split, valid", ""]
    assert cells(table, "+ Softmax-normalized weights (LightConv)")[8] == ""  # News Commentary v9
    assert cells(table, "CNN")[3:6] == ["—", "", "25.9 ± 0.2"]
    assert table.endswith("amlp-fairseq evaluate --subset valid,test.")


@pytest.mark.parametrize("split", ["test", "valid"])
def test_all_rows_of_the_ablations_are_there(split: str) -> None:
    """With results on either set."""
    rows = {row for row in names("rows") if any("dynamicconv" in e["table"] and e.get("split") == "valid"
            for e in load(row, "wmt14_en_de", "paper").published)}  # fmt: skip
    lines = [line(row, 26.0, decoding="beam 5", split=split, variant="dynamicconv") for row in rows]
    tables = Results(lines).comparisons()
    assert [len(tables[f"dynamicconv {n}"].split("\n\n")[0].splitlines()) - 2 for n in (3, 6)] == [12, 10]


def test_what_diverges_is_a_result() -> None:
    """Beside a paper's "diverges", in the overview and in orderings; some seeds may not."""
    gone = {"decoding": "beam 5", "split": "valid", "variant": "dynamicconv", "diverges": True}
    scores = ("bleu", "tokenised_bleu", "compound_split_bleu", "chrf", "steps_per_sentence")
    lines = [
        {name: value for name, value in line("dynamicconv_no_softmax", 0.0, **gone).items() if name not in scores},
        {name: value for name, value in line("dynamicconv_l2", 0.0, **gone).items() if name not in scores},
        line("dynamicconv_l2", 25.8, decoding="beam 5", split="valid", variant="dynamicconv", seed=2),
        line("dynamicconv", 26.0, decoding="beam 5", variant="dynamicconv"),
        {**line("dynamicconv_no_softmax", 0.0, **gone | {"split": "test"}), "bleu": None},
    ]
    lines[-1] = {name: value for name, value in lines[-1].items() if name not in scores}
    results = Results(lines)
    tables = results.comparisons()
    for number, row in ((3, "DynamicConv w/o softmax-normalization"), (6, "W (no normalization)")):
        found = cells(tables[f"dynamicconv {number}"], row)
        assert (found[3], found[5], found[8]) == ("diverges", "diverges", "")
    assert cells(tables["dynamicconv 6"], "W / (‖W‖₂ + ε)")[3] == "26.80 (1 of 2 diverge)"
    overview = cells(results.overview(), "dynamicconv_no_softmax", "raw", "beam 5", "valid")
    assert overview[4:7] == ["diverges", "", ""]
    says = "without softmax DynamicConv diverges or trails"
    assert cells(results.orderings(), "dynamicconv 3", says)[2:] == ["diverges", "reproduced"]


def test_of_three_seeds_the_best_on_the_validation_set_is_tested() -> None:
    """DynamicConv, Section 5.2: Table 1 has its test score, Table 3 the mean and deviation on the validation set."""
    lines = [
        line(row, bleu, seed=seed, split=split, decoding="beam 5", variant="dynamicconv")
        for row in ("dynamicconv_glu", "dynamicconv")
        for seed, valid, test in ((1, 25.0, 30.0), (2, 27.0, 28.0), (3, 26.0, 29.0))
        for split, bleu in (("valid", valid), ("test", test))
    ]
    tables = Results(lines).comparisons()
    assert cells(tables["dynamicconv 1"], "DynamicConv")[3:9:5] == ["29.00 (best of 3)", "-0.70"]
    assert cells(tables["dynamicconv 3"], "+ Dynamic weights (DynamicConv)")[3:9:5] == ["27.00 ± 1.00 (3)", "+0.10"]
    without = [each for each in lines if (each["split"], each["seed"]) != ("valid", 2)]
    assert cells(Results(without).comparisons()["dynamicconv 1"], "DynamicConv")[3] == "30.00 ± 1.00 (3)"


def test_times_stand_beside_the_papers() -> None:
    """Those of distilled models, where the paper's are; a speed-up only on one machine with one search."""
    lines = [
        line("transformer", 27.0, milliseconds_per_sentence=40.0),
        line("ibdecoder", 26.0, milliseconds_per_sentence=99.0),
        line("ibdecoder", 27.0, milliseconds_per_sentence=25.0, distilled=True),
        line("imdecoder", 20.0, milliseconds_per_sentence=10.0, device="D"),
        line("vanilla_sa_2", 20.0, milliseconds_per_sentence=10.0),
        line("transformer_student", 26.0, milliseconds_per_sentence=20.0),
    ]
    tables = Results(lines).comparisons()
    columns = "| ms | paper: ms | speed-up | paper: speed-up |"
    assert tables["ibdecoder 1"].splitlines()[0].endswith(columns)
    assert cells(tables["ibdecoder 1"], "IBDecoder")[10:] == ["25.00", "204", "1.60", "1.90"]
    assert cells(tables["ibdecoder 1"], "IMDecoder")[10:] == ["10.00", "102", "", "3.79"]
    assert cells(tables["ibdecoder 4"], "Transformer student")[10:] == ["2.00", "2.32 (2.19 raw)"]
    assert cells(tables["sat"], "SAT, K=2")[10:] == ["10.00", "229", "4.00", "1.51"]


def test_perplexities_stand_beside_table_3() -> None:
    found = {"autoregressive": 4.1, "vanilla_sa_2": 7.0}
    lines = [line("transformer", 27.0)]
    for row, value in found.items():
        lines.append({"decoding": "perplexity", "perplexity": value})
        lines[-1] = {**line(row, 0.0), **lines[-1], **({"pmi": 0.232} if row == "vanilla_sa_2" else {})}
        for name in ("bleu", "chrf", "tokenised_bleu", "compound_split_bleu"):
            del lines[-1][name]
    table = Results(lines).comparisons()["ibdecoder 3"]
    assert cells(table, "Left-to-Right, autoregressive")[3:9:5] == ["4.10", "+0.06"]
    assert cells(table, "Left-to-Right, semi-autoregressive")[3:] == [
        *("7.00", "", "6.95", "", "", "+0.05", "", "0.232", "0.235"),
    ]


def test_an_unstated_kind_has_a_mark() -> None:
    lines = [line("cmlmc", 20.0, decoding="5 iterations"), line("amlp_transformer", 27.0)]
    lines.append(line("cmlmc", 28.0, decoding="5 iterations", distilled=True))
    tables = Results(lines).comparisons()
    row = cells(tables["amlp 3"], "CMLMC")
    assert row[3:10] == ["20.00", "28.00", "", "27.91", "unstated", "", "+0.09 ?"]
    assert cells(tables["amlp 3"], "Tr")[8:] == [
        "-0.38 ?",
        "",
        "the paper does not give its dictionary, nor what is shared: compare differences",
    ]
    assert tables["amlp 3"].endswith("\n\n?: the paper does not say of which kind its BLEU is; ours is detokenised.")


def test_japanese_is_compared_on_the_words_of_kytea() -> None:
    """BLEU of other words is not."""
    other = line("ibdecoder", 40.0, data="wat17_en_ja")
    row = cells(Results([other]).comparisons()["ibdecoder 6"], "IBDecoder", "ibdecoder", "beam 4")
    assert row[5:10] == ["43.51", "43.76", "kytea", "", ""]
    kytea = {name: value for name, value in other.items() if not name.endswith("bleu")}
    results = Results([kytea | {"kytea_bleu": 43.0, "kytea_signature": "by hand"}])
    assert cells(results.overview(), "ibdecoder", "raw", "beam 4", "test")[4:6] == ["43.00", "50.00"]
    row = cells(results.comparisons()["ibdecoder 6"], "IBDecoder", "ibdecoder", "beam 4")
    assert row[3:10] == ["43.00", "", "43.51", "43.76", "kytea", "-0.51", ""]
    assert "- kytea signature: by hand" in results.notes()


@pytest.mark.parametrize(
    "other",
    [
        {"data": "embedded", "scale": "embedded"},
        {"scale": "multi30k"},
        {"scale": "mine"},
        {"data": "", "scale": "paper"},
    ],
)
def test_other_data_are_not_compared_with_a_paper(other: dict[str, str]) -> None:
    """Nor are small models on a paper's data."""
    lines = [line("transformer", 85.0), line("cnn", 80.0, decoding="beam 5")]
    tables = Results([each | other for each in lines]).comparisons()
    assert cells(tables["ibdecoder 1"], "Transformer", "transformer", "beam 4")[5:10] == [
        *("26.9", "27.3", "detokenised", "", ""),
    ]
    assert cells(tables["dynamicconv 3"], "CNN")[3:] == [
        *("81.00", "", "25.9 ± 0.2", "", "compound-split, valid", "", "", "50.00", "68.1"),
    ]


@pytest.mark.parametrize(
    ("values", "margin", "verdict"),
    [
        ([26.0, 24.1], "+1.90", "reproduced"),
        ([26.0, 27.5], "-1.50", "not reproduced"),
        ([26.0, 25.5], "+0.50", "reproduced, close and of 1 seed(s)"),
    ],
)
def test_orderings(values: list[float], margin: str, verdict: str) -> None:
    lines = [line(system, bleu) for system, bleu in zip(["ibdecoder", "vanilla_sa_2"], values, strict=True)]
    table = Results(lines).orderings()
    assert cells(table, "ibdecoder 2")[1:] == ["vanilla SA is below IBDecoder at z = 2", margin, verdict]


def test_three_seeds_are_enough() -> None:
    lines = [
        line(system, bleu + seed / 10, seed=seed)
        for system, bleu in (("ibdecoder", 26.5), ("vanilla_sa_2", 26.0))
        for seed in (1, 2, 3)
    ]
    assert cells(Results(lines).orderings(), "ibdecoder 2")[2:] == ["+0.50", "reproduced"]


def test_gap_between_teacher_and_student() -> None:
    """27 - 24 without distillation, 28 - 27.5 with it."""
    values = {("transformer", False): 27.0, ("ibdecoder", False): 24.0, ("transformer", True): 28.0}
    lines = [line(system, bleu, distilled=kind) for (system, kind), bleu in values.items()]
    lines.append(line("ibdecoder", 27.5, distilled=True))
    table = Results(lines).orderings()
    says = "distillation closes the gap for IBDecoder"
    assert cells(table, "ibdecoder 1", says)[2:] == ["+2.50", "reproduced"]


def test_an_ordering_says_which_data_a_row_learned_from() -> None:
    """AMLP's Table 3: CMLMC from distilled data, the Transformer from raw data."""
    lines = [line("transformer_abc", 25.0), line("transformer_abc", 20.0, distilled=True)]
    for row, bleu in (("cmlmc_amlp", 28.0), ("cmlmc_abc", 27.0)):
        lines.append(line(row, bleu, decoding="5 iterations", distilled=True))
        lines.append(line(row, 50 - bleu, decoding="5 iterations"))
    table = Results(lines).orderings()
    assert cells(table, "amlp 3", "CMLMC with AMLP is above CMLMC with ABC")[2] == "+1.00"
    assert cells(table, "amlp 3", "CMLMC with AMLP is above the Transformer with ABC")[2] == "+3.00"


def test_an_ordering_of_nothing_is_named() -> None:
    for side in (["cmlmc", "beam 4", "raw"], ["cmlmc"]):
        with pytest.raises(ValueError, match=r"orderings.yaml: lower: .* must be \[row, decoding\] or \[row, decod"):
            claimed({"lower": side}, "lower")


def test_orderings_name_configurations() -> None:
    for claim in yaml.safe_load((CONFIGS / "orderings.yaml").read_text(encoding="utf-8")):
        named = [claim["gap"][::2], claim["gap"][1:]] if "gap" in claim else [claim["higher"], claim["lower"]]
        for row, decoding, *_ in named:
            assert decoding in load(row, "wmt14_en_de", "paper").generate, claim


def test_results_of_two_scales_are_refused() -> None:
    lines = [line("ibdecoder", 26.0), line("ibdecoder", 86.0, scale="embedded")]
    with pytest.raises(ValueError, match=r"of \[\('wmt14_en_de', 'embedded'\), \('wmt14_en_de', 'paper'\)\]"):
        Results(lines)


def test_a_corpus_without_a_configuration_has_a_table(tmp_path: Path, printed: Callable[[Path], str]) -> None:
    """Of its results alone: it is in no paper."""
    path = tmp_path / "results.jsonl"
    content = line("ibdecoder", 30.0, data="our-web-pages", scale="multi30k", subset="ours")
    path.write_text(json.dumps(content) + "\n", encoding="utf-8")
    text = printed(path)
    assert text.startswith("# our-web-pages, scale multi30k\n")
    assert cells(text, "ibdecoder")[4] == "30.00"
    assert "##" not in text


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[Path], str]:
    """What the command prints."""

    def run(path: Path) -> str:
        monkeypatch.setattr("sys.argv", ["amlp-fairseq tables", str(path)])
        main()
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", " has no results"),
        (b"\n", ", line 1 is damaged"),
        (b'{"system": "\xe9"}\n', ", line 1 is damaged: 'utf-8' codec"),
        (b'{"name": "a"}\n', ", result 1 has no data, scale, system, distilled, decoding, seed, parameters, updates, "),
        (json.dumps(line("cnn", 26.0)).encode() + b'\n{"bleu": 1}\n', ", result 2 has no data, scale, system"),
        (json.dumps(line("cnn", 26.0) | {"chrf": None}).encode(), ", result 1 has no chrf: amlp-fairseq evaluate"),
    ],
)
def test_what_is_no_result_is_named(
    content: bytes, message: str, tmp_path: Path, printed: Callable[[Path], str]
) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{re.escape(f'{path}{message}')}"):
        printed(path)


def test_results_without_decoder_calls() -> None:
    without = {name: value for name, value in line("cnn", 25.0).items() if name != "steps_per_sentence"}
    table = Results([line("ibdecoder", 26.0), without]).overview()
    assert cells(table, "ibdecoder")[6] == "10.00"
    assert cells(table, "cnn")[6] == ""


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.jsonl")), ids=lambda path: path.stem)
def test_committed_tables_are_of_the_committed_results(path: Path, printed: Callable[[Path], str]) -> None:
    if not {"system", "scale"} <= json.loads(path.read_text(encoding="utf-8").splitlines()[0]).keys():
        pytest.skip("not of amlp-fairseq evaluate")
    assert path.with_suffix(".md").read_text(encoding="utf-8") == printed(path)
