"""Compile the operators that are in C++ for the processor of this machine; every command then uses them.

    amlp-fairseq compile

Linear maps, layers of softmax attention and the choice of words then take a fraction of the time on a CPU, in float32
and int8. It needs a C++ compiler (the environment variable CXX, or c++) and half a minute, and prints the libraries,
which lie in ~/.cache/amlp_fairseq (or in $XDG_CACHE_HOME). After an update of this package or of torch, and on another
processor, compile again.
"""

from __future__ import annotations

import sys

from amlp_fairseq.common.arguments import command_parser


def main() -> None:
    command_parser("compile", __doc__).parse_args()
    from amlp_fairseq.ops.compiled import SOURCES, compile_source, library_of

    for source in SOURCES:
        if not library_of(source).exists():
            print(f"compiling {source}", file=sys.stderr)
        print(compile_source(source))


if __name__ == "__main__":
    main()
