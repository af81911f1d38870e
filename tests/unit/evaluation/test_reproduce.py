"""amlp-fairseq reproduce: which experiments it runs, on which data, and what it leaves alone."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from amlp_fairseq.evaluation import reproduce
from amlp_fairseq.evaluation import reproduction as experiments
from amlp_fairseq.training import config
from amlp_fairseq.training.config import load, save
from amlp_fairseq.training.results import append_results, data_sha256

#: Corpora at the scales that are for them.
SCALES = [("embedded", "embedded"), ("multi30k", "multi30k"), ("multi30k", "multi30k_base")]


def make_data(work: Path, name: str, words: Sequence[object]) -> None:
    """What ``prepare`` or ``distill`` would leave, as far as ``reproduce`` looks at it."""
    if name == "prepare":
        (work / "data/data-bin").mkdir(parents=True)
    elif name == "distill":
        (work / "distilled").mkdir(parents=True)
        teachers = [{"path": path} for path in str(words[0]).split(":")]
        (work / "distilled/manifest.json").write_text(json.dumps({"teacher": teachers}), encoding="utf-8")


class Recorded(reproduce.Reproduction):
    """Its commands leave what the real ones would, and a note of what they were called with."""

    def __init__(self, corpus: str, scale: str, folder: Path, table: str = "ibdecoder", *seeds: int) -> None:
        options = {"rest": ["--data", "text"], "options": ["--cpu"], "decoding": ["--batch-size", "50"]}
        super().__init__(corpus, scale, folder, folder / "results.jsonl", table, seeds or (1,), **options)
        self.calls: list[list[str]] = []

    def command(self, name: str, *words: object, log: str = "") -> None:
        self.calls.append([name, *(str(word).replace(f"{self.work}/", "") for word in words)])
        make_data(self.work, name, words)
        if name == "train":
            folder = self.work / str(words[words.index("--save-dir") + 1])
            folder.mkdir(exist_ok=True)
            (folder / "average.pt").touch()


@pytest.mark.parametrize(
    ("table", "some", "count"),
    [
        ("ibdecoder", {"transformer", "ibdecoder", "imdecoder", "vanilla_sa_4", "ibdecoder_sa_student"}, 18),
        ("sat", {"transformer", "vanilla_sa_2", "vanilla_sa_4", "vanilla_sa_6"}, 4),
        ("aan", {"transformer", "aan", "aan_no_ffn", "aan_no_gate"}, 4),
        ("dynamicconv", {"self_attention", "cnn", "dynamicconv_abs_l2", "aan_encoder_decoder"}, 23),
        ("amlp", {"amlp_transformer", "cmlmc", "cmlmc_amlp", "cmlm"}, 15),
        ("nat", {"nat_fertility", "transformer"}, 2),
        ("deep", {"transformer_deep"}, 1),
        ("ssru", {"ssru", "ssru_student", "ssru_tiny", "ibdecoder_ssru_student"}, 4),
    ],
)
@pytest.mark.parametrize(("corpus", "scale"), SCALES)
def test_rows_of_a_table(corpus: str, scale: str, table: str, some: set[str], count: int, tmp_path: Path) -> None:
    rows = Recorded(corpus, scale, tmp_path, table).rows()
    assert some <= set(rows)
    assert len(rows) == count


def test_distilled_data_come_from_the_transformer(tmp_path: Path) -> None:
    reproduction = Recorded("multi30k", "multi30k_base", tmp_path)
    reproduction.run(reproduce.Experiment("ibdecoder", distilled=True, seed=2))
    named = ["--scale", "multi30k_base", "--corpus", "multi30k", "--save-dir"]
    decoding = ["--results", "results.jsonl", "--cpu", "--batch-size", "50"]
    assert reproduction.calls == [
        ["prepare", "multi30k", "data", "--vocab-size", "8000", "--data", "text"],
        ["train", "data/data-bin", "--row", "transformer", *named, "transformer-1", "--seed", "1", "--cpu"],
        ["evaluate", "transformer-1", "data/data-bin", *decoding],
        ["distill", "transformer-1/average.pt", "data/data-bin", "distilled", "--cpu"],
        ["train", "distilled", "--row", "ibdecoder", *named, "ibdecoder-distilled-2", "--seed", "2", "--cpu"],
        ["evaluate", "ibdecoder-distilled-2", "distilled", *decoding],
    ]


def test_several_teachers(tmp_path: Path) -> None:
    """Those that are missing are trained; models begin with the first."""
    reproduction = Recorded("embedded", "embedded", tmp_path)
    reproduction.teacher_seeds, reproduction.from_teacher = (2, 3), True
    (tmp_path / "transformer-2").mkdir()
    (tmp_path / "transformer-2/average.pt").touch()
    reproduction.run(reproduce.Experiment("ibdecoder", distilled=True, seed=1))
    trained = [call for call in reproduction.calls if call[0] == "train"]
    assert [call[call.index("--save-dir") + 1] for call in trained] == ["transformer-3", "ibdecoder-distilled-1"]
    assert trained[1][-2:] == ["--finetune-from-model", "transformer-2/average.pt"]
    assert [call[1:] for call in reproduction.calls if call[0] == "distill"] == [
        ["transformer-2/average.pt:transformer-3/average.pt", "data/data-bin", "distilled", "--cpu"]
    ]


def test_distilled_data_of_other_teachers_are_refused(tmp_path: Path) -> None:
    reproduction = Recorded("embedded", "embedded", tmp_path)
    reproduction.data(distilled=True)
    reproduction.teacher_seeds = (2, 3)
    with pytest.raises(ValueError, match=r"--teacher-seeds 2 3: .*distilled is by transformer-1; give another --work"):
        reproduction.data(distilled=True)


@pytest.mark.parametrize(
    ("row", "distilled", "begins"),
    [
        ("ibdecoder_student", True, "transformer-1/average.pt"),
        ("cmlmc", True, "transformer-1/average.pt"),
        ("ibdecoder", False, None),
        # fairseq's own model, which takes all parameters or none
        ("transformer_student", True, "transformer_student-distilled-1/beginning.pt"),
    ],
)
def test_students_of_a_teacher(
    row: str, distilled: bool, begins: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    monkeypatch.setattr(experiments, "write_fitted", lambda *args: written.append(args))
    reproduction = Recorded("embedded", "embedded", tmp_path)
    reproduction.training, reproduction.from_teacher = ["--bf16"], True
    reproduction.run(reproduce.Experiment(row, distilled, seed=1))
    *_, training, evaluation = reproduction.calls
    assert training[training.index("--cpu") :] == [
        "--cpu",
        "--bf16",
        *([] if begins is None else ["--finetune-from-model", begins]),
    ]
    assert "--bf16" not in evaluation
    if distilled:
        assert [call[0] for call in reproduction.calls].index("distill") < reproduction.calls.index(training)
    if row == "transformer_student":
        ((words, teacher, out),) = written
        assert words[0] == str(tmp_path / "distilled")
        assert words[words.index("--arch") + 1] == "transformer_wmt_en_de"
        assert words[-4:] == ["--seed", "1", "--cpu", "--bf16"]
        assert (teacher, out) == (tmp_path / "transformer-1/average.pt", tmp_path / begins)
    else:
        assert not written


@pytest.mark.parametrize(
    ("row", "distilled", "again"),
    [("ibdecoder_sa", True, True), ("cmlmc", True, True), ("ibdecoder_sa", False, False), ("aan", True, False)],
)
def test_the_teacher_chooses(row: str, distilled: bool, again: bool, tmp_path: Path) -> None:
    """Where there is one, and hypotheses to rerank; what has results already is not decoded again."""
    reproduction = Recorded("embedded", "embedded", tmp_path)
    reproduction.rescore, reproduction.teacher_seeds = True, [2, 3]
    experiment = reproduce.Experiment(row, distilled, seed=1)
    reproduction.run(experiment)
    evaluations = [call for call in reproduction.calls if call[:2] == ["evaluate", experiment.name]]
    chosen = [*evaluations[0], "--rescore-path", "transformer-2/average.pt"]
    assert evaluations[1:] == ([chosen] if again else [])

    recipe = load(row, "embedded", "embedded")
    facts = {"data": "embedded", "scale": "embedded", "system": row, "seed": 1, "distilled": distilled}
    facts |= {"subset": "new", "split": "test"}
    append_results(reproduction.results, [facts | {"decoding": name} for name in recipe.generate])
    reproduction.calls.clear()
    reproduction.run(experiment, reproduction.known()[experiment])
    assert [call for call in reproduction.calls if call[0] == "evaluate"] == ([chosen] if again else [])
    append_results(reproduction.results, [facts | {"decoding": name} for name in recipe.rescored])
    assert not reproduction.evaluations(experiment, reproduction.known()[experiment])


def test_a_training_that_has_ended_is_not_given_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(experiments, "has_ended", lambda words, folder: asked.append((words, folder)) or True)
    reproduction = Recorded("embedded", "embedded", tmp_path)
    reproduction.training = ["--max-update", "7"]
    reproduction.run(reproduce.Experiment("ibdecoder", distilled=False, seed=1))
    assert [call[0] for call in reproduction.calls] == ["prepare", "evaluate"]
    ((words, folder),) = asked
    assert words[-2:] == ["--max-update", "7"]
    assert folder == tmp_path / "ibdecoder-1"


def test_the_corpus_has_its_own_number_of_subwords(tmp_path: Path) -> None:
    """Where the scale does not say one."""
    reproduction = Recorded("multi30k", "multi30k", tmp_path)
    reproduction.data(distilled=False)
    assert reproduction.calls == [["prepare", "multi30k", "data", "--data", "text"]]


def test_what_is_there_is_not_made_again(tmp_path: Path) -> None:
    reproduction = Recorded("embedded", "embedded", tmp_path)
    reproduction.data(distilled=True)
    before = len(reproduction.calls)
    reproduction.data(distilled=True)
    assert len(reproduction.calls) == before
    facts = {"data": "embedded", "scale": "embedded", "system": "ibdecoder", "seed": 1, "subset": "new"}
    facts |= {"split": "test", "decoding": "greedy"}
    lines = [
        *(facts | {"distilled": kind, "decoding": "beam 4"} for kind in (False, True)),
        facts | {"distilled": False},
        facts | {"distilled": True, "split": "valid"},
        facts | {"distilled": True, "scale": "multi30k"},
        facts | {"distilled": True, "training_options": "--dropout 0.3"},
    ]
    reproduction.results.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    raw, distilled = (reproduce.Experiment("ibdecoder", kind, 1) for kind in (False, True))
    known = reproduction.known()
    assert known == {
        raw: {("test", "beam 4"), ("test", "greedy")},
        distilled: {("test", "beam 4"), ("valid", "greedy")},
    }
    assert (reproduction.evaluations(raw, known[raw]), reproduction.evaluations(distilled, known[distilled])) == (
        [],
        [[]],
    )


def test_results_on_other_data_do_not_count(tmp_path: Path) -> None:
    """By the checksum where a result has one, whatever the data are called; by the name where it is older."""
    reproduction = Recorded("embedded", "embedded", tmp_path)
    folder = reproduction.data(distilled=False)
    (folder / "dict.de.txt").write_text("Haus 1\n", encoding="utf-8")
    checksum, lines = data_sha256(folder, "test"), []
    for seed, data in enumerate(
        [
            {"data": "embedded", "data_sha256": checksum},
            {"data": "embedded", "data_sha256": "0" * 16},
            {"data": "embedded"},
            {"data": "own"},
        ],
        1,
    ):
        facts = {"scale": "embedded", "system": "ibdecoder", "seed": seed, "distilled": True, "split": "test"}
        lines += [data | facts | {"decoding": decoding} for decoding in ("beam 4", "greedy")]
    append_results(reproduction.results, lines)
    wanted = {("test", "beam 4"), ("test", "greedy")}
    assert {experiment.seed for experiment, known in reproduction.known().items() if known == wanted} == {1, 3}
    (folder / "dict.de.txt").write_text("Haus 2\n", encoding="utf-8")
    assert {experiment.seed for experiment, known in reproduction.known().items() if known == wanted} == {3}


def test_a_command_that_fails_ends_it(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    reproduction = reproduce.Reproduction("embedded", "embedded", tmp_path, results, "aan", options=["--cpu"])
    says = r"amlp-fairseq train nowhere .*status 2, see .*logs/x.log: .*DATA nowhere: there is no such folder"
    with pytest.raises(ChildProcessError, match=says):
        reproduction.command("train", "nowhere", "--row", "ibdecoder", "--scale", "embedded", log="x")
    assert "DATA nowhere: there is no such folder" in (tmp_path / "logs/x.log").read_text(encoding="utf-8")


def test_all_rows_on_both_kinds_of_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And what fails ends it with the command that has failed."""
    calls: list[str] = []

    def command(self: reproduce.Reproduction, name: str, *words: object, log: str = "") -> None:
        calls.append(" ".join(map(str, (name, *words))))
        make_data(self.work, name, words)
        if len(calls) == 12:  # the last
            raise ChildProcessError("it broke")

    monkeypatch.setattr(reproduce.Reproduction, "command", command)
    monkeypatch.setattr(experiments, "write_fitted", lambda *args: None)
    monkeypatch.chdir(tmp_path)
    words = ["--corpus", "embedded", "--scale", "embedded", "--table", "aan", "--rows", "aan", "transformer"]
    monkeypatch.setattr("sys.argv", ["reproduce", *words, "--seeds", "7", "--bf16", "--from-teacher"])
    with pytest.raises(ChildProcessError, match="it broke"):
        reproduce.main()
    assert [call.split(" --", 1)[0] for call in calls[:4]] == [
        "prepare embedded work/embedded/data",
        "train work/embedded/data/data-bin",
        "evaluate work/embedded/transformer-1 work/embedded/data/data-bin",
        "distill work/embedded/transformer-1/average.pt work/embedded/data/data-bin work/embedded/distilled",
    ]
    assert "--results work/embedded/results.jsonl --cpu" in calls[2]
    assert "--row transformer --scale embedded --corpus embedded" in calls[1]
    rows = ["aan-7", "transformer-7", "aan-distilled-7", "transformer-distilled-7"]
    trained = [call.split("--save-dir ")[1] for call in calls[4:] if call.startswith("train")]
    assert [call.split(" --seed")[0] for call in trained] == [f"work/embedded/{row}" for row in rows]
    assert [call.split()[1] for call in calls if call.startswith("train")][-2:] == ["work/embedded/distilled"] * 2
    begin = " --finetune-from-model work/embedded/"
    begins = ["", "", f"{begin}transformer-1/average.pt", f"{begin}transformer-distilled-7/beginning.pt"]
    ends = [f" --cpu --bf16{begin}" for begin in begins]
    assert [call.partition("--seed 7")[2] for call in calls[4:] if call.startswith("train")] == ends


@pytest.mark.parametrize(("target", "folder"), [("raw", "data/data-bin"), ("distilled", "distilled")])
def test_one_kind_of_targets(target: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []

    def command(self: reproduce.Reproduction, name: str, *words: object, log: str = "") -> None:
        calls.append([name, *map(str, words)])
        make_data(self.work, name, words)

    monkeypatch.setattr(reproduce.Reproduction, "command", command)
    monkeypatch.setattr(experiments, "report", lambda path: "")
    words = ["--corpus", "embedded", "--scale", "embedded", "--table", "aan", "--rows", "aan", "--work", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["reproduce", *words, "--targets", target])
    reproduce.main()
    assert [name for name, *_ in calls].count("distill") == (target == "distilled")
    trained = [words for name, *words in calls if name == "train" and "aan" in words]
    assert [words[0] for words in trained] == [str(tmp_path / folder)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--corpus", "wmt", "--scale", "paper", "--table", "aan"], "--corpus 'wmt' is unknown"),
        (["--corpus", "embedded", "--scale", "tiny", "--table", "aan"], "--scale 'tiny' is unknown; known: "),
        (
            ["--corpus", "embedded", "--scale", "embedded", "--table", "7"],
            "argument --table: '7' is unknown; known: aan, amlp, deep, dynamicconv, ibdecoder, nat, sat, ssru; their",
        ),
        (["--corpus", "embedded", "--table", "aan"], "required: --scale"),
        (
            ["--corpus", "embedded", "--scale", "embedded", "--table", "aan", "--rows", "cnn"],
            "--rows cnn: choose from aan aan_no_ffn",
        ),
        (
            ["--corpus", "embedded", "--scale", "embedded", "--table", "aan", "--from-techer"],
            "--from-techer is unknown; did you mean --from-teacher?",
        ),
    ],
)
def test_wrong_arguments(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["reproduce", *words])
    with pytest.raises(SystemExit, match="2"):
        reproduce.main()
    assert message in capsys.readouterr().err


def test_results_and_trainings_are_of_the_same_options(tmp_path: Path) -> None:
    """Wherever the model lies that a training began with."""
    reproduction = Recorded("embedded", "embedded", tmp_path)
    reproduction.data(distilled=True)
    reproduction.training, reproduction.from_teacher = ["--bf16"], True
    begun = "--bf16 --finetune-from-model elsewhere/average.pt"
    facts = {"data": "embedded", "scale": "embedded", "system": "ibdecoder", "seed": 1, "split": "test"}
    facts |= {"decoding": "greedy"}
    lines = [
        *(facts | {"distilled": True, "training_options": options} for options in ("--bf16", "", begun)),
        facts | {"distilled": False, "training_options": "--bf16"},
    ]
    assert [bool(append_and_know(reproduction, line)) for line in lines] == [False, False, True, True]

    experiment = reproduce.Experiment("ibdecoder", distilled=True, seed=1)
    folder = tmp_path / experiment.name
    folder.mkdir()
    recipe = load("ibdecoder", "embedded", "embedded")
    save(replace(recipe, changes="--dropout 0.3"), folder / "recipe.yaml")
    with pytest.raises(ValueError, match=r"ibdecoder-distilled-1 was trained .*\(--dropout 0.3\): give another --work"):
        reproduction.run(experiment)
    save(replace(recipe, changes=begun), folder / "recipe.yaml")
    reproduction.run(experiment)


def append_and_know(
    reproduction: reproduce.Reproduction, line: dict[str, object]
) -> dict[reproduce.Experiment, set[experiments.Known]]:
    """What is known where there is nothing but one result."""
    reproduction.results.unlink(missing_ok=True)
    append_results(reproduction.results, [line])
    return reproduction.known()


@pytest.mark.parametrize(
    ("corpus", "table", "folder", "words"),
    [
        ("wmt14_en_de", "dynamicconv 3", "wmt14_en_de-dynamicconv-paper", ["--variant", "dynamicconv"]),
        ("wmt14_en_de", "ibdecoder", "wmt14_en_de-paper", []),
        ("wmt14_en_fr", "ibdecoder 6", "wmt14_en_fr-ibdecoder-paper", ["--variant", "ibdecoder"]),
        ("wmt14_en_fr", "dynamicconv", "wmt14_en_fr-paper", []),
    ],
)
def test_a_table_is_of_its_own_data(corpus: str, table: str, folder: str, words: list[str], tmp_path: Path) -> None:
    """In a folder of its own; other data in a folder are refused."""
    assert reproduce.default_work(corpus, table, "paper") == Path("work", folder)
    reproduction = Recorded(corpus, "paper", tmp_path, table)
    raw = reproduction.data(distilled=False)
    assert reproduction.calls == [["prepare", corpus, "data", *words, "--data", "text"]]
    for text, right in (({"corpus": corpus, "variant": "x"}, False), ({"corpus": corpus}, not words)):
        stored = text | ({} if "variant" in text else {"variant": words[-1]} if words and right else {})
        (raw / "text.json").write_text(json.dumps(stored | {"name": "n"}), encoding="utf-8")
        if right:
            reproduction.data(distilled=False)
        else:
            with pytest.raises(ValueError, match=f"--work {tmp_path}: .*give another --work"):
                reproduction.data(distilled=False)


def test_what_is_prepared_is_what_the_papers_say() -> None:
    """DynamicConv, Section 5.2; IBDecoder, Appendix A."""
    ours, dynamicconv = (config.prepare_settings("wmt14_en_de", variant) for variant in (None, "dynamicconv"))
    assert dynamicconv["archives"]["news-commentary"]["url"].endswith("training-parallel-nc-v11.tgz")
    assert (ours["size"], dynamicconv["size"], dynamicconv["test-set"]) == (32000, 32000, "wmt14/full")
    french = [config.prepare_settings("wmt14_en_fr", variant)["size"] for variant in (None, "ibdecoder")]
    assert french == [40000, 32000]


def test_the_validation_set_is_decoded_where_a_table_is_of_it(tmp_path: Path) -> None:
    """Or chooses a seed by it; where the test set has results, it alone."""
    reproduction = Recorded("embedded", "embedded", tmp_path, "dynamicconv")
    experiment = reproduce.Experiment("cnn", distilled=False, seed=1)
    assert reproduction.evaluations(experiment, set()) == [["--subset", "valid,test"]]
    assert reproduction.evaluations(experiment, {("test", "beam 5")}) == [["--subset", "valid"]]
    tested = reproduce.Experiment("dynamicconv_glu", distilled=False, seed=1)
    assert reproduction.evaluations(tested, set()) == [[]]
    several = Recorded("embedded", "embedded", tmp_path, "dynamicconv", 1, 2, 3)
    assert several.evaluations(tested, set()) == [["--subset", "valid,test"]]


def test_a_training_that_diverges_is_evaluated_and_not_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Diverging(Recorded):
        def command(self, name: str, *words: object, log: str = "") -> None:
            super().command(name, *words, log=log)
            if name == "train":
                (self.work / "cnn-1/diverged.json").write_text('{"updates": 2}', encoding="utf-8")
                raise ChildProcessError("it diverged")

    reproduction = Diverging("embedded", "embedded", tmp_path, "dynamicconv")
    experiment = reproduce.Experiment("cnn", distilled=False, seed=1)
    for expected in (["prepare", "train", "evaluate"], ["evaluate"]):
        reproduction.run(experiment)
        assert [call[0] for call in reproduction.calls] == expected
        reproduction.calls.clear()
    assert "cnn-1 diverges" in capsys.readouterr().err


def test_alignments_are_made_for_rows_that_learn_from_them(tmp_path: Path) -> None:
    reproduction = Recorded("embedded", "embedded", tmp_path, "nat")
    for distilled in (False, True):
        reproduction.run(reproduce.Experiment("nat_fertility", distilled, seed=1))
    aligned = [call[1:] for call in reproduction.calls if call[0] == "align"]
    assert aligned == [["data/data-bin", "aligned"], ["distilled", "aligned-distilled"]]
    trained = [call[1] for call in reproduction.calls if call[0] == "train" and "nat_fertility" in call]
    assert trained == ["aligned", "aligned-distilled"]


@pytest.mark.parametrize(
    ("table", "rows", "trained"),
    [
        ("ibdecoder 1", ["transformer", "ibdecoder"], ["transformer-1", "ibdecoder-1", "transformer-distilled-1"]),
        ("amlp 3", ["cmlmc", "amlp_transformer"], ["transformer-1", "amlp_transformer-1", "cmlmc-distilled-1"]),
        ("ibdecoder 3", ["autoregressive", "vanilla_sa_2"], ["autoregressive-1", "vanilla_sa_2-1"]),
    ],
)
def test_a_dry_run_prints_commands_that_can_be_run(
    table: str,
    rows: list[str],
    trained: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """At the paper's size what the table has numbers of: in the order in which one needs the other, each once."""
    monkeypatch.chdir(tmp_path)
    words = ["--corpus", "wmt14_en_de", "--scale", "paper", "--table", table, "--rows", *rows, "--device", "cuda"]
    monkeypatch.setattr("sys.argv", ["reproduce", *words, "--dry-run"])
    reproduce.main()
    printed = capsys.readouterr().out.splitlines()
    assert not list(tmp_path.iterdir())
    calls = [shlex.split(line) for line in printed if not line.startswith("#")]
    assert all(call[0] == "amlp-fairseq" for call in calls)
    assert calls[0][1:] == ["prepare", "wmt14_en_de", "work/wmt14_en_de-paper/data"]
    assert calls[-1][1:] == [
        *("tables", "work/wmt14_en_de-paper/results.jsonl", ">"),
        "work/wmt14_en_de-paper/results.md",
    ]
    folders = [Path(call[call.index("--save-dir") + 1]).name for call in calls if call[1] == "train"]
    assert set(trained) <= set(folders)
    assert len(folders) == len(set(folders))
    assert [Path(call[2]).name for call in calls if call[1] == "evaluate"] == folders
    assert all("valid,test" in call for call in calls if call[1] == "evaluate")
    pmi = [shlex.split(line)[8:10] for line in printed if "pmi.py" in line]
    assert [[Path(word).parent.name for word in words] for words in pmi] == (
        [["autoregressive-1", "vanilla_sa_2-1"]] if table == "ibdecoder 3" else []
    )
    assert any("100000 updates, in the paper of 25000 tokens: --update-freq 6 on one GPU" in line for line in printed)
