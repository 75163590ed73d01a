/** How far back plots go. */
import { SegmentedControl } from "@mantine/core";
import { one } from "../../search";

export type Range = "1h" | "6h" | "24h" | "7d";
const RANGES: { value: Range; label: string }[] = [
  { value: "1h", label: "1 h" },
  { value: "6h", label: "6 h" },
  { value: "24h", label: "24 h" },
  { value: "7d", label: "7 d" },
];

/** What the routes with a history are asked for. */
export const SPANS = {
  "1h": { interval: "minute", lastSeconds: 3_600 },
  "6h": { interval: "minute", lastSeconds: 21_600 },
  "24h": { interval: "hour", lastSeconds: 86_400 },
  "7d": { interval: "hour", lastSeconds: 604_800 },
} as const;

const MINUTE_MS = 60_000;

/** Without the minute that is not over: only some of its samples are there yet, and the lines would fall. */
export function complete<P extends { timestamp: string }>(
  points: P[],
  interval: "minute" | "hour",
  now = Date.now(),
): P[] {
  if (interval === "hour") return points;
  return points.filter(({ timestamp }) => Date.parse(timestamp) + MINUTE_MS <= now);
}

export function rangeOf(given: string | undefined): Range {
  return one<Range>(given, ["1h", "6h", "24h", "7d"], "1h");
}

export function RangeControl({ value, onChange }: { value: Range; onChange: (value: Range) => void }) {
  return <SegmentedControl size="xs" aria-label="Time" data={RANGES} value={value} onChange={onChange} />;
}
