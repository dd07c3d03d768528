# SPDX-License-Identifier: Apache-2.0
"""`check`, `format` and `layers`: what a machine can say about the sources without running them."""

import re
import subprocess

from devlib import layers as layer_rules
from devlib import licence
from devlib.commands import ROOT, need
from devlib.output import Failure, Heartbeat, note, say

CXX = (".h", ".cc", ".cpp", ".hpp")


def tree_files() -> list:
    """Files of the tree, tracked or new, but not ignored; relative to the root."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode == 0:
        names = [name for name in found.stdout.split("\0") if name]
    else:  # an unpacked archive
        names = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file()]
        names = [name for name in names if not name.startswith(("build/", ".git/", ".cache/"))]
    return [name for name in names if (ROOT / name).is_file() and not (ROOT / name).is_symlink()]


def _cxx_files() -> list:
    return [name for name in tree_files() if name.endswith(CXX)]


def _clang_format(arguments: list) -> subprocess.CompletedProcess:
    # One version decides: others format a few constructs differently.
    program = need("clang-format-14")
    with Heartbeat("clang-format"):
        return subprocess.run([program, *arguments, *_cxx_files()], cwd=ROOT, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, check=False)


def format_tree() -> None:
    """Rewrites every C++ file as .clang-format says, and names the licence where that lacks."""
    for name in licence.add_lines(ROOT, tree_files()):
        note(f"{name}: {licence.LINE}")
    say(f"format: {len(_cxx_files())} files")
    result = _clang_format(["-i"])
    if result.returncode != 0:
        raise Failure(f"clang-format failed:\n{result.stderr}")


def layers() -> None:
    try:
        rules = layer_rules.Rules((ROOT / "scripts/layers.txt").read_text(encoding="utf-8"), "scripts/layers.txt")
    except layer_rules.RulesError as error:
        raise Failure(str(error)) from None
    problems = layer_rules.check_tree(rules, ROOT, tree_files())
    _report("layers", problems, "edges that scripts/layers.txt does not allow")


def check() -> None:
    """Runs every check, also after one failed, and fails if any did."""
    failed = []
    for verb in (check_format, layers, check_rooms, check_paths, check_unfinished, check_comments, check_orders,
                 check_python, check_licence, check_failpoints, check_mutants):
        try:
            verb()
        except Failure as error:
            note(str(error))
            failed.append(verb.__name__.removeprefix("check_"))
    if failed:
        raise Failure(f"check: {', '.join(failed)} failed")


def _report(name: str, problems: list, what: str) -> None:
    if not problems:
        say(f"{name}: nothing wrong")
        return
    for problem in problems:
        print(problem)
    raise Failure(f"{name}: {len(problems)} {what}")


def check_format() -> None:
    result = _clang_format(["--dry-run", "-Werror"])
    if result.returncode != 0:
        places = re.findall(r"^(\S+?):(\d+):\d+: error:", result.stderr, re.MULTILINE)
        lines = {}
        for name, line in places:
            lines.setdefault(name, set()).add(int(line))
        for name, numbers in lines.items():
            print(f"{name}:{min(numbers)}: first of {len(numbers)} lines that .clang-format would write differently")
        if not places:
            print(result.stderr, end="")
        raise Failure(f"format: {len(lines)} files; run `scripts/dev format`")
    say(f"format: nothing wrong in {len(_cxx_files())} files")


def _grep(pattern: re.Pattern, names: list) -> list:
    found = []
    for name in names:
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a binary sample
        for number, line in enumerate(text.splitlines(), 1):
            if pattern.search(line):
                found.append(f"{name}:{number}: {line.strip()[:120]}")
    return found


SOURCES_MAX = 25          # files of a folder, without those of its folders
SOURCES_UNEXPLAINED = 8   # above, a README says what flows through
README_LINES_MAX = 40


def crowded_folders(names: list, readme_lines) -> list:
    """What is wrong with the folders of `names`; readme_lines: folder to the lines of its README, None without."""
    counts = {}
    for name in names:
        if name.endswith((".h", ".cc", ".go")):
            folder = name.rpartition("/")[0]
            counts[folder] = counts.get(folder, 0) + 1
    problems = []
    for folder, count in sorted(counts.items()):
        if count > SOURCES_MAX and folder != "libclient/include/terrace":  # programs name installed headers: they don't move
            problems.append(f"{folder}: {count} source files, at most {SOURCES_MAX}")
        if folder.startswith("tests/unit/") or folder == "libclient/include/terrace":
            continue  # one test a source; installed headers, which docs/library.md explains
        lines = readme_lines(folder)
        if count > SOURCES_UNEXPLAINED and lines is None:
            problems.append(f"{folder}: {count} source files and no README.md")
        if lines is not None and lines > README_LINES_MAX:
            problems.append(f"{folder}/README.md: {lines} lines, at most {README_LINES_MAX}")
    return problems


def check_rooms() -> None:
    def readme_lines(folder: str):
        path = ROOT / folder / "README.md"
        return len(path.read_text(encoding="utf-8").splitlines()) if path.is_file() else None

    _report("rooms", crowded_folders(tree_files(), readme_lines), "folders that a newcomer gets lost in")


def check_paths() -> None:
    """A path of one machine in the tree works for one person only: home folders, and this checkout's own place."""
    places = [re.escape(str(ROOT)) + r"\b"] if len(ROOT.parts) > 2 else []
    pattern = re.compile("|".join(places + [r"(?<![\w.])/(home|root|Users)/\w"]))
    _report("paths", _grep(pattern, tree_files()), "absolute paths of one machine")


def check_unfinished() -> None:
    marks = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + r")\b")
    names = [name for name in tree_files() if name.endswith((*CXX, ".c", ".go", ".py", ".capnp", ".cmake", ".txt", ".md"))]
    _report("unfinished", _grep(marks, names), "marks of unfinished work")


_COMMENT = re.compile(r"^(\s*)//( *)(.*)$")
_HEADING = r"(?:Place|Threads|Errors|Memory|Ownership|Invariants?|Returns)"


def torn_comments(lines: list) -> list:
    """The numbers of lines where a comment was torn by a reflow: a few words alone between a full line and one that
    hangs deeper, or a heading that was joined to the sentence before it."""
    found = []
    parts = [_COMMENT.match(line) for line in lines]
    for at, part in enumerate(parts):
        if part is None:
            continue
        words = part[3]
        if re.search(rf"[.\w] {_HEADING} {{2,}}\S", words) and "|" not in words:
            found.append(at + 1)
        before, after = parts[at - 1] if at > 0 else None, parts[at + 1] if at + 1 < len(parts) else None
        if before is None or after is None or not words or not before[3] or not after[3]:
            continue
        starts = re.match(_HEADING, words) or (words[0].isupper() and before[3].endswith((".", ":")))
        if (len(lines[at - 1]) >= 92 and len(words) <= 24 and len(words.split()) <= 3 and not starts
                and len(before[2]) <= len(part[2]) < len(after[2])):
            found.append(at + 1)
    return found


def check_comments() -> None:
    problems = [f"{name}:{line}: torn" for name in _cxx_files()
                for line in torn_comments((ROOT / name).read_text(encoding="utf-8").splitlines())]
    _report("comments", problems, "comments torn by a reflow")


_ORDER = re.compile(r"\b(?:(?:std::)?memory_order(?:_|::)(?:acquire|release|acq_rel|seq_cst|consume)"
                    r"|__ATOMIC_(?:ACQUIRE|RELEASE|ACQ_REL|SEQ_CST|CONSUME))\b")
_PARTNER = re.compile(r"(?://|/\*).*\b(?:pairs?|partner)\b")


def lonely_orders(lines: list) -> list:
    """The numbers of lines with a memory order above relaxed, and no comment on the line or in the two lines above
    that says what it pairs with (or that it has no partner)."""
    found = []
    for at, line in enumerate(lines):
        if _ORDER.search(line.partition("//")[0]) and not any(_PARTNER.search(near) for near in lines[max(0, at - 2):at + 1]):
            found.append(at + 1)
    return found


def check_orders() -> None:
    problems = [f"{name}:{line}: pairs with?" for name in _cxx_files() if not name.startswith("tests/")
                for line in lonely_orders((ROOT / name).read_text(encoding="utf-8").splitlines())]
    _report("orders", problems, "memory orders without the operation that they pair with")


def check_python() -> None:
    problems = []
    for name in tree_files():
        path = ROOT / name
        if name.endswith(".py"):
            try:
                compile(path.read_text(encoding="utf-8"), name, "exec")
            except SyntaxError as error:
                problems.append(f"{name}:{error.lineno}: {error.msg}")
    _report("python", problems, "files that Python cannot read")


def check_licence() -> None:
    problems = [f"{name}:1: no line with {licence.LINE}" for name in licence.without_line(ROOT, tree_files())]
    _report("licence", problems, "sources that do not name their licence; run `scripts/dev format`")


def declared_failpoints() -> list:
    """(name, process) of each failpoint in core/base/failpoint.h, in order."""
    text = (ROOT / "core/base/failpoint.h").read_text(encoding="utf-8")
    return re.findall(r"^\s*X\((\w+), (\w+),", text, re.MULTILINE)


def check_failpoints() -> None:
    """A declared point that no code passes protects nothing; tests/crash shows that each is also reached."""
    used = set()
    for name in _cxx_files():
        if not name.startswith(("tests/", "core/base/failpoint.")):
            used.update(re.findall(r"TERRACE_FAILPOINT\((\w+)\)", (ROOT / name).read_text(encoding="utf-8")))
    declared = [name for name, _ in declared_failpoints()]
    problems = [f"core/base/failpoint.h: {name} is declared and used nowhere" for name in declared
                if name not in used]
    _report("failpoints", problems, "failpoints without a place in the code")


def check_mutants() -> None:
    """A mutant whose piece of the code is gone would test nothing."""
    from devlib.mutate import places  # which needs this module's sisters, that need this one

    _report("mutants", places(), "mutants that do not fit the code (scripts/devlib/mutants.py, scripts/devlib/mutation)")
