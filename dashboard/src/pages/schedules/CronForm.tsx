import { Button, Group, JsonInput, Modal, Select, Stack, TextInput } from "@mantine/core";
import { useState } from "react";
import { send, type Schemas } from "../../api/client";
import { moment } from "../../design/format";
import { Failure } from "../../design/parts";
import { useAct } from "../../design/useAct";
import { bodyOf, type CronRow } from "./Crons";

interface CronFormProps {
  cron?: CronRow;
  onClose: () => void;
}

const CATCH_UP = [
  { value: "one", label: "Push one for all that were missed" },
  { value: "all", label: "Push each that was missed" },
  { value: "skip", label: "Leave them out" },
];

const FRESH: Schemas["CronBody"] = {
  name: "",
  queue: "",
  partition: "Default",
  expression: "0 * * * *",
  timezone: Intl.DateTimeFormat().resolvedOptions().timeZone,
  catchUp: "one",
  payload: {},
};

export function CronForm({ cron, onClose }: CronFormProps) {
  const [body, setBody] = useState<Schemas["CronBody"]>(cron === undefined ? FRESH : bodyOf(cron));
  const [payload, setPayload] = useState(JSON.stringify(body.payload, null, 2));
  const { run, busy, error } = useAct(onClose);
  const binary = body.payloadBase64 !== undefined && body.payloadBase64 !== null;
  const text = (name: "name" | "queue" | "partition" | "expression" | "timezone") => ({
    value: body[name] ?? "",
    onChange: (event: React.ChangeEvent<HTMLInputElement>) => setBody({ ...body, [name]: event.currentTarget.value }),
    required: true,
  });
  async function save(): Promise<string> {
    const sent = binary ? body : { ...body, payload: JSON.parse(payload) as unknown };
    const saved = await send("post", "/api/v1/crons", { body: sent });
    return `${saved.name} is saved; it comes next ${moment(saved.nextAt)}.`;
  }
  return (
    <Modal
      opened
      onClose={onClose}
      title={cron === undefined ? "New recurring message" : `Edit ${cron.name}`}
      centered
      closeButtonProps={{ "aria-label": "Close" }}
    >
      <form
        onSubmit={(event) => {
          event.preventDefault();
          run(save);
        }}
      >
        <Stack>
          {cron === undefined && <TextInput label="Name" {...text("name")} data-autofocus />}
          <Group grow>
            <TextInput label="Queue" {...text("queue")} />
            <TextInput label="Partition" {...text("partition")} />
          </Group>
          <Group grow align="flex-start">
            <TextInput label="Expression" description="Minute, hour, day, month, weekday" {...text("expression")} />
            <TextInput label="Time zone" description="Such as Europe/Berlin" {...text("timezone")} />
          </Group>
          <Select
            label="After an outage"
            data={CATCH_UP}
            value={body.catchUp ?? "one"}
            allowDeselect={false}
            onChange={(value) => setBody({ ...body, catchUp: value as Schemas["CronBody"]["catchUp"] })}
          />
          {!binary && (
            <JsonInput
              label="Payload"
              value={payload}
              onChange={setPayload}
              validationError="This is not JSON"
              autosize
              minRows={3}
              maxRows={12}
            />
          )}
          <Failure error={error} />
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>
              Cancel
            </Button>
            <Button type="submit" loading={busy}>
              Save
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}
