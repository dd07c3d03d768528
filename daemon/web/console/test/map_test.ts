// SPDX-License-Identifier: Apache-2.0
import { boxes, drainPreview, freeRuns, pieceAt, placesOf, rowsFor, rowsMax, spotAt, strips, headHeight } from "../src/map_model";
import type { Device, Lease } from "../src/types";
import { same, test } from "./check";

const granule = 2 * 2 ** 20;
const device = (serial: string, granules: number, more: Partial<Device> = {}): Device => ({ serial, backend: "emulated",
  capacity_bytes: granules * granule, granule_bytes: granule, adopted: true, pool: "p", present: true, detail: "", free_bytes: 0,
  state: "in_service", largest_free_bytes: 0, leases: 0, used_bytes: 0, contents: null, isolation: "verified",
  figures: { latency_ns: null, bandwidth_bytes_per_s: null, numa_node: null, numa_distance: null, persistent: false, source: null, isolation: null },
  ...more });
const lease = (id: number, places: [string, number, number][], more: Partial<Lease> = {}): Lease => ({ id, pool: "p", tenant: "t", host: "h",
  label: "", bytes: places.reduce((sum, place) => sum + place[2] * granule, 0), epoch: 1, mode: "exclusive", phase: "active", ttl_ns: 0,
  expires_in_ns: null, extents: places.map(([serial, first, count]) => ({ device: serial, offset_bytes: first * granule, length_bytes: count * granule })),
  object: "", reason: "", usage: null, granule_bytes: granule, cause: null, movable: true, holders: 0, agent: null, persistent: true,
  offered_to: null, coherence: "unknown", ...more });

test("pieces are in their order, and the longest free run is found", () => {
  const [a, b] = strips([device("a", 32), device("b", 16)], [lease(2, [["a", 20, 2]]), lease(1, [["a", 0, 4], ["b", 0, 16]])], "p", 1000);
  same(a!.pieces.map((piece) => [piece.first, piece.end, piece.lease.id]), [[0, 4, 1], [20, 22, 2]]);
  same(a!.largest, { first: 4, end: 20 });
  same(b!.largest, null);
});
test("what is absent or being emptied has no free run, and other pools are not shown", () => {
  const all = strips([device("a", 8, { present: false }), device("b", 8, { state: "draining" }), device("c", 8, { pool: "q" })], [], "p", 1000);
  same(all.map((strip) => [strip.device.serial, strip.largest]), [["a", null], ["b", null]]);
});
test("free runs are what is between, before and behind", () => {
  const one = lease(1, []);
  same(freeRuns([{ first: 2, end: 4, lease: one }, { first: 4, end: 6, lease: one }], 10), [{ first: 0, end: 2 }, { first: 6, end: 10 }]);
  same(freeRuns([], 3), [{ first: 0, end: 3 }]);
  same(freeRuns([{ first: 0, end: 3, lease: one }], 3), []);
});
test("few granules are one row, very many a bounded number of rows", () => {
  same([rowsFor(32, 1000), rowsFor(1_000_000, 1000)], [1, rowsMax]);
});
test("a row is as many bytes on each device", () => {
  const [a, b] = strips([device("a", 64), device("b", 32)], [], "p", 640);
  same([boxes(a!, 0, 64, 640)[0]!.width, boxes(b!, 0, 32, 640)[0]!.width], [640, 320]);
  same(spotAt([a!, b!], 330, b!.top + headHeight, 640), null);
});
test("a lease over the end of a row is a box in each", () => {
  const [strip] = strips([device("a", 1000)], [], "p", 1000);
  const rows = strip!.perRow;
  const found = boxes(strip!, rows - 1, rows + 1, 1000);
  same(found.length, 2);
  same([found[0]!.x + found[0]!.width, found[1]!.x], [1000, 0]);
});
test("what is less than a pixel is still drawn, and found by its pixel", () => {
  const granules = 2 ** 21;
  const [strip] = strips([device("a", granules)], [lease(7, [["a", 100_001, 1]])], "p", 1000);
  const [box] = boxes(strip!, 100_001, 100_002, 1000);
  same(box!.width, 1);
  same(spotAt([strip!], box!.x, box!.y + 1, 1000)?.piece?.lease.id, 7);
});
test("a point is the granule below it; beside the rows is nothing", () => {
  const all = strips([device("a", 10), device("b", 10)], [lease(1, [["b", 5, 5]])], "p", 100);
  const b = all[1]!;
  same(spotAt(all, 50, b.top + headHeight, 100)?.piece?.lease.id, 1);
  same(spotAt(all, 49, b.top + headHeight, 100)?.piece, null);
  same(spotAt(all, 10, b.top + 2, 100), null);
  same(spotAt(all, 100, b.top + headHeight, 100), null);
  same(pieceAt(b, 4), null);
  same(pieceAt(b, 9)?.lease.id, 1);
});
test("a drain moves whole leases once each, names those that stay, and counts the room elsewhere", () => {
  const all = strips([device("a", 10), device("b", 10, { free_bytes: 3 * granule }), device("c", 10, { free_bytes: 9 * granule, present: false })],
    [lease(1, [["a", 0, 1], ["a", 5, 1], ["b", 0, 1]]), lease(2, [["a", 2, 1]], { movable: false }), lease(3, [["b", 5, 1]])], "p", 1000);
  const found = drainPreview(all, "a");
  same([found.leases.map((one) => one.id), found.bytes, found.movable, found.stuck.map((one) => one.id), found.room],
    [[1, 2], 4 * granule, 1, [2], 3 * granule]);
});
test("extents of a preview are granules of their strips, and what is not shown is left out", () => {
  const all = strips([device("a", 10), device("b", 4)], [], "p", 1000);
  const found = placesOf(all, [{ device: "a", offset_bytes: 2 * granule, length_bytes: 3 * granule }, { device: "c", offset_bytes: 0, length_bytes: granule },
    { device: "b", offset_bytes: 3 * granule, length_bytes: 2 * granule }, { device: "b", offset_bytes: 9 * granule, length_bytes: granule }]);
  same(found.map((place) => [place.strip.device.serial, place.first, place.end]), [["a", 2, 5], ["b", 3, 4]]);
});
