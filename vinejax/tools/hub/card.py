"""The model card of a run: README.md with metadata, beside a picture and the settings as JSON."""

import functools
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jinja2

from vinejax.core.settings import Config, as_tree
from vinejax.methods import restem, sft
from vinejax.methods.about import about
from vinejax.methods.known import known_method
from vinejax.records.read import JsonObject
from vinejax.runtime.workdir import flatten_names
from vinejax.tasks.prompts import template_variable
from vinejax.tools.hub.evaluations import Evaluation
from vinejax.tools.hub.origins import Origin

README, SETTINGS = "README.md", "vinejax.json"
FOLDER = pathlib.Path(__file__).parent
LONGEST_PROMPT = 1000  # characters of a prompt that the card shows
# Fields of generation_config.json that no run applies, unlike `generate` -> values without effect.
NEUTRAL = {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0}
# Titles of methods end at the first colon: 'GRPO: a solution's reward, ...'.
PAPER = re.compile(r"https://arxiv\.org/abs/[\d.]+\d")


class CardFacts(NamedTuple):
    """The contents of a model card."""

    repository: str  # ORG/NAME
    iteration: int  # finished iterations of the policy
    settings: Mapping[str, Any]  # as they may be published, by dotted names
    base: Origin
    data: Origin
    evaluations: Sequence[Evaluation]
    prompt: str  # an example from training; '' if none may be shown
    picture: str  # name of the file; '' for none
    versions: JsonObject  # package -> version or None
    revision: object  # git commit of VineJAX; None if unknown
    generation: Mapping[str, Any]  # the content of generation_config.json; {} without the file


def model_card(facts: CardFacts) -> str:
    """The text of README.md: the metadata as YAML, then Markdown."""
    metrics = sorted({name for one in facts.evaluations for name in one.metrics}, key=_metric_order)
    text = _environment().get_template("card.md.j2").render(
        metadata=metadata(facts),
        name=facts.repository.rpartition("/")[2],
        repository=facts.repository,
        summary=_summary(facts),
        **_usage(facts),
        training=[(label, _cell(value)) for label, value in _training(facts)],
        picture=facts.picture,
        metrics=metrics,
        rows=[_row(one, metrics) for one in facts.evaluations],
        evaluation_note=_evaluation_note(facts),
        settings_file=SETTINGS,
        settings=[(name, json.dumps(value)) for name, value in changed_settings(facts.settings)],
        versions=", ".join(_versions(facts)),
    )  # fmt: skip
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def metadata(facts: CardFacts) -> str:
    """The YAML at the top of a card. The license is unknown, and not named."""
    from huggingface_hub import EvalResult, ModelCardData

    method = str(facts.settings["method"])
    of_package = [method] if known_method(method) else []
    kind = "sft" if known_method(method) is sft.METHOD else "reinforcement-learning"
    results = [
        EvalResult(
            task_type="text-generation",
            dataset_type=name,
            dataset_name=name,
            dataset_split="test",
            dataset_args={"problems": one.num_problems, "samples": one.samples},
            metric_type="pass@1",
            metric_name=f"pass@1, mean of {one.samples} samples per problem",
            metric_value=round(one.metrics["pass@1"].value, 4),
        )
        for one in facts.evaluations
        if (name := one.data or facts.data.name) and _is_result(one, facts)
    ]
    card = ModelCardData(
        base_model=facts.base.name if facts.base.is_on_hub else None,
        datasets=[facts.data.name] if facts.data.is_on_hub else None,
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=[*dict.fromkeys(("vinejax", *of_package, kind))],
        model_name=facts.repository if results else None,
        eval_results=results or None,
    )
    return card.to_yaml().strip()


def settings_file(facts: CardFacts) -> str:
    """The text of vinejax.json."""
    record = {
        "iteration": facts.iteration,
        "config": dict(facts.settings),
        "versions": facts.versions,
        "git_revision": facts.revision,
    }
    return json.dumps(record, indent=2) + "\n"


def changed_settings(settings: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The settings that differ from their defaults, and `method`, which others depend on."""
    # A method that is not of the package has settings of its own, whose defaults are unknown here.
    method = known_method(str(settings["method"]))
    cfg = Config() if method is None else method.with_settings(Config())
    defaults = json.loads(json.dumps(flatten_names(as_tree(cfg))))
    unset = object()
    return [
        (name, value)
        for name, value in settings.items()
        if name == "method" or defaults.get(name, unset) != value
    ]


def _is_result(one: Evaluation, facts: CardFacts) -> bool:
    """Whether an evaluation is one of this policy on the test split of a data set of the hub."""
    is_own = one.iteration == facts.iteration and one.problems == "test" and not one.data
    return is_own and facts.data.is_on_hub and "pass@1" in one.metrics and one.samples is not None


def _summary(facts: CardFacts) -> str:
    return (
        f"{_name_of(facts.base, 'models') or 'A new model'} after {facts.iteration} iterations of"
        f" {_method(facts)[0]} on {_data(facts)}. It was trained with VineJAX, an implementation of"
        " [VinePPO](https://arxiv.org/abs/2410.01679) in JAX."
    )


def _method(facts: CardFacts) -> tuple[str, str]:
    """(name of the method, a line about it)."""
    name = str(facts.settings["method"])
    if known_method(name) is None:
        return f"`{name}`", "a method that is no part of VineJAX"
    found = about(name)
    short, _, line = found.title.partition(": ")
    papers = dict.fromkeys(PAPER.findall(found.source))
    links = ", ".join(f"[{paper.rpartition('/')[2]}]({paper})" for paper in papers)
    return short, f"{short}: {line.rstrip('.')}" + (f" ({links})" if links else "")


def _data(facts: CardFacts) -> str:
    module = str(facts.settings["data.task"]).removesuffix(".py")
    task = f"the task `{re.split(r'[./]', module)[-1]}`"
    name = _name_of(facts.data, "datasets")
    return f"{task} ({name})" if name else task


def _name_of(origin: Origin, kind: str) -> str:
    """The name of weights or data as a link to the hub, or as code if they are not there."""
    prefix = "" if kind == "models" else f"{kind}/"
    link = f"[{origin.name}](https://huggingface.co/{prefix}{origin.name})"
    return link if origin.is_on_hub else f"`{origin.name}`" if origin.name else ""


def _training(facts: CardFacts) -> list[tuple[str, str]]:
    settings = facts.settings
    rank = settings["model.lora_rank"]
    method = known_method(str(settings["method"]))
    problems = settings["rollout.prompts"]
    if method is restem.METHOD:  # it samples from all train problems, or from a number of its own
        problems = settings.get("restem.problems") or "all"
    solutions = f"{problems} problems, {settings['rollout.per_prompt']} each"
    if method is not None and method.has_continuations:
        solutions += f"; up to {settings['values.k']} continuations per state"
    rows = [
        ("method", _method(facts)[1]),
        ("start", _name_of(facts.base, "models") or "a new model"),
        ("data", _data(facts)),
        ("iterations", str(facts.iteration)),
        ("trained", f"adapters of rank {rank}, merged into the weights" if rank else "all weights"),
    ]
    if method is sft.METHOD:  # it samples nothing, and has a learning rate of its own
        return [*rows, ("learning rate", str(settings["sft.learning_rate"]))]
    rows.append(("solutions per iteration", solutions))
    return [*rows, ("learning rate", str(settings["optimizer.learning_rate"]))]


def _usage(facts: CardFacts) -> dict[str, str]:
    """The parts of the example of a call."""
    settings = facts.settings
    sampled = settings["eval.temperature"] > 0
    generation = [f"max_new_tokens={settings['sample.max_tokens']}", f"do_sample={sampled}"]
    if sampled:
        temperature, top_p = settings["eval.temperature"], settings["eval.top_p"]
        generation += [f"temperature={temperature}", f"top_p={top_p}"]
        generation.append(f"top_k={settings['sample.top_k']}")
    for name, value in NEUTRAL.items():
        if facts.generation.get(name) not in (None, value):
            generation.append(f"{name}={value}")
    if settings["sample.stop"]:
        generation += [f"stop_strings={list(settings['sample.stop'])!r}", "tokenizer=tokenizer"]
    parts = {"generation": ", ".join(generation), "messages": "", "usage_note": ""}
    if settings["data.chat_template"]:
        system = settings["data.system"]
        messages = [{"role": "system", "content": system}] if system else []
        variables = ["messages", "add_generation_prompt=True", 'return_tensors="pt"']
        variables.append("return_dict=True")
        own = map(template_variable, settings["data.template_vars"])
        variables += [f"{name}={value!r}" for name, value in own]
        parts["messages"] = repr([*messages, {"role": "user", "content": "..."}])
        return parts | {"template_arguments": ", ".join(variables)}
    if facts.prompt and len(facts.prompt) <= LONGEST_PROMPT:
        return parts | {"prompt": repr(facts.prompt)}
    note = "A prompt must have the form that it had in training: see `data.task` and"
    return parts | {"prompt": repr("..."), "usage_note": f"{note} `data.template` below."}


def _row(one: Evaluation, metrics: Sequence[str]) -> list[str]:
    policy = "unknown" if one.iteration is None else f"after {one.iteration} iterations"
    policy = "start" if one.iteration == 0 else policy
    values = [str(one.metrics[name]) if name in one.metrics else "" for name in metrics]
    counts = [f"{one.num_problems} problems"] if one.num_problems else []
    counts += [f"{one.samples} samples each"] if one.samples else []
    count = f" ({', '.join(counts)})" if counts else ""
    return [_cell(one.problems) + count, policy, *values]


def _evaluation_note(facts: CardFacts) -> str:
    settings = facts.settings
    return (
        "pass@k: some of k answers is right; maj@k: the most frequent of k answers is right."
        " Rows without a number of samples are evaluations during training, with"
        f" {settings['eval.samples']} samples per problem at temperature"
        f" {settings['eval.temperature']}, top-p {settings['eval.top_p']}. In parentheses: 95%"
        " bootstrap intervals over problems."
    )


def _versions(facts: CardFacts) -> list[str]:
    versions = [f"{name} {version}" for name, version in facts.versions.items() if version]
    if facts.revision:
        versions.append(f"commit {facts.revision} of vinejax")
    return versions


def _metric_order(name: str) -> tuple[bool, int]:
    kind, _, k = name.partition("@")
    return kind != "pass", int(k)


def _cell(text: str) -> str:
    """Text for a cell of a table in Markdown."""
    return " ".join(text.replace("|", "\\|").split())


@functools.cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
