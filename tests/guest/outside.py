# SPDX-License-Identifier: Apache-2.0
"""Looks at the media files of a run from the machine that ran it: what a guest wrote is where the hardware should
have put it. A guest test says what it wrote in out/placement.json:

    {"media": ["mem-c0.raw", "mem-c1.raw"], "ways": 2, "granularity": 256, "offset": N, "length": N, "seed": N}

where `offset` counts from the beginning of the region and the media are in the order of interleaving.
"""

import json

from pattern import pattern


def device_offset(region_offset, ways, granularity):
    """(position in the interleaving, offset on that device) of a byte of a region."""
    chunk, within = divmod(region_offset, granularity)
    return chunk % ways, chunk // ways * granularity + within


def gather(media, placement):
    """The bytes of the placement, collected from the media files chunk by chunk."""
    step = placement["granularity"]
    files = [open(media / name, "rb") for name in placement["media"]]
    try:
        found = []
        for at in range(placement["offset"], placement["offset"] + placement["length"], step):
            position, offset = device_offset(at, placement["ways"], step)
            files[position].seek(offset)
            found.append(files[position].read(step))
        return b"".join(found)
    finally:
        for file in files:
            file.close()


def placement(media, out):
    """What was written lies in the media files, interleaved as the region says."""
    told = json.loads((out / "placement.json").read_text("utf-8"))
    wanted, found = pattern(told["seed"], told["length"]), gather(media, told)
    if found != wanted:
        at = next(index for index, pair in enumerate(zip(found, wanted)) if pair[0] != pair[1])
        raise AssertionError(f"byte {at} of {len(wanted)} is {found[at]:#x} in the media files, not {wanted[at]:#x}")
    for name in told["media"]:
        if (media / name).read_bytes().count(wanted[:told["granularity"]]) > 1:
            raise AssertionError(f"{name} holds the first {told['granularity']} bytes twice")
    return f"{told['length'] >> 10} KiB found in {', '.join(told['media'])}, every {told['granularity']} bytes x{told['ways']}"
