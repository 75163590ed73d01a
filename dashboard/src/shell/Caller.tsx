/** Who is signed in; and the way to the sign-in for whoever is not, on a server that asks. */
import { Button, Tooltip } from "@mantine/core";
import { useNavigate, useRouterState } from "@tanstack/react-router";
import { LogOut } from "lucide-react";
import { useEffect } from "react";
import { signIn, useWho } from "../live/useWho";

export function Caller() {
  const { data, error } = useWho();
  const navigate = useNavigate();
  const path = useRouterState({ select: (state) => state.location.pathname });
  const href = useRouterState({ select: (state) => state.location.href });
  const unknown = error !== null && error.status === 401;
  useEffect(() => {
    if (unknown && path !== "/sign-in") void navigate({ to: "/sign-in", search: { from: href }, replace: true });
  }, [unknown, path, href, navigate]);
  if (unknown || data?.authRequired !== true) return null;
  return (
    <Tooltip label={`Signed in as ${data.name}${data.role === null ? "" : `, ${data.role}`}. Sign out`}>
      <Button
        variant="subtle"
        color="gray"
        size="compact-sm"
        rightSection={<LogOut size={14} aria-hidden />}
        onClick={() => void signIn(null)}
      >
        {data.name}
      </Button>
    </Tooltip>
  );
}
