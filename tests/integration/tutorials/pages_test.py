#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What can be said of the pages without running anything: links lead to files and headings that exist, and the error texts
of docs/troubleshooting.md are those of the programs. Needs no build."""

import pathlib
import re
import sys
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
TROUBLES = REPOSITORY / "docs" / "troubleshooting.md"
FOLDERS = ("core", "daemon", "cli", "libclient", "allocator", "tiering", "bindings")
LITERALS = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
SHORTEST = 6  # shorter pieces of a text are in any program


def pages():
    found = sorted((REPOSITORY / "docs").rglob("*.md")) + [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md"]
    return found + sorted((REPOSITORY / "examples").rglob("*.md"))


def prose(page):
    """The lines of a page with their numbers, without those of its code blocks, and without code in them."""
    within = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            within = not within
        elif not within:
            yield number, line


def anchors(page):
    """The names that headings have on a site: those of GitHub and of MkDocs agree on these."""
    names = set()
    for _number, line in prose(page):
        if heading := re.match(r"#+ (.*)", line):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.group(1)).replace("`", "").strip().lower()
            names.add(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
    return names


def broken_links(page, known):
    for number, line in prose(page):
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", line)):
            if re.match(r"\w+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            if not file.exists():
                yield f"{page.relative_to(REPOSITORY)}:{number}: there is no {target}"
            elif anchor and file.suffix == ".md" and anchor not in known(file):
                yield f"{page.relative_to(REPOSITORY)}:{number}: {file.name} has no heading #{anchor}"


def strings_of(text):
    """The string literals of a C++ source; those that stand one behind the other are one."""
    return [found.group(1).replace('\\"', '"')
            for found in LITERALS.finditer(re.sub(r'"\s*(?://[^\n]*\n\s*)*"', "", text))]


def quoted_texts(page):
    """(line, text) of what stands in backquotes at the head of a row of a table of three columns headed `text`."""
    texts, within = [], False
    for number, line in enumerate(page.splitlines(), 1):
        within = line.startswith("| text |") or (within and line.startswith("|"))
        if within:
            texts += [(number, text) for text in re.findall(r"`([^`]*)`", line.split(" | ")[0])]
    return texts


def unsaid(texts, sources):
    """The pieces of `texts` that no source has."""
    return [f"docs/troubleshooting.md:{number}: no program says '{piece.strip()}'" for number, text in texts
            for piece in text.split("...") if len(piece.strip()) >= SHORTEST and piece.strip() not in sources]


class Pages(unittest.TestCase):
    def test_links_lead_somewhere(self):
        cache = {}

        def known(file):
            if file not in cache:
                cache[file] = anchors(file)
            return cache[file]

        broken = [text for page in pages() for text in broken_links(page, known)]
        self.assertEqual(broken, [], "\n" + "\n".join(broken))

    def test_error_texts_are_those_of_the_programs(self):
        sources = "\0".join(text for folder in FOLDERS for file in sorted((REPOSITORY / folder).rglob("*"))
                            if file.suffix in (".cc", ".h") for text in strings_of(file.read_text(encoding="utf-8")))
        texts = quoted_texts(TROUBLES.read_text(encoding="utf-8"))
        self.assertGreater(len(texts), 40, "has the page's form changed?")
        self.assertNotEqual(unsaid([(1, "no program ever says this")], sources), [])
        missing = unsaid([(number, text) for number, text in texts if text != "SIGBUS"], sources)
        self.assertEqual(missing, [], "\n" + "\n".join(missing))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
