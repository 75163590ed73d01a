import { Button, Group, PasswordInput, Stack } from "@mantine/core";
import { useState } from "react";
import { token } from "../../api/client";
import { Failure, Loading, Page, Panel } from "../../design/parts";
import { queries, WHO } from "../../live/useLive";
import { signIn, useWho } from "../../live/useWho";
import { router, routes } from "../../router";
import { ownPath } from "../../search";

export function SignIn() {
  const [given, setGiven] = useState("");
  const [busy, setBusy] = useState(false);
  const { from } = routes.signIn.useSearch();
  const { data, error } = useWho();
  async function enter(): Promise<void> {
    setBusy(true);
    await signIn(given.trim());
    setBusy(false);
    setGiven("");
    if (queries.getQueryState(["GET", WHO])?.status === "success") router.history.push(ownPath(from));
  }
  const refused = error !== null && token() !== null ? error : null;
  return (
    <Page title="Sign in" note="The key stays in this tab of the browser, and is gone when you close it.">
      <Panel>
        {data === undefined && error === null ? (
          <Loading rows={2} />
        ) : data !== undefined && error === null ? (
          <Stack align="flex-start">
            <p>
              {data.authRequired
                ? `You are signed in as ${data.name}.`
                : "This server asks nobody who they are, so there is no need to sign in."}
            </p>
            <Button onClick={() => void router.navigate({ to: "/" })}>Go to the overview</Button>
          </Stack>
        ) : (
          <form
            onSubmit={(event) => {
              event.preventDefault();
              void enter();
            }}
          >
            <Stack maw={520}>
              <PasswordInput
                label="API key or token"
                description="lockstep key create NAME --role read-only makes one."
                value={given}
                onChange={(event) => setGiven(event.currentTarget.value)}
                autoComplete="current-password"
                required
              />
              <Failure error={refused} />
              <Group justify="flex-end">
                <Button type="submit" loading={busy}>
                  Sign in
                </Button>
              </Group>
            </Stack>
          </form>
        )}
      </Panel>
    </Page>
  );
}
