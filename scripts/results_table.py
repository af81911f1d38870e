"""Print a Markdown table of results that scripts/score.py wrote, one JSON object a line.

    python scripts/results_table.py FILE

Of several results of one system, profile and way of decoding, the last counts. Speed-ups are against ``transformer`` of
the same file, profile and device.
"""

import argparse
import json
from pathlib import Path

COLUMNS = ("system", "profile", "decoding", "BLEU", "chrF", "decoder calls per sentence", "ms per sentence", "speed-up",
           "parameters", "updates", "training")  # fmt: skip


def table(results: list[dict]) -> str:
    """The results as a Markdown table, followed by what they have in common."""
    last = {(result["profile"], result["system"], result["decoding"]): result for result in results}
    lines = [" | ".join(COLUMNS), " | ".join("---" for _ in COLUMNS)]
    for (profile, system, decoding), result in last.items():
        baseline = last.get((profile, "transformer", "beam 4"))
        speed_up = ""
        if baseline is not None and baseline["device"] == result["device"]:
            speed_up = f"{baseline['milliseconds_per_sentence'] / result['milliseconds_per_sentence']:.2f}x"
        cells = (
            system,
            profile,
            decoding,
            f"{result['bleu']:.2f}",
            f"{result['chrf']:.2f}",
            f"{result['steps_per_sentence']:.2f}",
            f"{result['milliseconds_per_sentence']:.1f}",
            speed_up,
            f"{result['parameters'] / 1e6:.2f}M",
            str(result["updates"]),
            f"{float(result['training_seconds']) / 60:.1f} min",
        )
        lines.append(" | ".join(cells))
    notes = []
    for name in ("data", "search", "bleu_signature", "chrf_signature", "device", "threads", "torch", "commit"):
        values = sorted({str(result[name]) for result in last.values() if name in result})
        if values:
            notes.append(f"- {name.replace('_', ' ')}: {'; '.join(values)}")
    return "\n".join(f"| {line} |" for line in lines) + "\n\n" + "\n".join(notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="results, one JSON object a line")
    args = parser.parse_args()
    print(table([json.loads(line) for line in args.file.read_text(encoding="utf-8").splitlines()]))


if __name__ == "__main__":
    main()
