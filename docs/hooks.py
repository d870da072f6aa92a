"""Hooks of mkdocs.yml that let the same Markdown read well on GitHub and on the site.

The site has pages that lie outside `docs/`, such as the README: `extra.pages` of mkdocs.yml maps
each page's name to its file. A relative link to such a file, or from it, becomes a link between
pages. A link to any other file outside `docs/` leads to the repository, or is plain code while
`repo_url` is not set.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

CODE = r"^ *```.*?^ *```|`(?:[^`\n]|\n(?!\n))+`"  # in blocks, in lines
LINK = r"!?\[(?P<text>(?:`[^`]*`|[^\[\]`])*)\]\((?P<address>[^)\s]+)\)"
CODE_OR_LINK = re.compile(f"{CODE}|{LINK}", re.MULTILINE | re.DOTALL)
TABLE_ROW = re.compile(r"^\|.*\|$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that lie outside `docs/`."""
    root = Path(config.config_file_path).parent
    for page, source in config.extra["pages"].items():
        files.append(File.generated(config, page, abs_src_path=str(root / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    pages = config.extra["pages"]
    source = pages.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def rewritten(match: re.Match[str]) -> str:
        address = match["address"]
        if not address or address.startswith("#") or re.match(r"[a-z]+:", address):
            return match[0]
        path, hash_sign, anchor = address.partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if name := _page_of(target, pages):
            start = posixpath.dirname(page.file.src_uri) or "."
            new = posixpath.relpath(name, start) + hash_sign + anchor
        elif config.repo_url:
            new = f"{config.repo_url.rstrip('/')}/blob/main/{target}{hash_sign}{anchor}"
        else:
            return _as_code(match["text"], target)
        return match[0].removesuffix(f"({address})") + f"({new})"

    return CODE_OR_LINK.sub(rewritten, TABLE_ROW.sub(_bars, markdown))


def _page_of(target: str, pages: dict[str, str]) -> str | None:
    """The file of the site that shows a file of the repository; None if there is none."""
    for name, source in pages.items():
        if target in (source, posixpath.dirname(source) or source):
            return name
    return target.removeprefix("docs/") if target.startswith("docs/") else None


def _as_code(text: str, target: str) -> str:
    if target.endswith(text.strip("`").rstrip("/")):
        return f"`{target}`"
    return f"{text} (`{target}`)"


def _bars(row: re.Match[str]) -> str:
    """Code in a table with bare bars: GitHub wants them escaped there, Python-Markdown does not."""
    return re.sub(r"`[^`\n]+`", lambda code: code[0].replace(r"\|", "|"), row[0])
