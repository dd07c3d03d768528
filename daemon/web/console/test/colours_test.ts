// SPDX-License-Identifier: Apache-2.0
import { slotColour, tenantColoursMax, tenantSlots, timeLeftColour } from "../src/colours";
import { same, test } from "./check";

test("as many tenants as there are colours have one each, in whatever order they come", () => {
  const names = Array.from({ length: tenantColoursMax }, (_, at) => `tenant-${at}`);
  const slots = tenantSlots(names);
  same(new Set(slots.values()).size, tenantColoursMax);
  same([...tenantSlots([...names].reverse())].sort(), [...slots].sort());
});
test("with more tenants than colours some share, and none is without", () => {
  const slots = tenantSlots(Array.from({ length: 500 }, (_, at) => `tenant-${at}`));
  same(slots.size, 500);
  same([...slots.values()].every((slot) => slot >= 0 && slot < tenantColoursMax), true);
});
test("the schemes have colours of their own", () => { same(slotColour(3, { dark: true }) === slotColour(3, { dark: false }), false); });
test("time left: the end of a step is of the next one", () => {
  const light = { dark: false };
  same(timeLeftColour(false, 60e9, light) === timeLeftColour(false, 59e9, light), false);
  same(timeLeftColour(true, 0, light) === timeLeftColour(false, 0, light), false);
});
