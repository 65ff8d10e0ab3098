"""Make the site of the documentation whole in itself: with the pages that lie elsewhere in the repository, and with a
script of its own that draws diagrams. Nobody is called.

MkDocs calls these functions (``hooks`` of mkdocs.yml). The script is Mermaid (MIT licence), as the package
mermaidx brings it.
"""

from __future__ import annotations

import importlib.metadata
import shutil
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

_PACKAGE, _SCRIPT = "mermaidx", "mermaidx/assets/mermaid.js"
_PLACE = "assets/javascripts/mermaid.js"


ROOT = Path(__file__).parents[1]
_PAGES = {"CHANGELOG.md": "changelog.md", "SECURITY.md": "reporting.md"}
"""Pages of the repository's root, and what they are called in the site."""


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the repository's root, and one with the examples."""
    for name, page in _PAGES.items():
        text = (ROOT / name).read_text().replace("](docs/", "](")
        files.append(File.generated(config, page, content=text))
    examples = ["# Examples", "", "Programs of the folder `examples` of the repository. A test runs each of them.", ""]
    examples += [
        "Its folders are systems on RDMA with pages of their own: [RStore](rstore.md), [Carafe](carafe.md). "
        "`make examples` runs them on small inputs, and prints what their results were checked against. "
        "`make examples-bench` compares them with other programs, and writes the figures into their pages: less than a "
        "quarter of an hour on two processors that nobody else uses."
    ]
    for path in sorted((ROOT / "examples").glob("*.py")):
        examples += ["", f"## {path.name}", "", "```python", path.read_text().rstrip(), "```"]
    files.append(File.generated(config, "examples.md", content="\n".join(examples) + "\n"))
    return files


def _script() -> Path:
    """Return where the package has Mermaid."""
    for file in importlib.metadata.files(_PACKAGE) or ():
        if file.as_posix() == _SCRIPT:
            return Path(str(file.locate()))
    raise FileNotFoundError(f"{_PACKAGE} has no {_SCRIPT}")


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Load Mermaid on the pages that have diagrams. The theme would load it from elsewhere if it were not there."""
    if '<pre class="mermaid">' not in output:
        return output
    up = "../" * page.url.count("/")
    return output.replace("</head>", f'<script src="{up}{_PLACE}"></script></head>', 1)


def on_post_build(config: Any) -> None:
    """Copy Mermaid into the site."""
    target = Path(config["site_dir"]) / _PLACE
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(_script(), target)
