# SPDX-License-Identifier: Apache-2.0
"""Commands as a page has them, for tests that run a page's lines one by one in the place that they prepared."""

import pathlib

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"


def commands(page, heading):
    """The lines of the first ```sh block below a heading, without their comments."""
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    at = next(number for number, line in enumerate(lines) if line.lstrip("# ") == heading and line.startswith("#"))
    begin = lines.index("```sh", at)
    block = lines[begin + 1:lines.index("```", begin)]
    return [line.split("  #")[0].strip() for line in block if line.strip()]


def count(lines):
    """How many commands a person types: those behind each other in a line are several."""
    return sum(1 + line.count("&&") for line in lines)
