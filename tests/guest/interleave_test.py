# SPDX-License-Identifier: Apache-2.0
"""A lease on a region over two memdevs: its bytes are spread over both, as the region's interleaving says. What it
writes is then looked for in the media files, outside (outside.py)."""

import json

import guestlib
import real_pool
import terrace_harness as harness
from guestlib import listed

LENGTH = 256 << 10
SEED = 11


def regions_in(listing):
    """The regions with their mappings, however deep in what they are below they are listed."""
    if isinstance(listing, list):
        return [region for entry in listing for region in regions_in(entry)]
    if not isinstance(listing, dict):
        return []
    return [listing] if "mappings" in listing else [region for value in listing.values() for region in regions_in(value)]


class TwoWays(real_pool.Pmem):
    serials = (0xC0, 0xC1)


class Interleave(real_pool.RealTest):
    kind = TwoWays

    def tearDown(self):
        """The bytes stay for the look from outside."""

    def test_bytes_lie_on_both_devices(self):
        self.compose()
        regions = regions_in(listed("cxl", "list", "-R", "-T"))
        self.assertEqual(len(regions), 1, regions)
        region = regions[0]
        self.assertEqual(region["interleave_ways"], 2)
        position_of = {mapping["position"]: mapping["memdev"] for mapping in region["mappings"]}
        serial_of = {memdev["memdev"]: memdev["serial"] for memdev in listed("cxl", "list", "-M")}
        order = [serial_of[position_of[position]] for position in sorted(position_of)]
        tenant = self.tenant()
        self.granted(tenant, "spread")
        tenant.expect("ok", "fill", 0, LENGTH, SEED)
        tenant.expect("same", "check", 0, LENGTH, SEED)
        device = next(iter(self.assert_objects(1).values()))
        offset = guestlib.physical_start(device) - int(region["resource"])
        self.assertEqual(offset % region["interleave_granularity"], 0)
        (guestlib.OUT / "placement.json").write_text(json.dumps({
            "media": [f"mem-{serial:x}.raw" for serial in order], "ways": 2,
            "granularity": region["interleave_granularity"], "offset": offset, "length": LENGTH, "seed": SEED}), "utf-8")


if __name__ == "__main__":
    harness.main()
