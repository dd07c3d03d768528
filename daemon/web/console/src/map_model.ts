// SPDX-License-Identifier: Apache-2.0
// The pool map without a screen: devices as rows of granules, what lies where, what is free, and what a point of the
// picture is.
import type { Device, Extent, Lease } from "./types";

export interface Piece { first: number; end: number; lease: Lease } // granules of one device
export interface Strip {
  device: Device;
  granules: number;
  pieces: Piece[];       // by their place
  largest: { first: number; end: number } | null; // the longest free run
  rows: number;
  perRow: number;        // granules
  top: number;           // pixels
  height: number;
}

export const rowHeight = 16, rowGap = 2, headHeight = 24, stripGap = 14, rowsMax = 14;
const cellWidthWanted = 7; // pixels of a granule, where there is room

export function freeRuns(pieces: Piece[], granules: number): { first: number; end: number }[] {
  const runs: { first: number; end: number }[] = [];
  let at = 0;
  for (const piece of pieces) {
    if (piece.first > at) runs.push({ first: at, end: piece.first });
    at = Math.max(at, piece.end);
  }
  if (at < granules) runs.push({ first: at, end: granules });
  return runs;
}

function pieceOf(extent: Extent, lease: Lease, granuleBytes: number): Piece {
  const first = Math.floor(extent.offset_bytes / granuleBytes);
  return { first, end: first + Math.ceil(extent.length_bytes / granuleBytes), lease };
}

export function rowsFor(granules: number, width: number): number {
  return Math.max(1, Math.min(rowsMax, Math.ceil((granules * cellWidthWanted) / Math.max(1, width))));
}

// The strips of a pool's devices, one below the other.
export function strips(devices: Device[], leases: Lease[], pool: string, width: number): Strip[] {
  const pieces = new Map<string, Piece[]>();
  const members = devices.filter((device) => device.pool === pool && device.granule_bytes > 0);
  const granuleBytes = new Map(members.map((device) => [device.serial, device.granule_bytes]));
  for (const lease of leases) {
    if (lease.pool !== pool) continue;
    for (const extent of lease.extents) {
      const size = granuleBytes.get(extent.device);
      if (size === undefined) continue;
      let list = pieces.get(extent.device);
      if (!list) pieces.set(extent.device, list = []);
      list.push(pieceOf(extent, lease, size));
    }
  }
  // A row is as many bytes on each device, so that what is twice as wide is twice as large.
  const most = members.reduce((best, one) => (one.capacity_bytes > best.capacity_bytes ? one : best), members[0]!);
  const rowBytes = most ? most.capacity_bytes / rowsFor(most.capacity_bytes / most.granule_bytes, width) : 0;
  let top = 0;
  return members.map((device) => {
    const own = (pieces.get(device.serial) ?? []).sort((left, right) => left.first - right.first);
    const granules = Math.floor(device.capacity_bytes / device.granule_bytes);
    const perRow = Math.max(1, Math.ceil(rowBytes / device.granule_bytes)), rows = Math.max(1, Math.ceil(granules / perRow));
    const runs = device.present && device.state === "in_service" ? freeRuns(own, granules) : [];
    const largest = runs.reduce<{ first: number; end: number } | null>(
      (best, run) => (best && best.end - best.first >= run.end - run.first ? best : run), null);
    const height = headHeight + rows * (rowHeight + rowGap);
    const strip = { device, granules, pieces: own, largest, rows, perRow, top, height };
    top += height + stripGap;
    return strip;
  });
}

export function heightOf(all: Strip[]): number {
  const last = all[all.length - 1];
  return last ? last.top + last.height : 0;
}

export interface Box { x: number; y: number; width: number; height: number }

// Where the granules [first, end) are drawn: a box a row. What is less than a pixel is shown as one.
export function boxes(strip: Strip, first: number, end: number, width: number): Box[] {
  const found: Box[] = [];
  const scale = width / strip.perRow;
  for (let row = Math.floor(first / strip.perRow); row <= Math.floor((end - 1) / strip.perRow); ++row) {
    const from = Math.max(first - row * strip.perRow, 0), to = Math.min(end - row * strip.perRow, strip.perRow);
    const left = Math.floor(from * scale), right = Math.max(left + 1, Math.floor(to * scale));
    found.push({ x: left, y: strip.top + headHeight + row * (rowHeight + rowGap), width: right - left, height: rowHeight });
  }
  return found;
}

export interface Spot { strip: Strip; granule: number; piece: Piece | null }

// The first piece that has one of the granules [granule, end).
export function pieceAt(strip: Strip, granule: number, end = granule + 1): Piece | null {
  let low = 0, high = strip.pieces.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (strip.pieces[middle]!.end <= granule) low = middle + 1;
    else high = middle;
  }
  const found = strip.pieces[low];
  return found && found.first < end ? found : null;
}

export function spotAt(all: Strip[], x: number, y: number, width: number): Spot | null {
  for (const strip of all) {
    const inside = y - strip.top - headHeight;
    if (inside < 0 || y >= strip.top + strip.height || x < 0 || x >= width) continue;
    const row = Math.floor(inside / (rowHeight + rowGap));
    const granule = row * strip.perRow + Math.floor((x / width) * strip.perRow);
    if (granule >= strip.granules) return null;
    // A lease of less than a pixel is found by the pixel that it is drawn as.
    const next = row * strip.perRow + Math.floor(((Math.floor(x) + 1) / width) * strip.perRow);
    return { strip, granule, piece: pieceAt(strip, granule) ?? pieceAt(strip, granule, next) };
  }
  return null;
}

export interface Place { strip: Strip; first: number; end: number } // granules

// Where extents of a preview are in the picture; those of devices that it has not are left out.
export function placesOf(all: Strip[], extents: Extent[]): Place[] {
  const found: Place[] = [];
  for (const extent of extents) {
    const strip = all.find((one) => one.device.serial === extent.device);
    if (!strip) continue;
    const first = Math.floor(extent.offset_bytes / strip.device.granule_bytes);
    const end = Math.min(strip.granules, Math.ceil((extent.offset_bytes + extent.length_bytes) / strip.device.granule_bytes));
    if (first < end) found.push({ strip, first, end });
  }
  return found;
}

export interface DrainPreview { leases: Lease[]; bytes: number; movable: number; stuck: Lease[]; room: number }

// What a drain of `serial` would have to move: whole leases, as the manager moves them. Room: what is grantable elsewhere.
export function drainPreview(all: Strip[], serial: string): DrainPreview {
  const leases = new Map<number, Lease>();
  let room = 0;
  for (const strip of all) {
    if (strip.device.serial === serial) for (const piece of strip.pieces) leases.set(piece.lease.id, piece.lease);
    else if (strip.device.present && strip.device.state === "in_service") room += strip.device.free_bytes;
  }
  const list = [...leases.values()];
  const stuck = list.filter((lease) => !lease.movable);
  return { leases: list, bytes: list.reduce((sum, lease) => sum + lease.bytes, 0), movable: list.length - stuck.length, stuck, room };
}
