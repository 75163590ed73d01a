/** What cannot be undone asks first: it says what it is about, and wants the name typed. */
import { Button, Group, Modal, Stack, Text, TextInput } from "@mantine/core";
import { useState, type ReactNode } from "react";
import { useAct } from "./useAct";
import { Failure } from "./parts";

interface ConfirmProps {
  title: string;
  /** What has to be typed; without it, a click is enough. */
  name?: string;
  verb: string;
  /** What becomes of what, with how many messages are concerned. */
  children: ReactNode;
  act: () => Promise<string>;
  onClose: () => void;
}

export function Confirm({ title, name, verb, children, act, onClose }: ConfirmProps) {
  const [typed, setTyped] = useState("");
  const { run, busy, error } = useAct(onClose);
  const ready = name === undefined || typed === name;
  return (
    <Modal opened onClose={onClose} title={title} centered closeButtonProps={{ "aria-label": "Close" }}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (ready) run(act);
        }}
      >
        <Stack gap="md">
          <Text size="sm" component="div">
            {children}
          </Text>
          {name !== undefined && (
            <TextInput
              label={
                <>
                  Type <strong className="ls-mono">{name}</strong> to confirm
                </>
              }
              value={typed}
              onChange={(event) => setTyped(event.currentTarget.value)}
              autoComplete="off"
              data-autofocus
            />
          )}
          <Failure error={error} />
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>
              Cancel
            </Button>
            <Button type="submit" color="red" disabled={!ready} loading={busy}>
              {verb}
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}
