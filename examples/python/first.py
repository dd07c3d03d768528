# SPDX-License-Identifier: Apache-2.0
"""A tensor in leased memory, seen by numpy, sent down and brought up again. See docs/tutorials/python.md."""

import terrace

MIB = 1 << 20


def show(when, tensor):
    at = tensor.residency
    print(f"{when}: {at.ddr_bytes // MIB} MiB in DDR, {at.cxl_bytes // MIB} MiB in CXL")


session = terrace.Session()  # $TERRACE_SOCKET says where the manager is
lease = session.grant(128 * MIB, label="weights")  # renewed until it is dropped
pool = terrace.TensorPool(session, [lease], ddr_bytes=32 * MIB)  # the rest lies in the lease

weight = pool.create((1024, 4096), "float32", name="w0", hint="weights")
weight.numpy()[:] = 1.5  # the tensor's own memory: nothing is copied
view = weight[:16].numpy()  # the first sixteen rows, of the same memory

weight.move_to("cxl").wait(timeout=30)  # loads and stores may go on meanwhile
show("sent down", weight)
weight.move_to("ddr").wait(timeout=30)
show("brought up", weight)

view[:] = 0  # its address is what it was
print("the sum is", weight.numpy().sum())
