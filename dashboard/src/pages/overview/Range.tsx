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

export function rangeOf(given: string | undefined): Range {
  return one<Range>(given, ["1h", "6h", "24h", "7d"], "1h");
}

export function RangeControl({ value, onChange }: { value: Range; onChange: (value: Range) => void }) {
  return <SegmentedControl size="xs" aria-label="Time" data={RANGES} value={value} onChange={onChange} />;
}
