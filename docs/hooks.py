"""Hooks of the documentation build.

Pages may link to files of the repository outside docs/, so that the links work in a repository browser too.
`on_files` publishes the files that are linked, and `on_page_markdown` points the links there. `on_post_build`
refuses a site that loads anything from another host.
"""

from __future__ import annotations

import os.path
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}
LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)#\s]+)")
LOADED = re.compile(r"<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")


def published(path: str) -> str:
    """Say where on the site a file of the repository is, given its path from the root of the repository."""
    return {**PAGES, "README.md": "index.md"}.get(path) or path.removeprefix("docs/")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that live in the root of the repository, and the files outside docs/ that pages link to."""
    for source, target in PAGES.items():
        files.append(File.generated(config, target, content=(ROOT / source).read_text(encoding="utf-8")))
    linked = {
        resolved
        for file in files.documentation_pages()
        for target in LINK.findall(file.content_string)
        if not (resolved := resolve(file.src_uri, target)).startswith(("docs/", ".."))
        and resolved not in (*PAGES, "README.md")
    }
    for path in sorted(linked):
        if (ROOT / path).is_file():
            files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def resolve(page: str, target: str) -> str:
    """Resolve a link to a path from the root of the repository. `page` is the page's place on the site."""
    source = next((name for name, place in PAGES.items() if place == page), f"docs/{page}")
    return os.path.normpath(str(PurePosixPath(source).parent / target))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links for the site."""
    here = PurePosixPath(page.file.src_uri).parent

    def rewritten(match: re.Match[str]) -> str:
        place = published(resolve(page.file.src_uri, match[1]))
        return os.path.relpath(place, here) if files.get_file_from_path(place) else match[1]

    return LINK.sub(rewritten, markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Refuse a site that would load scripts, styles, fonts or images from another host."""
    for page in Path(config.site_dir).rglob("*.html"):
        for tag in LOADED.findall(page.read_text(encoding="utf-8")):
            if "canonical" not in tag:
                raise PluginError(f"{page.name} loads from another host: {tag}")
