"""The valid option that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import get_args, get_origin

from pydantic import BaseModel

from rlightning.config import Config
from rlightning.configuring.sources import join

_SAME_SECTION = 0.6
"""How alike (0 to 1) a name of the same section must be."""
_ELSEWHERE = 0.8
"""How alike a name of another section must be."""
_NEARNESS = 0.15
"""How much likeness it is worth to be in the same section."""

_SYNONYMS = {
    "clip_coef": "clip_range",
    "clip_ratio": "clip_range",
    "discount": "gamma",
    "ent_coef": "entropy_coef",
    "env_id": "name",
    "epochs": "max_epochs",
    "eval_episodes": "episodes",
    "gae_lambda": "lam",
    "hidden_layers": "hidden_sizes",
    "learning_rate": "lr",
    "max_iterations": "max_epochs",
    "minibatch_size": "batch_size",
    "n_envs": "num_envs",
    "n_epochs": "update_epochs",
    "n_steps": "max_rollout_steps",
    "num_steps": "max_rollout_steps",
    "simulator": "backend",
    "vf_coef": "value_coef",
}
"""What other libraries call an option."""


def options(section: type[BaseModel] = Config, path: str = "") -> dict[str, bool]:
    """Return the dotted paths of all options below a section, and whether each holds sections that users name.

    Sections are among them; lists are passed through.

    >>> options()["train.lr"], options()["env.num_envs"], options()["cluster.resource_pool"]
    (False, False, True)
    """
    found: dict[str, bool] = {}
    for name, field in section.model_fields.items():
        option, inner = join(path, name), list(_sections(field.annotation))
        found[option] = bool(inner) and get_origin(field.annotation) is dict
        for each in inner:
            found |= options(each, option)
    return found


def schema_path_of(path: str, model: type[BaseModel] = Config) -> str:
    """Write a dotted path without the indices of lists, and without the names that users give to sections.

    >>> schema_path_of("env.0.name"), schema_path_of("cluster.resource_pool.mine.num_nodes")
    ('env.name', 'cluster.resource_pool.num_nodes')
    """
    parts: list[str] = []
    known, skip = options(model), False
    for part in path.split("."):
        if not part.isdigit() and not skip:
            parts.append(part)
        skip = not skip and known.get(join(*parts), False)
    return join(*parts)


def nearest_option(path: str, extra: Iterable[str] = (), model: type[BaseModel] = Config) -> str:
    """Find the valid option that is most like an unknown one; empty if none is.

    A name in the same section is preferred; the same or nearly the same name in another section comes next.

    Args:
        path: Dotted path of what is unknown, without indices of lists.
        extra: Valid options that the configuration classes do not know, such as those of the algorithm.
        model: The class of the whole configuration.

    >>> nearest_option("buffer.batch_size"), nearest_option("polcy"), nearest_option("train.learning_rat")
    ('train.batch_size', 'policy', 'train.lr')
    """
    section, _, name = path.rpartition(".")
    best, best_score = "", 0.0
    for option in (*options(model), *extra):
        option_section, _, option_name = option.rpartition(".")
        synonyms = (synonym for synonym, meant in _SYNONYMS.items() if meant == option_name)
        likeness = max(_likeness(name, known) for known in (option_name, *synonyms))
        same = option_section == section
        score = likeness + _NEARNESS * same
        if likeness >= (_SAME_SECTION if same else _ELSEWHERE) and score > best_score:
            best, best_score = option, score
    return best


def _likeness(left: str, right: str) -> float:
    return difflib.SequenceMatcher(None, left.lower().replace("-", "_"), right).ratio()


def _sections(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif not isinstance(annotation, Mapping):
        for argument in get_args(annotation):
            yield from _sections(argument)
