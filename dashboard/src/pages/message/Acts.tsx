/** What an operator can do to one message. */
import { Select, TextInput } from "@mantine/core";
import { useState } from "react";
import { send } from "../../api/client";
import { Confirm } from "../../design/Confirm";
import { router } from "../../router";
import { groupName } from "../groups/words";
import type { Message } from "./MessagePage";

interface ActProps {
  message: Message;
  onClose: () => void;
}

function paramsOf({ partitionId, transactionId }: Message) {
  return { partitionId, transactionId };
}

export function Remove({ message, onClose }: ActProps) {
  async function act(): Promise<string> {
    await send("delete", "/api/v1/messages/{partitionId}/{transactionId}", { params: paramsOf(message) });
    await router.navigate({ to: "/messages", search: { queue: message.queue } });
    return "The message is removed.";
  }
  return (
    <Confirm title="Delete the message" name={message.partition} verb="Delete it" act={act} onClose={onClose}>
      <strong>1 message</strong> of partition <strong>{message.partition}</strong> will be removed for every group, with
      its trace events and dead letters. This cannot be undone.
    </Confirm>
  );
}

export function PushAgain({ message, onClose }: ActProps) {
  async function act(): Promise<string> {
    const path = "/api/v1/messages/{partitionId}/{transactionId}/retry";
    const again = await send("post", path, { params: paramsOf(message) });
    return `Pushed again as message ${again.seq} of ${message.partition}.`;
  }
  return (
    <Confirm title="Push the message again" verb="Push it" act={act} onClose={onClose}>
      A copy goes to the end of partition <strong>{message.partition}</strong> and is delivered to every group. Its dead
      letters are removed.
    </Confirm>
  );
}

export function Bury({ message, onClose }: ActProps) {
  const waiting = message.consumerGroups.filter((group) => !group.consumed).map((group) => group.name);
  const [group, setGroup] = useState<string | null>(waiting[0] ?? null);
  const [error, setError] = useState("given up by an operator");
  async function act(): Promise<string> {
    const path = "/api/v1/messages/{partitionId}/{transactionId}/dlq";
    await send("post", path, { params: paramsOf(message), body: { consumerGroup: group, error } });
    return "The message is a dead letter now.";
  }
  return (
    <Confirm title="Give the message up" verb="Give it up" act={act} onClose={onClose}>
      <p>The group goes on behind it, and it becomes a dead letter. It must be the next message of the group.</p>
      <Select
        label="Group"
        data={waiting.map((name) => ({ value: name, label: groupName(name) }))}
        value={group}
        onChange={setGroup}
        mb="sm"
      />
      <TextInput label="Reason" value={error} onChange={(event) => setError(event.currentTarget.value)} />
    </Confirm>
  );
}
