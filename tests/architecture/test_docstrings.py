"""Everything public says what it is, or implements something that does."""

import importlib
import inspect
import pkgutil

import pytest

import rlightning

MODULES = sorted(info.name for info in pkgutil.walk_packages(rlightning.__path__, "rlightning."))


def own_members(module):
    for name, member in vars(module).items():
        is_code = inspect.isclass(member) or inspect.isfunction(member)
        if is_code and not name.startswith("_") and member.__module__ == module.__name__:
            yield name, member


def own_methods(cls):
    for name, member in vars(cls).items():
        function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if not name.startswith("_") and (inspect.isfunction(function) or isinstance(function, property)):
            yield name, getattr(cls, name)


@pytest.fixture(scope="module")
def documented_by_protocols():
    """Names of the methods of all protocols: what implements one does not inherit its docstrings."""
    classes = [cls for name in MODULES for _, cls in own_members(importlib.import_module(name)) if inspect.isclass(cls)]
    protocols = [cls for cls in classes if getattr(cls, "_is_protocol", False)]
    return {name for protocol in protocols for name, method in own_methods(protocol) if inspect.getdoc(method)}


@pytest.mark.parametrize("module_name", MODULES)
def test_everything_public_is_documented(module_name, documented_by_protocols):
    module = importlib.import_module(module_name)
    missing = [] if module.__doc__ else ["the module itself"]
    for name, member in own_members(module):
        if not inspect.getdoc(member):
            missing.append(name)
        if inspect.isclass(member):
            missing += [
                f"{name}.{method_name}"
                for method_name, method in own_methods(member)
                if not inspect.getdoc(method) and method_name not in documented_by_protocols
            ]
    assert missing == []
