"""How the documentation is built: `make docs`."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

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
nitpicky = True
# Without inventories of other projects, which would have to be downloaded, their names cannot be linked.
nitpick_ignore_regex = [
    (r"py:.*", r"(abc|collections|gym|gymnasium|np|numpy|pathlib|pydantic|ray|tensordict|torch|types|typing)\..*"),
    (
        r"py:.*",
        r"(Any|Callable|ClassVar|Generic|Path|Protocol|T|R|T_co|TensorDict(Base)?|Tree|nn\..*|optional)",
    ),
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
