import { Button, Group, JsonInput, Modal, NumberInput, Stack, TextInput } from "@mantine/core";
import { useState } from "react";
import { ApiError, request } from "../../api/client";
import { Failure } from "../../design/parts";
import { useAct } from "../../design/useAct";

interface PushMessageProps {
  queue: string;
  onClose: () => void;
}

interface Pushed {
  status: string;
  error?: string;
}

export function PushMessage({ queue, onClose }: PushMessageProps) {
  const [payload, setPayload] = useState('{\n  "hello": "world"\n}');
  const [partition, setPartition] = useState("Default");
  const [delay, setDelay] = useState<number | string>(0);
  const { run, busy, error } = useAct(onClose);
  async function push(): Promise<string> {
    const item = { queue, partition, payload: JSON.parse(payload) as unknown };
    const late = Number(delay) > 0 ? { delaySeconds: Number(delay) } : {};
    // A push answers in several ways, which the document does not tell apart.
    const answer = await request("POST", "/api/v1/push", { items: [{ ...item, ...late }] });
    const first = Array.isArray(answer) ? (answer as Pushed[])[0] : undefined;
    if (first?.status === "failed") throw new ApiError(400, "refused", first.error ?? "The push was refused.");
    return Number(delay) > 0 ? "The message waits for its time." : `A message was pushed to ${queue}.`;
  }
  return (
    <Modal opened onClose={onClose} title={`Push to ${queue}`} centered closeButtonProps={{ "aria-label": "Close" }}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          run(push);
        }}
      >
        <Stack>
          <JsonInput
            label="Payload"
            description="JSON"
            value={payload}
            onChange={setPayload}
            validationError="This is not JSON"
            formatOnBlur
            autosize
            minRows={5}
            maxRows={16}
            data-autofocus
          />
          <Group grow align="flex-start">
            <TextInput
              label="Partition"
              value={partition}
              onChange={(event) => setPartition(event.currentTarget.value)}
              required
            />
            <NumberInput label="Delay" suffix=" s" min={0} value={delay} onChange={setDelay} />
          </Group>
          <Failure error={error} />
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>
              Cancel
            </Button>
            <Button type="submit" loading={busy}>
              Push
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}
