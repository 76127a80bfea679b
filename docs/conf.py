"""The documentation site, built by `make docs`.

The repository itself is the source, and its pages are those of `include_patterns`, so that a link leads to
the same place here and where the repository is read. One to a file that is no page becomes a download of it.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

project = "Flambeau"
release = tomllib.loads((ROOT / "python/pyproject.toml").read_text())["project"]["version"]
root_doc = "docs/index"
include_patterns = ["docs/**.md", "benchmarks/*.md", "examples/**.md", "CHANGELOG.md", "CONTRIBUTING.md"]
exclude_patterns = [".*", "build", "jvm", "native", "python", "target", "tests", "docs/ISSUE_TEMPLATE"]

extensions = ["myst_parser", "sphinx.ext.autodoc"]
# As the browsers of repositories name headings, so that links to them work there too.
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]
highlight_language = "none"

# Docstrings have names of code in single backticks.
default_role = "literal"
smartquotes = False
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
# References to what is not ours (Spark, torch, typing) need those projects' inventories, by the network.
nitpick_ignore = [("py:class", "flambeau._described.M")]  # a type variable
nitpick_ignore_regex = [("py:.*", r"(?!flambeau\b).*")]

html_theme = "pydata_sphinx_theme"
html_title = f"Flambeau {release}"
html_static_path = ["site/static"]
html_css_files = ["site.css"]
html_show_copyright = False
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "Flambeau"},
    "show_prev_next": False,
    "footer_start": [],
    "footer_end": [],
}


def as_fields(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Makes fields of a docstring's section of parameters, `name : type` and their text below, or of
    attributes, `name : text`.
    """
    for section, field in ("Parameters", r":param \1: \2."), ("Attributes", r":ivar \1: \2"):
        if section in lines:
            at = lines.index(section)
            lines[at:] = ["", *(re.sub(r"^(\w+) : (.*)", field, line) for line in lines[at + 2 :])]


def setup(app: Any) -> None:
    """Sphinx calls it."""
    app.connect("autodoc-process-docstring", as_fields)
