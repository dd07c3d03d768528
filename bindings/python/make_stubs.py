#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes terrace/_terrace.pyi anew from the built module: its classes, members, arguments, defaults and docstrings.

    PYTHONPATH=build/dev/bindings/python python3 bindings/python/make_stubs.py [--check]

Types are kept from the file as it is, since C++ knows most of them as "object" only; what is new gets what C++ knows, for
a person to narrow. --check writes nothing, and fails where the file is not what would be written.
"""

import ast
import difflib
import inspect
import pathlib
import re
import sys
import textwrap

STUBS = pathlib.Path(__file__).resolve().parent / "terrace" / "_terrace.pyi"
WIDTH = 118
OPERATORS = ("__init__", "__enter__", "__exit__", "__len__", "__iter__", "__contains__", "__getitem__", "__setitem__", "__bool__",
             "__int__", "__float__", "__index__", "__array__", "__dlpack__", "__dlpack_device__", "__reduce__")
KNOWN = {"object": "Any", "handle": "Any", "list": "List[Any]", "dict": "Dict[str, Any]", "tuple": "Tuple[Any, ...]",
         "iterator": "Iterator[Any]", "capsule": "Any"}


class Types:
    """The annotations of the file as it is: of (class, member, argument); argument "return" is the result."""

    def __init__(self, text):
        self.found = {}
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef):
                for member in node.body:
                    if isinstance(member, ast.FunctionDef):
                        self._note(node.name, member)
            elif isinstance(node, ast.FunctionDef):
                self._note("", node)

    def _note(self, owner, function):
        arguments = function.args
        for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
            if one is not None and one.annotation is not None:
                self.found[owner, function.name, one.arg] = ast.unparse(one.annotation)
        if function.returns is not None:
            self.found[owner, function.name, "return"] = ast.unparse(function.returns)

    def of(self, owner, member, argument, otherwise):
        return self.found.get((owner, member, argument)) or otherwise


def from_cpp(annotation):
    """What C++ says of a type, as Python's typing says it."""
    if annotation is None:
        return "Any"
    text = ast.unparse(annotation).replace("terrace._terrace.", "")
    return re.sub(r"\b(object|handle|list|dict|tuple|iterator|capsule)\b", lambda found: KNOWN[found[0]], text)


def signature(line):
    """The first line that pybind11 puts before a docstring, as a function of Python's."""
    return ast.parse(f"def {line}: ...").body[0]


def body_of(doc, indent):
    if not doc:
        return f"{indent}...\n"
    lines = textwrap.wrap(doc, WIDTH - len(indent) - 3, break_on_hyphens=False)
    return f'{indent}"""' + f"\n{indent}".join(lines) + ('"""\n' if len(lines) == 1 else f'\n{indent}"""\n')


def function_text(types, owner, name, doc, indent, static=False):
    first, _, rest = doc.partition("\n")
    parsed = signature(first)
    arguments = []

    def add(one, default=None, star=""):
        if one.arg == "self" and owner and not static:
            arguments.append("self")
            return
        text = f"{star}{one.arg}: {types.of(owner, name, one.arg, from_cpp(one.annotation))}"
        arguments.append(text if default is None else f"{text} = {ast.unparse(default)}")

    plain = parsed.args.posonlyargs + parsed.args.args
    if owner and not static and plain and plain[0].arg == "arg0":  # unnamed in C++
        plain[0].arg = "self"
    missing = len(plain) - len(parsed.args.defaults)
    for at, one in enumerate(plain):
        add(one, parsed.args.defaults[at - missing] if at >= missing else None)
    if parsed.args.vararg:
        add(parsed.args.vararg, star="*")
    elif parsed.args.kwonlyargs:
        arguments.append("*")
    for one, default in zip(parsed.args.kwonlyargs, parsed.args.kw_defaults):
        add(one, default)
    if parsed.args.kwarg:
        add(parsed.args.kwarg, star="**")
    result = "None" if name == "__init__" else types.of(owner, name, "return", from_cpp(parsed.returns))
    head = f"{indent}def {name}({', '.join(arguments)}) -> {result}:"
    if len(head) > WIDTH:
        inner = textwrap.fill(", ".join(arguments), WIDTH, initial_indent=indent + "    ", subsequent_indent=indent + "    ",
                              break_long_words=False, break_on_hyphens=False)
        head = f"{indent}def {name}(\n{inner}\n{indent}) -> {result}:"
    return f"{indent}@staticmethod\n{head}\n" * static + f"{head}\n" * (not static) + body_of(" ".join(rest.split()), indent + "    ")


def class_text(types, name, kind):
    text = f"class {name}:\n" + body_of(" ".join((kind.__doc__ or "").split()), "    ")
    for member, value in vars(kind).items():
        if member.startswith("_") and member not in OPERATORS:
            continue
        if isinstance(value, property):
            result = types.of(name, member, "return", from_cpp(signature(f"x{value.fget.__doc__.strip().splitlines()[0].lstrip('x')}").returns)
                              if value.fget.__doc__ else "Any")
            text += f"\n    @property\n    def {member}(self) -> {result}:\n" + body_of(" ".join((value.__doc__ or "").split()), "        ")
            continue
        doc = getattr(kind, member).__doc__ or ""
        if doc.startswith(f"{member}("):
            text += "\n" + function_text(types, name, member, doc, "    ", isinstance(value, staticmethod))
    return text


def stubs(module, before):
    types = Types(before)
    preamble = before[:re.search(r"^(class|def) ", before, re.M).start()].rstrip() + "\n"
    order = re.findall(r"^class (\w+)", before, re.M)
    classes = {name: kind for name, kind in vars(module).items() if inspect.isclass(kind)}
    names = sorted(classes, key=lambda name: (order.index(name) if name in order else len(order), name))
    parts = [class_text(types, name, classes[name]) for name in names]
    parts += [function_text(types, "", name, value.__doc__, "") for name, value in vars(module).items()
              if inspect.isbuiltin(value) and not name.startswith("_")]
    return preamble + "\n" + "\n".join(parts)


def main(arguments):
    sys.path = [place for place in sys.path if pathlib.Path(place or ".").resolve() != STUBS.parents[1]]  # the package's sources
    from terrace import _terrace
    before = STUBS.read_text()
    after = stubs(_terrace, before)
    if "--check" not in arguments:
        STUBS.write_text(after)
        return 0
    for line in difflib.unified_diff(before.splitlines(), after.splitlines(), "terrace/_terrace.pyi", "as it would be written", lineterm="", n=1):
        print(line)
    return int(before != after)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
