"""The site builds without a warning, every link in it has a target, and no page fetches from another host."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urldefrag, urlsplit

import pytest

from tests.support.docs_pages import ROOT

LOADED = {
    "script": ["src"],
    "img": ["src", "srcset"],
    "source": ["src", "srcset"],
    "iframe": ["src"],
    "object": ["data"],
    "embed": ["src"],
    "video": ["src", "poster"],
    "audio": ["src"],
    "link": ["href"],
}
OUTSIDE = re.compile(r"(https?:)?//", re.IGNORECASE)
IN_A_STYLE = re.compile(r"""(?:url\(|@import)\s*["']?([^"')\s]+)""")


class Page(HTMLParser):
    """What a page of the site loads, where it leads, and what can be led to in it."""

    def __init__(self, text):
        super().__init__()
        self.loads, self.links, self.ids, self.names = [], [], set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids.add(given.get("id"))
        self.names |= {*(given.get("class") or "").split(), given.get("data-md-component")}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag == "link" and given.get("rel") in {"canonical", "prev", "next", "alternate"}:
            return  # told, not loaded
        self.loads += [given[name] for name in LOADED.get(tag, ()) if given.get(name)]
        self.loads += IN_A_STYLE.findall(given.get("style") or "")


def build(directory, *, config=ROOT / "mkdocs.yml"):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", config, "--site-dir", directory]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environ, timeout=100, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    directory = tmp_path_factory.mktemp("site")
    done = build(directory)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return directory


@pytest.fixture(scope="module")
def pages(site):
    return {path: Page(path.read_text()) for path in site.rglob("*.html")}


def test_pages_fetch_nothing_from_other_hosts(site, pages):
    loaded = {(path.name, one) for path, page in pages.items() for one in page.loads if OUTSIDE.match(one)}
    loaded |= {
        (path.name, one)
        for path in site.rglob("*.css")
        for one in IN_A_STYLE.findall(path.read_text())
        if OUTSIDE.match(one)
    }
    assert loaded == set()


def test_no_page_uses_theme_features_that_fetch(pages):
    # Diagrams come with a library of a network's, and a repository's name with figures of its host.
    assert [path.name for path, page in pages.items() if page.names & {"mermaid", "source"}] == []


def test_links_within_the_site_have_targets(site, pages):
    nowhere = []
    for path, page in pages.items():
        for link in (*page.links, *page.loads):
            target, anchor = urldefrag(link)
            if urlsplit(target).scheme or target.startswith("//") or path.name == "404.html":
                continue
            there = (path.parent / unquote(urlsplit(target).path)).resolve() if target else path
            there = there / "index.html" if there.is_dir() else there
            if not there.exists() or (anchor and there in pages and unquote(anchor) not in pages[there].ids):
                nowhere.append((path.name, link))
    assert nowhere == []


def test_every_page_is_linked_from_the_first(site, pages):
    reached = {(site / urldefrag(link)[0]).resolve() for link in pages[site / "index.html"].links}
    there = [page.relative_to(ROOT / "docs").with_suffix(".html") for page in (ROOT / "docs").rglob("*.md")]
    assert [str(page) for page in there if site / page not in reached] == []


def test_build_files_are_not_part_of_the_site(site):
    assert list(site.rglob("*.py")) == []


def test_page_outside_the_navigation_fails_the_build(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# First\n\n[to nowhere](#there)\n")
    (tmp_path / "docs" / "lost.md").write_text("# Lost\n")
    settings = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[0]
    (tmp_path / "mkdocs.yml").write_text(f"{settings}\nnav:\n  - index.md\n")
    done = build(tmp_path / "site", config=tmp_path / "mkdocs.yml")
    assert done.returncode == 1
    assert "lost.md" in done.stderr
    assert "'#there'" in done.stderr
