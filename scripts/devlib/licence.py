# SPDX-License-Identifier: Apache-2.0
"""The line that names the licence, at the top of each source. `scripts/dev check` looks for it, `scripts/dev format` writes it."""

import pathlib

LINE = "SPDX-License-Identifier: Apache-2.0"

_SLASHES = (".h", ".cc", ".cc.in", ".c", ".cpp", ".hpp", ".ts", ".go")
_HASHES = (".py", ".yml", ".pyi", ".capnp", ".cmake", ".toml", ".sh", "CMakeLists.txt", ".service.in", ".mount", ".sysusers", ".tmpfiles",
           "debian/rules", "scripts/dev", ".ci/run")

# Comments that have an end, too.
_ENCLOSED = {".css": "/* {} */", ".html": "<!-- {} -->"}


def _comment(name: str) -> str:
    """A comment in the file with {} for its text; "" for what is no source."""
    if name.endswith(_SLASHES):
        return "// {}"
    if name.endswith(_HASHES):
        return "# {}"
    return next((mark for ending, mark in _ENCLOSED.items() if name.endswith(ending)), "")


def lacks_line(name: str, text: str) -> bool:
    """The line is the first, or follows the one that names the interpreter or the kind of document."""
    return not any(LINE in line for line in text.splitlines()[:2])


def with_line(name: str, text: str) -> str:
    line = _comment(name).format(LINE) + "\n"
    if text.startswith(("#!", "<!doctype")):
        first, _, rest = text.partition("\n")
        return f"{first}\n{line}{rest}"
    return line + text


def without_line(root: pathlib.Path, names: list) -> list:
    return [name for name in names if _comment(name) and lacks_line(name, (root / name).read_text(encoding="utf-8"))]


def add_lines(root: pathlib.Path, names: list) -> list:
    """Writes the line where it lacks; which files those were."""
    lacking = without_line(root, names)
    for name in lacking:
        path = root / name
        path.write_text(with_line(name, path.read_text(encoding="utf-8")), encoding="utf-8")
    return lacking
