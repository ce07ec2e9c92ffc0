"""The generated references say everything, and links lead somewhere."""

import importlib
import re
import sys

import pytest

import rlightning
from rlightning import registry
from rlightning.config import Config
from tests.architecture.source import ROOT

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def config_reference():
    return import_extension("config_reference")


def import_extension(name):
    sys.path.insert(0, str(DOCS / "_ext"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(DOCS / "_ext"))


def sections(module, section):
    yield section
    for field in section.model_fields.values():
        inner = module.subsection(field.annotation)
        if inner is not None:
            yield from sections(module, inner)


def all_sections(module):
    yield from sections(module, Config)
    for name in registry.names("policy"):
        policy = registry.lookup("policy", name)
        for owner in (policy.ModelOptions, policy.AlgoOptions):
            yield from sections(module, owner) if owner else ()


def test_every_public_name_has_its_entry_in_the_api_reference():
    text = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")
    whole_modules = set(re.findall(r"^\.\. automodule:: (\S+)$(?!\n   :(?:no-)?members:)", text, re.MULTILINE))
    single = set(re.findall(r"^\.\. auto(?:class|function):: (\S+)$", text, re.MULTILINE))
    single |= {
        f"{module}.{name.strip()}"
        for module, names in re.findall(r"^\.\. automodule:: (\S+)\n   :members: (.+)$", text, re.MULTILINE)
        for name in names.split(",")
    }
    missing = []
    for module in (rlightning, importlib.import_module("rlightning.launch")):
        for name in set(module.__all__) - {"__version__"}:
            home = getattr(module, name).__module__ if name != "launch" else "rlightning.launch"
            homes = {home, module.__name__, "rlightning.launch"}
            if home not in whole_modules and not single & {f"{each}.{name}" for each in homes}:
                missing.append(name)
    assert sorted(set(missing)) == []


def test_every_option_has_a_meaning_under_it(config_reference):
    missing = [
        f"{section.__name__}.{name}"
        for section in all_sections(config_reference)
        for name, field in section.model_fields.items()
        if config_reference.subsection(field.annotation) is None and name not in config_reference.meanings(section)
    ]
    assert missing == []


@pytest.mark.parametrize(
    "entry",
    [
        "`max_epochs`\n: Epochs of the whole run.\n  <br>*whole number ≥ 1; default `100`*",
        "`name`\n: Name of the env: a Gymnasium id such as `HalfCheetah-v5`, or what the backend understands.\n"
        "  <br>*text; required*",
        "`max_grad_norm`\n: Gradients are scaled down to this global L2 norm; null leaves them.\n"
        "  <br>*number > 0, or `null`; default `0.5`*",
        "`parallel`\n: ",
        "## `env[]`\n",
        "## `policy.algo_cfg` of ppo\n",
    ],
)
def test_an_option_shows_meaning_type_limits_and_default(config_reference, entry):
    assert entry in config_reference.render()


def test_metrics_show_unit_and_meaning():
    assert "| `policy/version` | updates | " in import_extension("metrics_reference").render()


PAGES = [*ROOT.glob("*.md"), *DOCS.glob("*.md"), *DOCS.glob("guide/*.md"), *DOCS.glob("reference/*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_links_to_files_that_exist(page):
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text("utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []
