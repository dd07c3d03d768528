// SPDX-License-Identifier: Apache-2.0
// Figures as people read them. Sizes are powers of 1024, as on the command line.

const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(value: number): string {
  let unit = 0;
  let shown = value;
  while (shown >= 1024 && unit < units.length - 1) {
    shown /= 1024;
    ++unit;
  }
  const digits = unit === 0 || Number.isInteger(shown) || shown >= 100 ? 0 : shown >= 10 ? 1 : 2;
  return `${shown.toFixed(digits)} ${units[unit]}`;
}

// As the command line reads sizes: 64M, 1.5 GiB, 4096. NaN: it is none.
export function parseBytes(text: string): number {
  const found = /^(\d+(?:\.\d+)?)\s*([kmgtp]?)(?:i?b)?$/i.exec(text.trim());
  if (!found) return NaN;
  const value = Number(found[1]) * 1024 ** " kmgtp".indexOf(found[2]!.toLowerCase() || " ");
  return value > 0 && Number.isSafeInteger(Math.round(value)) ? Math.round(value) : NaN;
}
// So that parseBytes gives the same again.
export function exactBytes(value: number): string {
  let unit = 0;
  for (; unit < units.length - 1 && value > 0 && value % 1024 === 0; ++unit) value /= 1024;
  return `${value} ${units[unit]}`;
}
// 30s, 10m, 2h, 1d, 250ms; in nanoseconds. NaN: it is none.
export function parseDuration(text: string): number {
  const found = /^(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)$/.exec(text.trim());
  return found ? Math.round(Number(found[1]) * { ms: 1e6, s: 1e9, m: 6e10, h: 3.6e12, d: 8.64e13 }[found[2] as "ms"]!) : NaN;
}

export function count(value: number): string {
  return value.toLocaleString("en-GB");
}

export function percent(part: number, whole: number): string {
  if (whole <= 0) return "0 %";
  const share = (part / whole) * 100;
  if (share > 0 && share < 1) return "< 1 %";
  if (share > 99 && share < 100) return "> 99 %";
  return `${Math.round(share)} %`;
}

export function duration(ns: number): string {
  const seconds = ns / 1e9;
  if (seconds < 1e-3) return `${Math.round(ns / 1e3)} µs`;
  if (seconds < 1) return `${Math.round(ns / 1e6)} ms`;
  if (seconds < 59.5) return `${Math.round(seconds)} s`;
  const minutes = Math.floor((seconds + 0.5) / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds + 0.5) % 60} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

// Of CLOCK_REALTIME: the time of today, and the date of other days.
export function time(wallNs: number, now: Date): string {
  const at = new Date(wallNs / 1e6);
  const two = (value: number): string => String(value).padStart(2, "0");
  const clock = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return at.toDateString() === now.toDateString()
    ? clock : `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock}`;
}

export function rate(perSecond: number): string {
  if (perSecond === 0) return "0 /s";
  return `${perSecond >= 10 ? Math.round(perSecond) : perSecond.toFixed(perSecond >= 1 ? 1 : 2)} /s`;
}

export function words(text: string): string {
  return text.replace(/_/g, " ");
}
