"""Write an autoregressive Transformer as a model of CTranslate2, for programs that have that engine.

    amlp-fairseq export --model DIR --out CT2_DIR [--quantization int8]

DIR is a model folder of `amlp-fairseq package`. CT2_DIR also gets its subword model; text must be cut up by it before
(`ctranslate2.Translator(CT2_DIR).translate_batch([pieces])`). CTranslate2 has softmax attention and one word a step
only: other models are refused.
"""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

from amlp_fairseq.translator.translator import Translator
from amlp_fairseq.usage import command_parser

QUANTIZATIONS = ("int8", "int8_float32", "int8_float16", "int16", "float16", "bfloat16")


def main() -> None:
    parser = command_parser("export", __doc__)
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="made by amlp-fairseq package")
    parser.add_argument("--out", type=Path, required=True, metavar="CT2_DIR", help="the folder to make")
    parser.add_argument("--quantization", choices=QUANTIZATIONS, help="type of stored weights (default: their own)")
    args = parser.parse_args()
    if find_spec("ctranslate2") is None:
        raise ValueError('export needs CTranslate2: pip install "ctranslate2>=4.8,<5"')
    from amlp_fairseq.translator.ctranslate2_model import convert

    if args.out.exists():
        raise ValueError(f"--out {args.out} exists already: name another folder, or remove it")
    translator = Translator(args.model)
    convert(translator.model, translator.task, args.out, args.quantization)
    if translator.text.subword_model is not None:
        shutil.copy(translator.text.subword_model, args.out)
    print(args.out)


if __name__ == "__main__":
    main()
