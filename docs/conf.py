"""How the documentation is built: `make docs`."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

from pydantic import BaseModel  # noqa: E402

import rlightning  # noqa: E402 -- found by the path above

project = "RLightning"
author = "The RLightning authors"
release = version = rlightning.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "config_reference",
    "metrics_reference",
]
exclude_patterns = ["_build"]
myst_enable_extensions = ["deflist", "fieldlist", "smartquotes"]
myst_heading_anchors = 3
suppress_warnings = ["myst.header"]  # generated pages are included below the heading of the page that includes them
nitpicky = True
# Without inventories of other projects, which would have to be downloaded, their names cannot be linked.
nitpick_ignore_regex = [
    (
        r"py:.*",
        r"(abc|annotated_types|collections|contextlib|enum|gym|gymnasium|np|numpy|pathlib|pydantic|rich|tensordict|torch|types|typing)\..*",
    ),
    (
        r"py:.*",
        r"(AbstractContextManager|Any|Callable|ClassVar|Path|Protocol|Tensor|TensorDict(Base)?|nn\..*|dict\[str|tuple\[int)",
    ),
    (r"py:.*", r"(.*\.)?(P|R|T|T_co|OptionsT)"),  # type variables
    (r"py:.*", r"(.*\.)?(Activation|Amount|BoxActions|FreeForm|Kind|NamedTensors|Tree|WholeRange)"),  # names of types
    (r"py:.*", r".*\._\w+"),
]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"RLightning {release}"
html_static_path = ["_static"]


def setup(app):
    """Make autodoc fit our docstrings."""
    kept = {}

    # What comes before the first colon of an attribute's docstring is no type, as napoleon would have it.
    def keep(_app, what, name, _object, _options, lines):
        if what in {"attribute", "property", "data"}:
            kept[name] = list(lines)

    def restore(_app, _what, name, _object, _options, lines):
        if name in kept:
            lines[:] = kept.pop(name)

    # The signature of a section would repeat all its fields.
    def shorten(_app, what, _name, found, _options, _signature, _returns):
        return ("", None) if what == "class" and issubclass(found, BaseModel) else None

    app.connect("autodoc-process-docstring", keep, priority=400)
    app.connect("autodoc-process-docstring", restore, priority=600)
    app.connect("autodoc-process-signature", shorten)
