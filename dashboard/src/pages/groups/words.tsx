import type { Schemas } from "../../api/client";
import { Badge } from "../../design/parts";

const PLAIN = "__QUEUE_MODE__";

/** Pops without a group share one that has no name of its own. */
export function groupName(name: string): string {
  return name === PLAIN ? "Plain consumers" : name;
}

export function GroupState({ group }: { group: Schemas["GroupRow"] }) {
  if (group.pausedAt !== null) return <Badge tone="lagging">Paused</Badge>;
  if (group.state === "Dead") return <Badge tone="idle">Nothing to read</Badge>;
  if ((group.totalLag ?? 0) === 0) return <Badge tone="healthy">Drained</Badge>;
  if (group.state === "Lagging") return <Badge tone={group.members ? "lagging" : "dead"}>{lagging(group)}</Badge>;
  return <Badge tone={group.members ? "healthy" : "idle"}>{group.members ? "At work" : "Waiting"}</Badge>;
}

function lagging(group: Schemas["GroupRow"]): string {
  return group.members ? "Behind" : "Behind, nobody works";
}
