"""Print what scripts/benchmark_decoding.py has measured as the short table of README.md.

    python scripts/speed_table.py docs/results/benchmark_decoding.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmark_report import markdown, verdict


def speed_table(result: dict[str, Any]) -> str:
    """Medians and speed-ups at batch size 1, and the verdicts on the targets that this run can judge."""
    columns = ["system", "precision", "decoding", "decoder calls", "ms per sentence", "95 %", "words/s", "speed-up"]
    rows = [
        [row["system"], row["precision"], row["decoding"], f"{row['decoder_calls'] / row['sentences']:.1f}"]
        + [f"{row['ms_percentiles'][1]:.1f}", f"{row['ms_percentiles'][2]:.1f}", f"{row['tokens_per_second']:.0f}"]
        + [f"{row['speedup']:.2f}x"]
        for row in result["decoding"]
        if row["batch"] == 1
    ]
    facts = f"{result['device']}, {result['threads']} threads, torch {result['torch']}"
    facts += f", CTranslate2 {result['ctranslate2']}, commit {result['commit'][:12]}"
    verdicts = [f"- {verdict(target)}" for target in result["targets"] if target["passed"] is not None]
    return f"{markdown(columns, rows)}\n\nSpeed-ups over {result['baseline']}; {facts}.\n\n" + "\n".join(verdicts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path, metavar="FILE.json")
    print(speed_table(json.loads(parser.parse_args().result.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
