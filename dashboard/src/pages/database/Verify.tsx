/** Looks whether what is stored is consistent. It reads everything, so it is asked for. */
import { Button } from "@mantine/core";
import { useState } from "react";
import { send, type Schemas } from "../../api/client";
import { several } from "../../design/format";
import { Badge, Code, Failure, Panel } from "../../design/parts";
import { useAct } from "../../design/useAct";

type Problem = Schemas["ProblemRow"];

export function Verify() {
  const [problems, setProblems] = useState<Problem[] | null>(null);
  const { run, busy, error } = useAct();
  async function verify(): Promise<string> {
    const { problems: found } = await send("post", "/api/v1/system/verify", { body: {} });
    setProblems(found);
    return found.length === 0 ? "Everything is consistent." : `${several(found.length, "problem")} found.`;
  }
  return (
    <Panel
      title="Consistency"
      beside={problems?.length === 0 && <Badge tone="healthy">Consistent</Badge>}
      actions={
        <Button size="xs" variant="default" loading={busy} onClick={() => run(verify)}>
          Verify now
        </Button>
      }
    >
      <Failure error={error} />
      {problems === null && (
        <span className="ls-soft">
          Reads every table and compares them. On a large database it takes a while; pushes and pops go on.
        </span>
      )}
      {problems !== null && problems.length > 0 && (
        <>
          <Code>{problems.map((one) => `${one.kind}: ${one.text}`).join("\n")}</Code>
          <p>
            <span className="ls-mono">lockstep verify --repair</span> mends what can be mended.
          </p>
        </>
      )}
    </Panel>
  );
}
