/** Holds a group back, or lets it go on. */
import { send, type Schemas } from "../../api/client";
import { Confirm } from "../../design/Confirm";
import { several } from "../../design/format";
import { groupName } from "../groups/words";

type GroupRow = Schemas["GroupRow"];

export async function setPaused(group: GroupRow, paused: boolean): Promise<string> {
  const params = { group: group.name, queue: group.queueName };
  await send("post", "/api/v1/consumer-groups/{group}/queues/{queue}/pause", { params, body: { paused } });
  return `${groupName(group.name)} ${paused ? "is paused on" : "goes on with"} ${group.queueName}.`;
}

export function Pause({ group, onClose }: { group: GroupRow; onClose: () => void }) {
  return (
    <Confirm title="Pause the group" verb="Pause it" act={() => setPaused(group, true)} onClose={onClose}>
      <strong>{groupName(group.name)}</strong> gets nothing more from <strong>{group.queueName}</strong> until it is
      resumed{group.totalLag !== null && `; ${several(group.totalLag, "message")} will wait`}. What is leased can still
      be acknowledged. Other groups go on.
    </Confirm>
  );
}
