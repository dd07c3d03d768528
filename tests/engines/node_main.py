# SPDX-License-Identifier: Apache-2.0
"""The inside of a node (node_process.py): reads a JSON list a line, answers each with JSON in a line. Run by the engine's Python.

To import an engine takes seconds, so a server imports it once and forks for each node, before it has opened anything.
"""

import json
import os
import select
import signal
import socket
import sys


def main(kinds: dict) -> None:
    """`node.py KIND ARGUMENTS...`, or `node.py --serve SOCKET`. kinds: what makes the object whose methods are the verbs."""
    if sys.argv[1] == "--serve":
        _serve(kinds, sys.argv[2])
    else:
        _run(kinds, sys.argv[1:], sys.stdin, sys.stdout)


def _run(kinds, arguments, source, out) -> None:
    def answer(what):
        print(json.dumps(what), file=out, flush=True)

    try:
        node = kinds[arguments[0]](*arguments[1:])
    except Exception as error:  # for the test to read
        answer({"error": f"{type(error).__name__}: {error}"})
        return
    node.tell = answer
    answer("ready")
    for line in source:
        verb, *words = json.loads(line)
        answer(getattr(node, verb)(*words))


def _serve(kinds, path: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen(16)
        print("listening", flush=True)
        while True:
            readable, _, _ = select.select([listener, sys.stdin], [], [])
            if sys.stdin in readable:  # its other end is closed
                return
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _node(kinds, connection)
            connection.close()


def _node(kinds, connection) -> None:
    """All that a forked node does."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        stream = connection.makefile("r")
        request = json.loads(stream.readline())
        os.environ.update(request["environment"])
        errors = os.open(request["errors"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(errors, 1)  # what an engine prints is no answer
        os.dup2(errors, 2)
        with connection.makefile("w") as out:
            print(os.getpid(), file=out, flush=True)
            _run(kinds, request["arguments"], stream, out)
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)
