import type { Schemas } from "../../api/client";
import { Badge, type Tone } from "../../design/parts";

export type Status = Schemas["MessageRow"]["status"];

export const STATUSES: { value: Status; label: string; tone: Tone }[] = [
  { value: "pending", label: "Pending", tone: "idle" },
  { value: "processing", label: "In flight", tone: "lagging" },
  { value: "completed", label: "Done", tone: "healthy" },
  { value: "dead_letter", label: "Dead letter", tone: "dead" },
];

export function StatusBadge({ status }: { status: Status }) {
  const known = STATUSES.find((one) => one.value === status);
  return <Badge tone={known?.tone ?? "idle"}>{known?.label ?? status}</Badge>;
}
