import { Button, Group, Modal, Stack, TextInput } from "@mantine/core";
import { useState } from "react";
import { send } from "../../api/client";
import { Failure } from "../../design/parts";
import { useAct } from "../../design/useAct";
import { router } from "../../router";

export function NewQueue({ onClose }: { onClose: () => void }) {
  const [name, setName] = useState("");
  const { run, busy, error } = useAct(onClose);
  async function make(): Promise<string> {
    await send("post", "/api/v1/configure", { body: { queue: name } });
    await router.navigate({ to: "/queues/$queue", params: { queue: name }, search: { tab: "options" } });
    return `Queue ${name} is there.`;
  }
  return (
    <Modal opened onClose={onClose} title="New queue" centered closeButtonProps={{ "aria-label": "Close" }}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          run(make);
        }}
      >
        <Stack>
          <TextInput
            label="Name"
            description="What stands before a dot is its namespace. Options come next."
            value={name}
            onChange={(event) => setName(event.currentTarget.value)}
            required
            data-autofocus
          />
          <Failure error={error} />
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>
              Cancel
            </Button>
            <Button type="submit" loading={busy}>
              Create
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}
