"""Write an autoregressive Transformer as a model of CTranslate2, for programs that have that engine.

    amlp-fairseq export --model DIR --out CT2_DIR [--quantization int8]

DIR is a model folder of `amlp-fairseq package`. CT2_DIR also gets translate.py, a program without PyTorch that cuts
lines up, translates them, and writes in float32 the words that `amlp-fairseq translate` writes of a sentence a line;
options.json, what it and other programs need for that (the beam, the length penalty, …); and the subword model.

    python CT2_DIR/translate.py < in.txt > out.txt

CTranslate2 has softmax attention and one word a step only: other models are refused, and so are decoding options with
which it would write other words.
"""

from __future__ import annotations

import json
import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path

from amlp_fairseq.common.arguments import command_parser, say_next_line
from amlp_fairseq.model_folder.config import read_config
from amlp_fairseq.translator import exported_program
from amlp_fairseq.translator.translator import Translator

QUANTIZATIONS = ("int8", "int8_float32", "int8_float16", "int16", "float16", "bfloat16")


def main() -> None:
    parser = command_parser("export", __doc__)
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="made by amlp-fairseq package")
    parser.add_argument("--out", type=Path, required=True, metavar="CT2_DIR", help="the folder to make")
    parser.add_argument(
        "--quantization",
        choices=QUANTIZATIONS,
        help="type of the weights (default: int8 where DIR has int8, else float32)",
    )
    args = parser.parse_args()
    if find_spec("ctranslate2") is None:
        raise ValueError('export needs CTranslate2: pip install "ctranslate2>=4.8,<5"')
    from amlp_fairseq.translator.ctranslate2_model import InMemory, convert, search_options

    if args.out.exists():
        raise ValueError(f"--out {args.out} exists already: name another folder, or remove it")
    translator = Translator(args.model, backend="pytorch")
    if translator.tokens is not None:
        raise ValueError(f"--model {args.model} has tokens of languages, which translate.py would not write")
    InMemory(translator.pytorch().model, translator.pytorch().task)  # refuses other models
    options = search_options(translator)
    own = "int8" if read_config(args.model)["weights"] == "int8" else None
    convert(translator.pytorch().model, translator.pytorch().task, args.out, args.quantization or own)
    for path in translator.text.subword_models[:1]:  # that of the source
        shutil.copy(path, args.out)
    (args.out / "options.json").write_text(json.dumps(options, indent=1) + "\n", encoding="utf-8")
    shutil.copy(exported_program.__file__, args.out / "translate.py")
    source, target = translator.languages
    print(f"{args.out}: {source} to {target}")
    say_next_line(f"python {shlex.quote(str(args.out / 'translate.py'))} < text.{source} > text.{target}")


if __name__ == "__main__":
    main()
