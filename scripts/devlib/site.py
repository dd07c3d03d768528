# SPDX-License-Identifier: Apache-2.0
"""`docs`: a site of the Markdown pages, with an index and a search, by Debian's mkdocs-material. 2 s of a processor.

The pages are copied as they lie in the repository, so that links between them, to README.md and to examples hold; the
start page is README.md. docs/index.md is the navigation: its headings are groups, its links pages.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess

from devlib.commands import ROOT
from devlib.lint import tree_files
from devlib.output import Failure, Skipped, note, say

STAGE, SITE, CONFIG = ROOT / "build" / "site-pages", ROOT / "build" / "site", ROOT / "build" / "site.yml"
LINK = re.compile(r"\]\(([^)\s#]+)")


def navigation() -> list:
    """[(group, [(title, path from the root)])], as docs/index.md says; pages that it does not list come at the end of the
    group that has most of their folder."""
    groups = []
    for line in (ROOT / "docs/index.md").read_text(encoding="utf-8").splitlines():
        if heading := re.match(r"## (.+)", line):
            groups.append((heading.group(1), []))
        elif groups and (link := re.match(r"- \[(.+?)\]\(([^)#]+\.md)\)", line)):
            path = (ROOT / "docs" / link.group(2)).resolve().relative_to(ROOT)
            groups[-1][1].append((link.group(1).replace("`", ""), path.as_posix()))
    listed = {path for _, pages in groups for _, path in pages} | {"docs/index.md"}
    for name in sorted(set(filter(lambda name: name.startswith("docs/") and name.endswith(".md"), tree_files())) - listed):
        folder = name.rpartition("/")[0]
        heading, pages = max(groups, key=lambda group: sum(path.rpartition("/")[0] == folder for _, path in group[1]))
        note(f"{name} is not in docs/index.md; it stands at the end of '{heading}'")
        title = re.match(r"# (.+)", (ROOT / name).read_text(encoding="utf-8"))
        pages.append((title.group(1).replace("`", "") if title else name, name))
    return groups


def _pages() -> list:
    """The pages, and the sources that they lead to."""
    tree = set(tree_files())
    found = {name for name in tree if name.startswith("docs/") or name in ("README.md", "CONTRIBUTING.md")}
    for name in sorted(found):
        if name.endswith(".md"):
            for link in LINK.findall((ROOT / name).read_text(encoding="utf-8")):
                target = os.path.relpath(ROOT / os.path.dirname(name) / link, ROOT)
                found |= {file for file in tree if file == target or file.startswith(f"{target}/")}
    return sorted(found)


def build_site() -> None:
    """Raises Skipped without mkdocs-material, Failure when a link leads nowhere."""
    if shutil.which("mkdocs") is None or not pathlib.Path("/usr/share/mkdocs/themes/material").is_dir():
        raise Skipped("no mkdocs-material; apt-get install --no-install-recommends mkdocs-material")
    say("docs: the site")
    shutil.rmtree(STAGE, ignore_errors=True)
    pages = _pages()
    for name in pages:
        (STAGE / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, STAGE / name)
    tree = [{"Terrace": "README.md"}, {"All pages": "docs/index.md"}]
    tree += [{heading: [{title: path} for title, path in entries]} for heading, entries in navigation()]
    CONFIG.write_text("# Made by scripts/dev docs.\n" + json.dumps({  # JSON is YAML
        "INHERIT": "../mkdocs.yml", "docs_dir": str(STAGE), "site_dir": str(SITE), "nav": tree}, indent=1),
        encoding="utf-8")
    done = subprocess.run(["mkdocs", "build", "--clean", "-f", CONFIG], capture_output=True, text=True,
                          env=dict(os.environ, PYTHONWARNINGS="ignore", NO_COLOR="1"), check=False)
    if done.returncode != 0:
        colours = re.compile("\x1b\\[[0-9;]*m")
        faults = [line for line in colours.sub("", done.stdout + done.stderr).splitlines() if not line.startswith("INFO")]
        raise Failure("the site has faults:\n" + "\n".join(faults))
    words = json.loads((SITE / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    site = SITE.relative_to(ROOT)
    note(f"{len(pages)} files, {len(words)} places to find by search: {site}/index.html")
    note(f"the search needs a server: python3 -m http.server --bind 127.0.0.1 -d {site}")
