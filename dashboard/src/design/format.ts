/** Numbers and times as the dashboard writes them: one way for each. */
const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const STEPS: [number, string][] = [
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e4, "k"],
];
export const UNKNOWN = "–";

type Maybe<T> = T | null | undefined;

/** 1,234 · 12.3k · 4.5M. What is not known is a dash. */
export function count(value: Maybe<number>): string {
  if (value === null || value === undefined) return UNKNOWN;
  for (const [size, letter] of STEPS) {
    if (Math.abs(value) >= size) return `${short(value / (letter === "k" ? 1e3 : size))}${letter}`;
  }
  return WHOLE.format(value);
}

/** All digits: 1,234,567. */
export function exact(value: Maybe<number>): string {
  return value === null || value === undefined ? UNKNOWN : WHOLE.format(value);
}

function short(value: number): string {
  const digits = Math.abs(value) >= 100 ? 0 : 1;
  return value.toFixed(digits).replace(/\.0$/, "");
}

/** Per second: 0.4 · 12 · 3.4k. */
export function rate(value: Maybe<number>): string {
  if (value === null || value === undefined) return UNKNOWN;
  if (value === 0) return "0";
  if (value < 0.01) return "<0.01";
  if (value < 10) return value.toFixed(value < 1 ? 2 : 1).replace(/\.?0+$/, "");
  return count(Math.round(value));
}

/** A duration: 320 ms · 4.2 s · 3 min · 2 h 5 min · 3 d 4 h. */
export function duration(seconds: Maybe<number>): string {
  if (seconds === null || seconds === undefined) return UNKNOWN;
  if (seconds < 0) return `-${duration(-seconds)}`;
  if (seconds === 0) return "0 s";
  if (seconds < 1) return `${Math.max(Math.round(seconds * 1000), 1)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1).replace(/\.0$/, "")} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 10) return joined(minutes, "min", Math.floor(seconds % 60), "s");
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return joined(hours, "h", minutes % 60, "min");
  return joined(Math.floor(hours / 24), "d", hours % 24, "h");
}

function joined(large: number, largeUnit: string, small: number, smallUnit: string): string {
  return small ? `${large} ${largeUnit} ${small} ${smallUnit}` : `${large} ${largeUnit}`;
}

/** 512 B · 1.5 KiB · 20 MiB. */
export function bytes(value: Maybe<number>): string {
  if (value === null || value === undefined) return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let size = value;
  let unit = 0;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit++;
  }
  return `${unit === 0 ? WHOLE.format(size) : short(size)} ${units[unit] ?? ""}`;
}

export function percent(part: Maybe<number>): string {
  return part === null || part === undefined ? UNKNOWN : `${(part * 100).toFixed(part > 0.99 && part < 1 ? 1 : 0)}%`;
}

/** 12 s ago · in 3 min. */
export function ago(at: Maybe<string>, now = Date.now()): string {
  if (!at) return UNKNOWN;
  const seconds = (now - Date.parse(at)) / 1000;
  if (Math.abs(seconds) < 1) return "now";
  return seconds > 0 ? `${rough(seconds)} ago` : `in ${rough(-seconds)}`;
}

function rough(seconds: number): string {
  return seconds < 60 ? `${Math.round(seconds)} s` : duration(seconds);
}

/** 2026-05-01 10:00:00.123, in the time of the reader. */
export function moment(at: Maybe<string>): string {
  if (!at) return UNKNOWN;
  const time = new Date(at);
  const two = (value: number): string => String(value).padStart(2, "0");
  const day = `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())}`;
  const clock = `${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}`;
  return `${day} ${clock}.${String(time.getMilliseconds()).padStart(3, "0")}`;
}

/** "1 message", "3 messages". */
export function several(value: number, noun: string, plural = `${noun}s`): string {
  return `${exact(value)} ${value === 1 ? noun : plural}`;
}

/** A time as an input of the type datetime-local has it, in the time of the reader. */
export function localInput(at: Date): string {
  const shifted = new Date(at.getTime() - at.getTimezoneOffset() * 60_000);
  return shifted.toISOString().slice(0, 19);
}
