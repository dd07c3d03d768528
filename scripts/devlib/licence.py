# SPDX-License-Identifier: Apache-2.0
"""The line that names the licence, at the top of each source. `scripts/dev check` looks for it, `scripts/dev format` writes it."""

import pathlib

LINE = "SPDX-License-Identifier: Apache-2.0"

_SLASHES = (".h", ".cc", ".cc.in", ".c", ".cpp", ".hpp", ".ts")
_HASHES = (".py", ".pyi", ".capnp", ".cmake", ".toml", ".sh", "CMakeLists.txt", ".service.in", ".mount", ".sysusers", ".tmpfiles",
           "debian/rules", "scripts/dev", ".ci/run")

def comment_mark(name: str) -> str:
    """How a comment begins in the file; "" for what is no source."""
    if name.endswith(_SLASHES):
        return "//"
    return "#" if name.endswith(_HASHES) else ""


def lacks_line(name: str, text: str) -> bool:
    """The line is the first, or follows the one that names the interpreter."""
    return not any(LINE in line for line in text.splitlines()[:2])


def with_line(name: str, text: str) -> str:
    line = f"{comment_mark(name)} {LINE}\n"
    if text.startswith("#!"):
        interpreter, _, rest = text.partition("\n")
        return f"{interpreter}\n{line}{rest}"
    return line + text


def without_line(root: pathlib.Path, names: list) -> list:
    return [name for name in names if comment_mark(name) and lacks_line(name, (root / name).read_text(encoding="utf-8"))]


def add_lines(root: pathlib.Path, names: list) -> list:
    """Writes the line where it lacks; which files those were."""
    lacking = without_line(root, names)
    for name in lacking:
        path = root / name
        path.write_text(with_line(name, path.read_text(encoding="utf-8")), encoding="utf-8")
    return lacking
