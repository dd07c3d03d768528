# SPDX-License-Identifier: Apache-2.0
"""`layers`: checks every #include of the tree against the allow-list in scripts/layers.txt.

The list has three sections; `#` begins a comment, and a line that begins with spaces continues the one above.

  [modules]      folder : folders it may include
                 A file belongs to the longest listed folder that contains it, and may always include its own.
  [libraries]    header or prefix ending in '/' : modules that may include it
                 Third-party and kernel-facing headers. `*` means every module that is not pure.
  [pure]         module : headers and modules that it must not include in spite of the lines above

A header of the standard library (the list below) is free for all but where [pure] takes it away. Any other
include that no line allows is an error, so that a new dependency is a decision written down in the list.
"""

import pathlib
import re

STANDARD = frozenset("""
algorithm any array atomic barrier bit bitset cassert cctype cerrno cfenv cfloat charconv chrono cinttypes climits
clocale cmath compare complex concepts condition_variable coroutine csetjmp csignal cstdarg cstddef cstdint cstdio
cstdlib cstring ctime cwchar deque exception filesystem forward_list fstream functional future initializer_list
iomanip ios iosfwd iostream istream iterator latch limits list locale map memory memory_resource mutex new numbers
numeric optional ostream queue random ratio regex semaphore set shared_mutex span sstream stack stdexcept stop_token
streambuf string string_view system_error thread tuple type_traits typeindex typeinfo unordered_map unordered_set
utility valarray variant vector version
assert.h ctype.h errno.h inttypes.h limits.h math.h stdalign.h stdarg.h stdbool.h stddef.h stdint.h stdio.h
stdlib.h string.h
""".split())

SOURCES = (".h", ".cc", ".cpp", ".hpp", ".c")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


class RulesError(Exception):
    """The list itself is wrong."""


def _matches(header: str, pattern: str) -> bool:
    return header == pattern or (pattern.endswith("/") and header.startswith(pattern))


class Rules:
    def __init__(self, text: str, name: str = "layers.txt"):
        self.modules = {}    # folder -> folders
        self.libraries = {}  # header or prefix -> modules
        self.pure = {}       # module -> patterns
        sections = {"[modules]": self.modules, "[libraries]": self.libraries, "[pure]": self.pure}
        section, current = None, None
        for number, line in enumerate(text.splitlines(), 1):
            line = line.partition("#")[0].rstrip()
            if not line:
                continue
            if line in sections:
                section, current = sections[line], None
            elif line[0].isspace() and current is not None:
                section[current] += line.split()
            elif section is not None and ":" in line:
                key, _, values = line.partition(":")
                current = key.strip()
                if current in section:
                    raise RulesError(f"{name}:{number}: '{current}' is listed twice")
                section[current] = values.split()
            else:
                raise RulesError(f"{name}:{number}: neither a section nor 'name : ...'")
        for module, edges in self.modules.items():
            for edge in edges:
                if edge != "*" and edge not in self.modules:
                    raise RulesError(f"{name}: {module} may include '{edge}', which is no listed module")
        for library, modules in self.libraries.items():
            for module in modules:
                if module != "*" and module not in self.modules:
                    raise RulesError(f"{name}: {library} is allowed for '{module}', which is no listed module")

    def module_of(self, path: str) -> str:
        """The longest listed folder that contains `path`; empty when none does."""
        folder = path.rpartition("/")[0]
        while folder and folder not in self.modules:
            folder = folder.rpartition("/")[0]
        return folder

    def library_modules(self, header: str):
        """Who may include a third-party header; the longest pattern decides. None: the header is unknown."""
        patterns = [pattern for pattern in self.libraries if _matches(header, pattern)]
        return self.libraries[max(patterns, key=len)] if patterns else None

    def forbids(self, module: str, header: str):
        """The pattern by which [pure] takes `header` away from `module`, or None."""
        for pattern in self.pure.get(module, []):
            if _matches(header, pattern) or header.startswith(pattern + "/"):
                return pattern
        return None


def _check_project_edge(rules: Rules, module: str, header: str) -> str:
    target = rules.module_of(header)
    if not target:
        return f"'{header}' is in no module of scripts/layers.txt"
    allowed = rules.modules[module]
    if target != module and target not in allowed and "*" not in allowed:
        return f"[modules] {module} may include {', '.join(allowed) or 'nothing else'}, not {target}"
    return ""


def _check_library(rules: Rules, module: str, header: str) -> str:
    modules = rules.library_modules(header)
    if modules is None:
        return "" if header in STANDARD else f"[libraries] has no line for <{header}>: add it, and who may use it"
    if module in modules or ("*" in modules and module not in rules.pure):
        return ""
    return f"[libraries] {header} is for {', '.join(modules)}, not for {module}"


def check_include(rules: Rules, root: pathlib.Path, path: str, header: str, quoted: bool) -> str:
    """What is wrong with `path` including `header`, naming the rule; empty when nothing is."""
    module = rules.module_of(path)
    if not module:
        return "this file is in no module of scripts/layers.txt"
    if header.startswith("terrace/"):  # public client headers, as users include them
        header = "libclient/include/" + header
    forbidden = rules.forbids(module, header)
    if forbidden is not None:
        return f"[pure] {module} must not include {forbidden}"
    generated = (header.removesuffix(".h"), header + ".in")  # from x.capnp, from x.h.in
    if any((root / name).is_file() for name in (header, *generated)):
        return _check_project_edge(rules, module, header)
    if not quoted:
        return _check_library(rules, module, header)
    if ((root / path).parent / header).is_file():
        return f'write includes from the repository root, not "{header}"'
    if rules.module_of(header):
        return "no such file"
    return _check_library(rules, module, header)


def check_tree(rules: Rules, root: pathlib.Path, paths: list) -> list:
    """Every breach as 'file:line: includes X: rule'."""
    problems = []
    for path in sorted(paths):
        if not path.endswith(SOURCES):
            continue
        text = (root / path).read_text(encoding="utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), 1):
            found = INCLUDE.match(line)
            if not found:
                continue
            problem = check_include(rules, root, path, found.group(2), found.group(1) == '"')
            if problem:
                problems.append(f"{path}:{number}: includes {found.group(2)}: {problem}")
    return problems
