// SPDX-License-Identifier: Apache-2.0
// How memory is reached: from the host over bridges and switches to memdevs, what regions are made of them, and the
// devices that pools have.
import { actButton } from "../act";
import * as acts from "../acts";
import * as format from "../format";
import { table, tableState } from "../table";
import type { Device, Figures, Inventory, Memdev, Region } from "../types";
import { h, type Child, type VNode } from "../vdom";
import { badge, bar, card, empty, loading, type View } from "../view";
import { stateColour } from "../colours";

const deviceState = tableState(0);

export interface Branch { name: string; inner: Branch[]; memdevs: Memdev[] }

// The paths of all memdevs as one tree; the last element of a path is the memdev's own place.
export function tree(memdevs: Memdev[]): Branch {
  const root: Branch = { name: "", inner: [], memdevs: [] };
  for (const memdev of memdevs) {
    let at = root;
    for (const name of memdev.path) {
      let next = at.inner.find((branch) => branch.name === name);
      if (!next) at.inner.push(next = { name, inner: [], memdevs: [] });
      at = next;
    }
    at.memdevs.push(memdev);
  }
  return root;
}

function figures(of: Figures): string {
  const parts = [of.latency_ns !== null && `${of.latency_ns} ns`, of.bandwidth_bytes_per_s !== null && `${format.bytes(of.bandwidth_bytes_per_s)}/s`,
    of.numa_node !== null && of.numa_node >= 0 && `node ${of.numa_node}`, of.numa_distance !== null && `distance ${of.numa_distance}`,
    of.source !== null && `(${of.source})`];
  return parts.filter(Boolean).join(" · ");
}

function healthy(health: string): boolean { return health === "ok"; }

function memdevBox(memdev: Memdev, inventory: Inventory, devices: Device[]): VNode {
  const regions = inventory.regions.filter((region) => region.memdevs.includes(memdev.serial));
  const device = devices.find((one) => one.adopted && (one.serial === memdev.serial || regions.some((region) => region.serial === one.serial)));
  return h("div", { class: `node memdev${memdev.enabled ? "" : " off"}`, key: memdev.serial },
    h("div", { class: "line" }, h("b", null, memdev.name), badge(memdev.health, healthy(memdev.health) ? "good" : "warning")),
    h("div", null, memdev.serial),
    h("div", { class: "small" }, [memdev.ram_bytes > 0 && `${format.bytes(memdev.ram_bytes)} volatile`, memdev.pmem_bytes > 0 && `${format.bytes(memdev.pmem_bytes)} persistent`,
      memdev.numa_node !== null && memdev.numa_node >= 0 && `node ${memdev.numa_node}`, memdev.firmware && `firmware ${memdev.firmware}`, !memdev.enabled && "not enabled"].filter(Boolean).join(" · ")),
    regions.length > 0 && h("div", { class: "small" }, `in ${regions.map((region) => region.name).join(", ")}`),
    device && h("div", { class: "small" }, device.pool ? h("a", { href: `#/map/${encodeURIComponent(device.pool)}` }, `pool ${device.pool}`) : "adopted"));
}

function branch(of: Branch, inventory: Inventory, devices: Device[]): VNode {
  const kind = of.name.startsWith("ACPI") ? "root" : of.name.startsWith("port") ? "bridge or switch" : of.memdevs.length > 0 ? "endpoint" : "port";
  return h("li", { key: of.name }, h("div", { class: "node" }, h("div", { class: "small" }, kind), h("b", null, of.name)),
    (of.inner.length > 0 || of.memdevs.length > 0) && h("ul", null, of.memdevs.map((memdev) => h("li", { key: memdev.serial }, memdevBox(memdev, inventory, devices))),
      of.inner.map((inner) => branch(inner, inventory, devices))));
}

function region(one: Region, inventory: Inventory): VNode {
  const names = one.memdevs.map((serial) => inventory.memdevs.find((memdev) => memdev.serial === serial)?.name ?? serial);
  return h("div", { class: "node", key: one.name }, h("div", { class: "line" }, h("b", null, one.name), badge(one.kind, "plain")),
    h("div", null, format.bytes(one.bytes)),
    h("div", { class: "small" }, `${one.interleave_ways} ${one.interleave_ways === 1 ? "way" : `ways of ${format.bytes(one.interleave_granularity)}`}: ${names.join(", ")}`),
    h("div", { class: "small" }, [figures(one.figures), !one.committed && "not committed"].filter(Boolean).join(" · ")));
}

function hardware(inventory: Inventory, devices: Device[]): Child[] {
  const root = tree(inventory.memdevs);
  return [
    h("section", { class: "card full", key: "tree" }, h("header", null, h("h2", null, "CXL hierarchy"), h("div", { class: "aside" }, `${inventory.memdevs.length} memdevs`)),
      inventory.memdevs.length > 0 ? h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "CXL hierarchy" },
        h("ul", { class: "tree" }, h("li", null, h("div", { class: "node" }, h("div", { class: "small" }, "host"), h("b", null, "this machine")),
          h("ul", null, root.inner.map((inner) => branch(inner, inventory, devices)), root.memdevs.map((memdev) => h("li", { key: memdev.serial }, memdevBox(memdev, inventory, devices)))))))
        : empty("The kernel of this machine shows no CXL memory device. Pools can be of emulated devices, dax devices or memory nodes.")),
    inventory.regions.length > 0 && card("Regions", String(inventory.regions.length), h("div", { class: "nodes" }, inventory.regions.map((one) => region(one, inventory)))),
    inventory.dax_devices.length > 0 && card("Dax devices", String(inventory.dax_devices.length), h("div", { class: "nodes" }, inventory.dax_devices.map((one) =>
      h("div", { class: "node", key: one.name }, h("div", { class: "line" }, h("b", null, one.name), badge(one.mode, "plain")), h("div", null, format.bytes(one.bytes)),
        h("div", { class: "small" }, [one.region, one.numa_node !== null && one.numa_node >= 0 && `node ${one.numa_node}`, one.holder].filter(Boolean).join(" · ")))))),
    inventory.nodes.length > 0 && card("Memory nodes", String(inventory.nodes.length), h("div", { class: "nodes" }, inventory.nodes.map((one) =>
      h("div", { class: "node", key: String(one.node) }, h("div", { class: "line" }, h("b", null, `node ${one.node}`), badge(one.cpus ? "CPUs and memory" : "memory only", "plain")),
        h("div", null, `${format.bytes(one.free_bytes)} free of ${format.bytes(one.bytes)}`), h("div", { class: "small" }, figures({ ...one.figures, numa_node: null })))))),
    inventory.notes.length > 0 && card("Not readable", null, h("ul", { class: "plainlist" }, inventory.notes.map((note) => h("li", null, note)))),
  ];
}

function stateBadge(device: Device): VNode {
  if (!device.adopted) return badge("not adopted", "plain");
  if (!device.present) return badge("absent", "critical");
  return badge(device.state ?? "", device.state === "in_service" ? "good" : "warning");
}

export function topology(view: View): Child {
  const devices = view.store.get("devices")?.devices, inventory = view.store.get("inventory")?.inventory;
  if (!devices) return loading();
  return h("div", { class: "columns" },
    h("section", { class: "card full", key: "devices" }, h("header", null, h("h2", null, "Devices"), h("div", { class: "aside" }, `${devices.filter((one) => one.adopted).length} adopted of ${devices.length} seen`)),
      table("Devices", devices, [
        { name: "Device", show: (one) => h("b", null, one.serial), sort: (one) => one.serial },
        { name: "Kind", show: (one) => one.backend, sort: (one) => one.backend },
        { name: "State", show: stateBadge, sort: (one) => `${one.adopted}${one.present}${one.state}` },
        { name: "Pool", show: (one) => one.pool ? h("a", { href: `#/map/${encodeURIComponent(one.pool)}` }, one.pool) : "–", sort: (one) => one.pool },
        { name: "Capacity", show: (one) => format.bytes(one.capacity_bytes), sort: (one) => one.capacity_bytes, number: true },
        { name: "Used", show: (one) => h("span", { class: "quota" }, bar([{ name: "used", bytes: one.used_bytes, colour: stateColour("leased", view.theme) }], one.capacity_bytes, "used"),
          format.percent(one.used_bytes, one.capacity_bytes)), sort: (one) => one.used_bytes / one.capacity_bytes },
        { name: "Leases", show: (one) => format.count(one.leases), sort: (one) => one.leases, number: true },
        { name: "Longest free run", show: (one) => format.bytes(one.largest_free_bytes), sort: (one) => one.largest_free_bytes, number: true },
        { name: "Speed and place", show: (one) => figures(one.figures) || "–" },
        { name: "Acts", show: (one) => one.adopted && (one.state === "in_service" ? actButton(view, "Drain…", "drain", () => acts.drain(one)) : actButton(view, "Put back…", "undrain", () => acts.undrain(one))) },
        { name: "Remark", show: (one) => one.detail, wide: true },
      ], deviceState, (one) => one.serial, view.redraw, "No device is seen.")),
    inventory ? hardware(inventory, devices) : loading());
}
