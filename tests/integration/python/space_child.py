# SPDX-License-Identifier: Apache-2.0
"""The other process of space_test.py: takes part in the space of a lease, or of a file, and does as it is told.

    space_child.py SOCKET LABEL | FILE
"""

import mmap
import os
import sys

import python_base
from python_base import terrace

import numpy


def attach():
    if len(sys.argv) == 3:
        session = terrace.Session(sys.argv[1])
        return terrace.TensorSpace(session.attach(sys.argv[2]))
    descriptor = os.open(sys.argv[1], os.O_RDWR)
    return terrace.TensorSpace(mmap.mmap(descriptor, 0), fd=descriptor)


def main():
    space = attach()
    print("part", space.part, flush=True)
    for line in sys.stdin:
        verb, name, *rest = line.split()
        if verb == "publish":
            tensor = space.create(name, (1024, 1024), "i32") if name not in space else space[name]
            tensor.publish(numpy.full((1024, 1024), int(rest[0]), numpy.int32), wait=30)
            print("version", tensor.version, flush=True)
        elif verb == "remove":
            try:
                space[name].remove(wait=float(rest[0]))
                print("removed", flush=True)
            except terrace.Error as error:
                print(error.code, flush=True)
        elif verb == "begin":  # and never end
            kept = space[name].write(wait=30)
            kept.numpy()[:512] = -1
            print("begun", flush=True)
        elif verb == "sum":
            tensor = space[name]
            tensor.wait_for_version(int(rest[0]), 60)
            with tensor.pin() as array:
                print("sum", int(array.sum()), flush=True)
            del array


if __name__ == "__main__":
    main()
