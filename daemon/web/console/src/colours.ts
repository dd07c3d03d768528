// SPDX-License-Identifier: Apache-2.0
// Which colour a tenant or a state has: the same one on every page and, as far as the number of tenants lets it, each day.

const light = ["#3a6fd8", "#dd7a32", "#21968a", "#b24597", "#83922a", "#cf4657", "#6a59b4", "#2b97c4", "#a36e2b", "#4a8a47",
  "#bd73ae", "#56688c"];
const dark = ["#6f9df5", "#f29a60", "#4ac4b5", "#db79c1", "#b3c352", "#f07585", "#9d8fe4", "#5ebfe4", "#d2a05d", "#7dbd79",
  "#e3a8d7", "#93a5ca"];
export const tenantColoursMax = light.length;

export interface Theme { dark: boolean }

const states: Record<string, [string, string]> = {
  free: ["#e6eaf0", "#2b333f"],
  active: ["#3a6fd8", "#6f9df5"],
  leased: ["#3a6fd8", "#6f9df5"],
  waiting: ["#8c99ab", "#7d8a9c"],
  pending: ["#8c99ab", "#7d8a9c"],
  revoking: ["#d99a1c", "#e8b54a"],
  fencing: ["#c8662c", "#e58a4f"],
  scrubbing: ["#21968a", "#4ac4b5"],
  transferring: ["#6a59b4", "#9d8fe4"],
  quarantined: ["#c43149", "#f07585"],
  absent: ["#a9b2bf", "#566070"],
};

export function stateColour(state: string, theme: Theme): string {
  return (states[state] ?? states.waiting!)[theme.dark ? 1 : 0]!;
}

function hash(text: string): number {
  let value = 0x811c9dc5;
  for (let at = 0; at < text.length; ++at) value = Math.imul(value ^ text.charCodeAt(at), 0x01000193) >>> 0;
  return value;
}

// Each takes the place that its name says, or the next free one; with more tenants than colours some share.
export function tenantSlots(tenants: string[]): Map<string, number> {
  const slots = new Map<string, number>();
  const taken = new Set<number>();
  for (const tenant of [...new Set(tenants)].sort()) {
    let slot = hash(tenant) % light.length;
    for (let tries = 0; taken.has(slot) && tries < light.length; ++tries) slot = (slot + 1) % light.length;
    if (taken.size >= light.length) slot = hash(tenant) % light.length;
    taken.add(slot);
    slots.set(tenant, slot);
  }
  return slots;
}

export function slotColour(slot: number, theme: Theme): string {
  return (theme.dark ? dark : light)[slot % light.length]!;
}

// From little time left to much: five steps, and one for leases without an end.
export const timeLeftSteps: { below: number; text: string; colour: [string, string] }[] = [
  { below: 60e9, text: "under a minute", colour: ["#b3263e", "#f4778a"] },
  { below: 600e9, text: "under 10 minutes", colour: ["#d9772b", "#f2a062"] },
  { below: 3600e9, text: "under an hour", colour: ["#c5a21f", "#e2c552"] },
  { below: 86400e9, text: "under a day", colour: ["#4a9a6b", "#79c597"] },
  { below: Infinity, text: "a day or more", colour: ["#2f7fae", "#62b2de"] },
];
export const endlessColour: [string, string] = ["#6b7688", "#8f9bb0"];

export function timeLeftColour(persistent: boolean, expiresInNs: number, theme: Theme): string {
  const pair = persistent ? endlessColour : timeLeftSteps.find((step) => expiresInNs < step.below)!.colour;
  return pair[theme.dark ? 1 : 0];
}
