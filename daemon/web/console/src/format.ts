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
