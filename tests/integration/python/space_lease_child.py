# SPDX-License-Identifier: Apache-2.0
"""Another process of space_lease_test.py, with one session, lease and space: a line of JSON in, a line of JSON out.

    space_lease_child.py SOCKET
"""

import json
import sys

import python_base
from python_base import MIB, terrace

import numpy

SIZE = 4096


class Holder:
    def __init__(self):
        self.session = terrace.Session(sys.argv[1])
        self.pins = []

    def grant(self, label, options):
        self.lease = self.session.grant(8 * MIB, mode="shared_coherent", label=label)
        terrace.TensorSpace.format(self.lease, **{"parts": 4, "records_per_part": 64, **options})
        return self.lease.bytes

    def take(self, label):
        self.lease = self.session.attach(label)
        return self.lease.bytes

    def attach(self, options):
        self.space = terrace.TensorSpace(self.lease, **options)
        return [self.space.part, self.space.seat]

    def publish(self, name, value):
        tensor = self.space[name] if name in self.space else self.space.create(name, (SIZE,), "u8")
        return tensor.publish(numpy.full(SIZE, value, numpy.uint8), wait=0.05)

    def read(self, name):
        copy, _ = self.space[name].read(wait=30)
        return int(copy[0]) if (copy == copy[0]).all() else "torn"

    def pin(self, name):
        self.pins.append(self.space[name].pin(wait=30))
        return int(self.pins[-1].numpy()[SIZE - 1])


def main():
    holder = Holder()
    for line in sys.stdin:
        verb, *words = json.loads(line)
        try:
            answer = getattr(holder, verb)(*words)
        except terrace.Error as error:
            answer = {"error": error.code, "text": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
