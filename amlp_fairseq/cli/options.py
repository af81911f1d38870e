"""Everything that the plugin registers, and every option that it adds to fairseq's commands.

    amlp-fairseq options                            tasks, architectures, attentions, generation options
    amlp-fairseq options translation_interleaved    a task: its options, and fairseq's generation options that it takes
    amlp-fairseq options cmlmc_transformer          a model: its options; an architecture: with its own defaults
    amlp-fairseq options --decode-dtype             an option: who has it

--markdown prints docs/options.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, get_args, get_origin, get_type_hints

from amlp_fairseq.attention.registry import ATTENTIONS
from amlp_fairseq.cli import engine_support
from amlp_fairseq.common.arguments import command_parser, refuse_unknown
from amlp_fairseq.compat.internals import (
    ARCH_CONFIG_REGISTRY,
    ARCH_MODEL_NAME_REGISTRY,
    MODEL_REGISTRY,
    TASK_REGISTRY,
    GenerationConfig,
)
from amlp_fairseq.compat.registration import is_ours
from amlp_fairseq.translator.engine_backend import KINDS
from amlp_fairseq.translator.options import Options


@dataclass(frozen=True)
class Option:
    """An option of a task or model.

    Attributes:
        flag: as on the command line.
        default: as text.
        choices: of its values, if they are few names.
        help: what it does.
    """

    flag: str
    default: str
    choices: tuple[str, ...]
    help: str


def tasks() -> dict[str, Any]:
    """The plugin's tasks by name."""
    return {name: cls for name, cls in sorted(TASK_REGISTRY.items()) if is_ours(cls)}


def models() -> dict[str, list[str]]:
    """The plugin's models, and the architectures of each."""
    ours = sorted(name for name, cls in MODEL_REGISTRY.items() if is_ours(cls))
    return {
        model: sorted(arch for arch, name in ARCH_MODEL_NAME_REGISTRY.items() if name == model and arch != model)
        for model in ours
    }


def task_options(name: str) -> list[Option]:
    """The options that a task of the plugin adds to those of fairseq's task that it builds on."""
    cls = TASK_REGISTRY[name]
    config, stock = _config(cls), next(base for base in cls.__mro__ if not is_ours(base) and _config(base))
    own = _config(stock).__dataclass_fields__
    return [
        _option(field)
        for field in dataclasses.fields(config)
        if field.name not in own or field.default != own[field.name].default
    ]


def model_options(name: str) -> list[Option]:
    """The options of a model of the plugin, or of one of its architectures, with its defaults."""
    config = MODEL_REGISTRY[ARCH_MODEL_NAME_REGISTRY.get(name, name)].CONFIG
    values = argparse.Namespace()
    if name in ARCH_CONFIG_REGISTRY:
        ARCH_CONFIG_REGISTRY[name](values)
    left_out = {"_name", *getattr(config, "UNSUPPORTED", ())}
    return [_option(field, vars(values)) for field in dataclasses.fields(config) if field.name not in left_out]


def generation_options() -> list[Option]:
    """fairseq's generation options that a task of the plugin honours."""
    fields = GenerationConfig.__dataclass_fields__
    return [_option(fields[name]) for name in fields if any(_honours(task, name) for task in tasks())]


def engine_options() -> dict[str, dict[str, str]]:
    """The options of a ``Translator`` by flag, each with what the engine has of it for a task: ``yes``, ``no``, or
    choices."""
    samples: dict[Any, Any] = {bool: True, int: 3, float: 0.5, list[str]: ["name"]}
    found = {}
    for name, kind in get_type_hints(Options).items():
        choices = [value for each in (kind, *get_args(kind)) if get_origin(each) is Literal for value in get_args(each)]
        values = choices or [samples.get(kind, "name")]
        of_tasks = {}
        for task, of_task in KINDS.items():
            here = [value for value in values if name in of_task.options and of_task.options[name](value)]
            shown = ", ".join(f"`{value}`" for value in here) if choices else "yes"
            of_tasks[task] = shown if here else "no"
        found["--" + name.replace("_", "-")] = of_tasks
    return found


def owners(flag: str) -> dict[str, Option]:
    """The tasks and models that have an option, and what it is there."""
    found: dict[str, Option] = {}
    for kind, names, options in (("task", tasks(), task_options), ("model", models(), model_options)):
        for name in names:
            found |= {f"{kind} {name}": option for option in options(name) if option.flag == flag}
    for option in generation_options():
        if option.flag == flag:
            found |= {f"task {task}": option for task in tasks() if _honours(task, _attribute(flag))}
    return found


def _config(cls: type) -> Any:
    return cls.__dict__.get("__dataclass")


def _honours(task: str, name: str) -> bool:
    return name in TASK_REGISTRY[task].HONOURED_GENERATION_OPTIONS


def _attribute(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _option(field: Any, values: Any = None) -> Option:
    default = field.default
    if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    choices: tuple[str, ...] = ()
    for kind in (field.type, *getattr(field.type, "__args__", ())):
        if isinstance(kind, type) and issubclass(kind, Enum):
            choices = tuple(str(member.value) for member in kind)
    return Option(
        "--" + field.name.replace("_", "-"),
        _shown((values or {}).get(field.name, default)),
        choices,
        " ".join(str((field.metadata or {}).get("help", "")).split()),
    )


def _shown(value: object) -> str:
    if isinstance(value, str) and value.startswith("${"):
        section, name = value.strip("${}").split(".")
        return f"the {section}'s --{name.replace('_', '-')}"
    if isinstance(value, Enum):
        value = value.value
    if value is None:
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value)


def overview() -> Iterator[str]:
    """The lines of the command without NAME."""
    yield "Tasks (--task):"
    yield from (f"  {name}" for name in tasks())
    yield "Models and their architectures (--arch):"
    for model, architectures in models().items():
        yield f"  {model}"
        yield from (f"    {name}" for name in architectures)
    yield "Attentions (--encoder-self-attention-type, --decoder-self-attention-type, --decoder-cross-attention-type):"
    yield from (f"  {name:<14}{', '.join(cls.patterns)}" for name, cls in sorted(ATTENTIONS.items()))
    yield "Generation options of fairseq that the plugin's tasks accept; any other is refused:"
    for option in generation_options():
        honoured = [task for task in tasks() if _honours(task, _attribute(option.flag))]
        yield f"  {option.flag:<37} {', '.join(honoured)}"
    yield "More about one of them, or about any option: amlp-fairseq options NAME"


def about(name: str) -> Iterator[str]:
    """The lines about a task, model, architecture, attention or option.

    Raises:
        ValueError: for another name, with the nearest.
    """
    if name in tasks():
        yield f"--task {name} adds to the options of fairseq's task:"
        yield from _listed(task_options(name))
        yield "and accepts these of fairseq's generation options; any other is refused:"
        yield from _listed([option for option in generation_options() if _honours(name, _attribute(option.flag))])
        return
    architectures = {arch: model for model, names in models().items() for arch in (model, *names)}
    if name in architectures:
        yield f"--arch {name} (model {architectures[name]}):"
        yield from _listed(model_options(name))
        return
    if name in ATTENTIONS:
        yield f"{name}: {', '.join(ATTENTIONS[name].patterns)} attention, a value of"
        yield "  --encoder-self-attention-type, --decoder-self-attention-type or --decoder-cross-attention-type;"
        yield "its options are among those of the models"
        return
    flag = "--" + name.removeprefix("--").replace("_", "-")
    found = owners(flag)
    if not found:
        every = [option.flag for task in tasks() for option in task_options(task)]
        every += [option.flag for model in models() for option in model_options(model)]
        every += [option.flag for option in generation_options()]
        near = flag if name.startswith("--") else name
        refuse_unknown([near], dict.fromkeys([*tasks(), *architectures, *ATTENTIONS, *every]), "NAME")
    for owner, option in found.items():
        yield f"{owner}:"
        yield from _listed([option])


def _listed(options: list[Option]) -> Iterator[str]:
    for option in options:
        facts = [f"default: {option.default}"] if option.default else []
        facts += [f"one of {', '.join(option.choices)}"] if option.choices else []
        yield f"  {option.flag:<33} {option.help}" + (f" ({'; '.join(facts)})" if facts else "")


def markdown() -> Iterator[str]:
    """The lines of docs/options.md."""
    yield "# Options"
    yield ""
    yield "Written by `amlp-fairseq options --markdown`; `amlp-fairseq options NAME` shows one of them."
    for task in tasks():
        yield from ("", f"## --task {task}", "", "Beside the options of fairseq's task:", "")
        yield from _table(task_options(task))
    yield from (
        "",
        "## Generation options",
        "",
        "fairseq's, and which tasks accept them; a task refuses all others.",
        "",
    )
    names = list(tasks())
    yield "| option | default | " + " | ".join(names) + " | what it is |"
    yield "|---|---|" + "---|" * len(names) + "---|"
    for option in generation_options():
        honoured = ["yes" if _honours(name, _attribute(option.flag)) else "" for name in names]
        yield f"| `{option.flag}` | {option.default} | " + " | ".join(honoured) + f" | {_cell(option.help)} |"
    yield from (
        "",
        "## Decoding options in the engine",
        "",
        "With which of them, and of their values, [the engine](decoding-speed.md#what-decodes) decodes. With the "
        "others, if they are not the defaults, PyTorch does, or refuses them: sampling and diverse beams are of "
        "fairseq's own search, which `--task translation` has.",
        "",
        "| option | " + " | ".join(KINDS) + " |",
        "|---|" + "---|" * len(KINDS),
    )
    yield from (f"| `{flag}` | " + " | ".join(shown.values()) + " |" for flag, shown in engine_options().items())
    for model, architectures in models().items():
        defaults = {option.flag: option.default for option in model_options(model)}
        yield from ("", f"## --arch {model}", "")
        yield from _table(model_options(model))
        if architectures:
            yield from ("", "| architecture | other defaults |", "|---|---|")
        for name in architectures:
            others = [
                f"`{each.flag} {each.default}`" for each in model_options(name) if each.default != defaults[each.flag]
            ]
            yield f"| `{name}` | {', '.join(others)} |"
    yield from ("", "## Attentions", "", "| name | where it can stand | where the engine has it |", "|---|---|---|")
    for name, places in engine_support.attentions().items():
        here = [place for place, found in places.items() if found]
        yield f"| `{name}` | {', '.join(places)} | {', '.join(here)} |"
    yield from (
        "",
        "## Models in the engine",
        "",
        "[The engine](decoding-speed.md#what-decodes) has these models; PyTorch decodes others, those with attentions "
        "where the engine has none, and those with these values of options. Of all attentions: "
        f"{', '.join(engine_support.attention_values())}.",
        "",
        "| model | in the engine | but for |",
        "|---|---|---|",
    )
    for model, values in engine_support.models().items():
        yield f"| `{model}` | {'no' if values is None else 'yes'} | {', '.join(values or [])} |"


def _table(options: list[Option]) -> Iterator[str]:
    yield "| option | default | choices | what it is |"
    yield "|---|---|---|---|"
    for option in options:
        choices = ", ".join(f"`{choice}`" for choice in option.choices)
        yield f"| `{option.flag}` | {option.default} | {choices} | {_cell(option.help)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    parser = command_parser("options", __doc__)
    parser.add_argument("--markdown", action="store_true", help="all of it, as docs/options.md")
    parser.add_argument("name", metavar="NAME", nargs="?", help="a task, model, architecture, attention or option")
    words = sys.argv[1:]
    if len(words) == 1 and words[0].startswith("--") and words[0] not in ("--help", "--markdown"):
        words = [words[0].removeprefix("--")]
    args = parser.parse_args(words)
    lines = markdown() if args.markdown else about(args.name) if args.name else overview()
    print("\n".join(lines))


if __name__ == "__main__":
    main()
