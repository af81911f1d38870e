"""Benchmark programs; each says in its --help what it measures.

- decoding: whole models side by side; speed_table prints and figures draws what it has measured
- efficiency: whole programs, from raw text to raw text; ctranslate2_lines.py is one
- length: single attentions over the length; long_inputs: whole CMLMC models
- ops: the operators with kernels; gpu_check: everything on a GPU in minutes
- training_memory, decoding_memory: memory of long runs
- finished: outputs of a rule of the search; test_times: durations of the tests

harness.py has what they share, tables.py writes their tables, drawings.py and pictures.py draw their pictures.
"""
