# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of a tutorial as a reader would type them, and compares what they print with what the page shows.

A page is Markdown. Its blocks of ```console are one session of bash: a line "$ COMMAND" is run, lines "> MORE" below it
belong to it, all others up to the next "$ " are the output that the page promises. In it

    ...    alone on a line stands for any lines, also for none
    ...    within a line stands for any text, also for none, with the blanks beside it

and runs of blanks count as one blank, since columns are as wide as what is in them. A command that fails has to be one
that the page says so of: the next command begins with `echo $?`.

The session has a directory of its own, which is its HOME, and an environment of its own. What the page started has to be
gone at its end, as have its mounts: a tutorial ends with its clean-up.
"""

import ctypes
import os
import pathlib
import re
import selectors
import shutil
import signal
import subprocess
import tempfile
import time

COMMAND_SECONDS = 120
PR_SET_CHILD_SUBREAPER = 36


class PageError(AssertionError):
    """The page and the programs do not agree; the text begins with page:line."""


class Step:
    """One command of a page, and the output that the page shows."""

    def __init__(self, line, command):
        self.line, self.command, self.wanted = line, command, []


def read_steps(page):
    """The steps of the file `page`. PageError where it has none, or one that cannot be meant."""
    steps, within, begin = [], None, 0
    for number, text in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if text.startswith("```"):
            within, begin = (text[3:].strip() if within is None else None), number
        elif within != "console":
            continue
        elif text.startswith("$ "):
            steps.append(Step(number, text[2:]))
        elif not steps or steps[-1].line < begin:
            raise PageError(f"{page}:{number}: output without a command: a block begins with '$ COMMAND'")
        elif text.startswith("> ") and not steps[-1].wanted:
            steps[-1].command += "\n" + text[2:]
        else:
            steps[-1].wanted.append(text)
    if within is not None:
        raise PageError(f"{page}:{begin}: the block has no end")
    if not steps:
        raise PageError(f"{page}: no command; one stands in a block of ```console, behind '$ '")
    return steps


def matches(wanted, got):
    """Whether the lines `got` are what the lines `wanted` promise."""
    blanks = re.compile(r"\s+")
    pattern = []
    for line in wanted:
        line = blanks.sub(" ", line.strip())
        pattern.append(r"(?:[^\n]*\n)*?" if line == "..." else
                       "[^\n]*?".join(re.escape(part) for part in re.split(r" ?\.\.\. ?", line)) + r"\n")
    text = "".join(blanks.sub(" ", line.strip()) + "\n" for line in got)
    return re.fullmatch("".join(pattern), text) is not None


class Session:
    """A bash that runs one command after the other; what it started ends with it."""

    def __init__(self, directory, environment):
        self.directory = directory
        # Daemons that a page starts become children of ours when their parents end, so that they can be found.
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.bash = subprocess.Popen(["bash", "--noprofile", "--norc"], cwd=directory, env=environment,
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.bash.stdout, selectors.EVENT_READ)
        self.mark = f"terrace-tutorial-{os.getpid()}"
        self.count = 0

    def run(self, command):
        """The output of `command` and its exit status. PageError when it does not end."""
        self.count += 1
        file = self.directory / f".step-{self.count}"
        file.write_text(command + "\n", encoding="utf-8")
        # Not through the pipe itself: a command that reads would take the rest of the page. `$?` is kept for `echo $?`.
        self._say(f"(exit ${{status:-0}}); . {file} < /dev/null; status=$?; printf '%s %s %s\\n' {self.mark} {self.count} $status\n")
        end, text = re.compile(rf"{self.mark} {self.count} (\d+)\n"), ""
        deadline = time.monotonic() + COMMAND_SECONDS
        while (found := end.search(text)) is None:
            if not self.selector.select(max(0.0, deadline - time.monotonic())):
                raise PageError(f"still runs after {COMMAND_SECONDS} s; so far it printed:\n{text}")
            data = os.read(self.bash.stdout.fileno(), 65536)
            if not data:
                raise PageError(f"the session ended; it printed:\n{text}")
            text += data.decode("utf-8", "replace")
        file.unlink()
        return text[:found.start()], int(found.group(1))

    def _say(self, text):
        self.bash.stdin.write(text.encode())
        self.bash.stdin.flush()

    def left_behind(self):
        """What the page started and did not end, after bash itself has ended: [(pid, command)]."""
        self.bash.stdin.close()
        self.bash.wait()
        for _ in range(50):  # a process that was asked to end may take a moment for it
            left = descendants(os.getpid())
            if not left:
                break
            time.sleep(0.1)
        return left

    def close(self):
        """Ends everything."""
        self.bash.kill()
        self.bash.stdin.close()
        self.bash.stdout.close()
        self.bash.wait()
        self.selector.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            for _ in range(30):
                left = descendants(os.getpid())
                if not left:
                    break
                for pid, _command in left:
                    send(pid, number)
                time.sleep(0.1)
        for mount in mounts_below(self.directory):
            subprocess.run(["umount", "-l", mount], check=False)
        shutil.rmtree(self.directory, ignore_errors=True)


def send(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def descendants(root):
    """Processes below `root` that live, ended ones are waited for: [(pid, command)]."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
    parents = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
        except OSError:
            continue
        if words[0] not in "ZX":
            parents[int(folder.name)] = (int(words[1]), command)
    found, todo = [], [root]
    while todo:
        parent = todo.pop()
        children = [pid for pid, (its, _) in parents.items() if its == parent]
        found += [(pid, parents[pid][1]) for pid in children]
        todo += children
    return found


def mounts_below(directory):
    """Mount points below `directory`, the innermost first."""
    points = [line.split()[1] for line in pathlib.Path("/proc/mounts").read_text().splitlines()]
    return sorted((point for point in points if point.startswith(f"{directory}/")), reverse=True)


def indent(lines):
    return "".join(f"    {line}\n" for line in lines) or "    (nothing)\n"


def run_page(page, environment, verbose=False):
    """Runs the page in a new directory; PageError at the first step that does not do what the page says."""
    steps = read_steps(page)
    directory = pathlib.Path(tempfile.mkdtemp(prefix="tutorial-"))
    session = Session(directory, dict(environment, HOME=str(directory)))
    try:
        for number, step in enumerate(steps):
            begin = time.monotonic()
            try:
                text, status = session.run(step.command)
            except PageError as error:
                raise PageError(f"{page}:{step.line}: $ {step.command}\n{error}") from None
            if verbose:
                print(f"{page.name}:{step.line} ({time.monotonic() - begin:.2f} s) $ {step.command}\n{text}", end="", flush=True)
            got = text.splitlines()
            shown = number + 1 < len(steps) and steps[number + 1].command.startswith("echo $?")
            if status != 0 and not shown:
                raise PageError(f"{page}:{step.line}: exit status {status}, and the page has no `echo $?` behind it\n"
                                f"$ {step.command}\n{indent(got)}")
            if not matches(step.wanted, got):
                raise PageError(f"{page}:{step.line}: $ {step.command}\n  wanted:\n{indent(step.wanted)}  got:\n"
                                f"{indent(got)}")
        left = session.left_behind() + [(0, mount) for mount in mounts_below(directory)]
        if left:
            raise PageError(f"{page}: the page ends, and leaves behind: {left}")
    finally:
        session.close()
    return len(steps)
