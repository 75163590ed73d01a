/** Moves a group, after a look at what it will read again or skip. */
import { Button, Group, Modal, SegmentedControl, Stack, TextInput } from "@mantine/core";
import { useState } from "react";
import { send, type Schemas } from "../../api/client";
import { exact, localInput, several } from "../../design/format";
import { Failure } from "../../design/parts";
import { useAct } from "../../design/useAct";
import { useAnswer } from "../../live/useLive";
import { groupName } from "../groups/words";

type Where = "end" | "begin" | "time";
const BEGIN = "1970-01-01T00:00:00Z";
const HOUR_MS = 3_600_000;

interface SeekProps {
  group: Schemas["GroupRow"];
  onClose: () => void;
}

export function Seek({ group, onClose }: SeekProps) {
  const [where, setWhere] = useState<Where>("time");
  const [local, setLocal] = useState(() => localInput(new Date(Date.now() - HOUR_MS)));
  const { run, busy, error } = useAct(onClose);
  const time = new Date(local);
  const valid = where !== "time" || !Number.isNaN(time.getTime());
  const timestamp = where === "begin" ? BEGIN : where === "time" && valid ? time.toISOString() : null;
  const params = { group: group.name, queue: group.queueName };
  async function act(): Promise<string> {
    const body = where === "end" ? { toEnd: true } : { timestamp };
    const done = await send("post", "/api/v1/consumer-groups/{group}/queues/{queue}/seek", { params, body });
    return `${groupName(group.name)} was moved in ${several(done.partitionsUpdated, "partition")}.`;
  }
  return (
    <Modal
      opened
      onClose={onClose}
      title={`Move ${groupName(group.name)} in ${group.queueName}`}
      centered
      closeButtonProps={{ "aria-label": "Close" }}
    >
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (valid) run(act);
        }}
      >
        <Stack>
          <SegmentedControl
            aria-label="Where to"
            value={where}
            onChange={setWhere}
            data={[
              { value: "time", label: "To a time" },
              { value: "begin", label: "To the beginning" },
              { value: "end", label: "To the end" },
            ]}
          />
          {where === "time" && (
            <TextInput
              type="datetime-local"
              step={1}
              label="Time"
              description="What was stored after it is delivered next. It is your local time."
              value={local}
              onChange={(event) => setLocal(event.currentTarget.value)}
              error={valid ? undefined : "This is not a time"}
              data-autofocus
            />
          )}
          {valid && <Preview params={params} query={timestamp === null ? { toEnd: true } : { timestamp }} />}
          <Failure error={error} />
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>
              Cancel
            </Button>
            <Button type="submit" color="red" disabled={!valid} loading={busy}>
              Move the group
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}

interface PreviewProps {
  params: { group: string; queue: string };
  query: { toEnd?: boolean; timestamp?: string };
}

function Preview({ params, query }: PreviewProps) {
  const path = "/api/v1/consumer-groups/{group}/queues/{queue}/seek";
  const { data, error } = useAnswer(path, { params, query });
  if (error !== null) return <Failure error={error} />;
  if (data === undefined) return <span className="ls-soft">Counting what this would do…</span>;
  return (
    <div role="status">
      <strong>{several(data.readAgain, "message")}</strong> will be read again, and{" "}
      <strong>{several(data.skipped, "message")}</strong> skipped, in {several(data.partitions, "partition")}.
      {data.leases > 0 && ` ${several(data.leases, "live lease")} will be lost.`}
      {!data.complete && ` Only the first ${exact(data.partitions)} partitions were counted.`}
    </div>
  );
}
