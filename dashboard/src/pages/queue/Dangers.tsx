import { send } from "../../api/client";
import { Confirm } from "../../design/Confirm";
import { several } from "../../design/format";
import { router } from "../../router";
import type { QueueDetail } from "./QueuePage";

interface DangerProps {
  queue: QueueDetail;
  onClose: () => void;
}

function stored(queue: QueueDetail): string {
  return queue.messages.total === null ? "All stored messages" : several(queue.messages.total, "stored message");
}

export function ClearQueue({ queue, onClose }: DangerProps) {
  async function act(): Promise<string> {
    const { removed } = await send("delete", "/api/v1/queues/{queue}/clear", { params: { queue: queue.name } });
    return `${several(removed, "message")} of ${queue.name} removed.`;
  }
  return (
    <Confirm title="Remove messages" name={queue.name} verb="Remove them" act={act} onClose={onClose}>
      <strong>{stored(queue)}</strong> of <strong>{queue.name}</strong> will be removed for every group
      {queue.messages.pending ? `, ${several(queue.messages.pending, "message")} of them unread` : ""}. The queue, its
      options and its groups stay. This cannot be undone.
    </Confirm>
  );
}

export function DeleteQueue({ queue, onClose }: DangerProps) {
  async function act(): Promise<string> {
    await send("delete", "/api/v1/resources/queues/{queue}", { params: { queue: queue.name } });
    await router.navigate({ to: "/queues" });
    return `Queue ${queue.name} is deleted.`;
  }
  return (
    <Confirm title="Delete the queue" name={queue.name} verb="Delete it" act={act} onClose={onClose}>
      <strong>{queue.name}</strong> will be deleted with its options, its groups and <strong>{stored(queue)}</strong>,
      dead letters and waiting messages included. This cannot be undone.
    </Confirm>
  );
}
