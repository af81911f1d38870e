"""Stock fairseq for benchmarks/released.py, in a process of its own.

    python benchmarks/fairseq_worker.py CHECKPOINT

Reads lines of JSON, [sentences of pieces, options of its search], and answers with the words of the best outputs. One
thread.
"""

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils


def main() -> None:
    path = sys.argv[1]
    torch.set_num_threads(1)
    overrides = {"data": str(Path(path).parent)}
    models, cfg, task = checkpoint_utils.load_model_ensemble_and_task([path], arg_overrides=overrides)
    model = models[0].eval()
    model.prepare_for_inference_(cfg)
    source, target = task.source_dictionary, task.target_dictionary

    @torch.inference_mode()
    def translated(sentences: list[str], options: dict[str, Any]) -> list[list[str]]:
        tokens = [source.encode_line(each, add_if_not_exist=False).long() for each in sentences]
        dataset = task.build_dataset_for_inference(tokens, [len(each) for each in tokens])
        batch = dataset.collater([dataset[index] for index in range(len(tokens))])
        generator = task.build_generator([model], Namespace(**options))
        found = task.inference_step(generator, [model], batch)
        words = {int(index): target.string(best[0]["tokens"]).split() for index, best in zip(batch["id"], found)}  # noqa: B905
        return [words[index] for index in range(len(sentences))]

    print("ready", flush=True)
    for request in sys.stdin:
        print(json.dumps(translated(*json.loads(request))), flush=True)


if __name__ == "__main__":
    main()
