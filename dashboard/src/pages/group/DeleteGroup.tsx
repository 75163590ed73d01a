import { Checkbox } from "@mantine/core";
import { useState } from "react";
import { send, type Schemas } from "../../api/client";
import { Confirm } from "../../design/Confirm";
import { several } from "../../design/format";
import { router } from "../../router";
import { groupName } from "../groups/words";

interface DeleteGroupProps {
  group: Schemas["GroupRow"];
  onClose: () => void;
}

export function DeleteGroup({ group, onClose }: DeleteGroupProps) {
  const [forget, setForget] = useState(true);
  async function act(): Promise<string> {
    await send("delete", "/api/v1/consumer-groups/{group}/queues/{queue}", {
      params: { group: group.name, queue: group.queueName },
      query: { deleteMetadata: forget },
    });
    await router.navigate({ to: "/groups" });
    return `${groupName(group.name)} is removed from ${group.queueName}.`;
  }
  return (
    <Confirm title="Delete the group" name={group.name} verb="Delete it" act={act} onClose={onClose}>
      <p>
        <strong>{groupName(group.name)}</strong> forgets how far it is in <strong>{group.queueName}</strong>
        {group.totalLag !== null && `, with ${several(group.totalLag, "message")} that it has not done`}. Its live
        leases are lost. The messages stay for other groups. If it pops again, it starts afresh.
      </p>
      <Checkbox
        label="Forget where it begins, too"
        checked={forget}
        onChange={(event) => setForget(event.currentTarget.checked)}
      />
    </Confirm>
  );
}
