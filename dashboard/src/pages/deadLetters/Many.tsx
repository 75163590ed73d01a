/** What is done to all dead letters that are filtered, or to the selected ones. */
import { NumberInput } from "@mantine/core";
import { useState } from "react";
import { send } from "../../api/client";
import { Confirm } from "../../design/Confirm";
import { several } from "../../design/format";
import type { Filter } from "./DeadLetters";

interface ManyProps {
  filter: Filter;
  /** The selected ones; none means all that the filter leaves. */
  ids: string[];
  total: number;
  onClose: () => void;
}

interface Chosen extends Filter {
  ids?: string[];
  all?: boolean;
}

function selection(filter: Filter, ids: string[]): Chosen {
  if (ids.length > 0) return { ids };
  const narrowed = filter.queue !== undefined || filter.consumerGroup !== undefined;
  return narrowed ? filter : { all: true };
}

const SLICE = 100;
const PER_SECOND = 500;

export function Redrive({ filter, ids, total, onClose }: ManyProps) {
  const many = ids.length || total;
  const [perSecond, setPerSecond] = useState<number | string>(PER_SECOND);
  const [done, setDone] = useState(0);
  async function act(): Promise<string> {
    const body = selection(filter, ids);
    let redriven = 0;
    for (;;) {
      const began = Date.now();
      const limit = Math.min(SLICE, Math.max(Number(perSecond), 1));
      const answer = await send("post", "/api/v1/dlq/redrive", { body: { ...body, limit } });
      redriven += answer.redriven;
      setDone(redriven);
      if (answer.redriven < limit || redriven >= many) break;
      const share = (limit / Math.max(Number(perSecond), 1)) * 1000;
      await new Promise((resolve) => window.setTimeout(resolve, Math.max(share - (Date.now() - began), 0)));
    }
    return `${several(redriven, "message")} pushed again.`;
  }
  return (
    <Confirm title="Redrive dead letters" verb="Redrive them" act={act} onClose={onClose}>
      <p>
        <strong>{several(many, "message")}</strong> will be pushed again, to the end of where they came from, oldest
        first, and their dead letters removed.
      </p>
      <NumberInput
        label="At most per second"
        min={1}
        max={100_000}
        value={perSecond}
        onChange={setPerSecond}
        thousandSeparator=","
      />
      {done > 0 && <p role="status">{several(done, "message")} so far.</p>}
    </Confirm>
  );
}

export function Purge({ filter, ids, total, onClose }: ManyProps) {
  async function act(): Promise<string> {
    const { purged } = await send("post", "/api/v1/dlq/purge", { body: selection(filter, ids) });
    return `${several(purged, "dead letter")} removed.`;
  }
  return (
    <Confirm title="Purge dead letters" name="purge" verb="Purge them" act={act} onClose={onClose}>
      <strong>{several(ids.length || total, "dead letter")}</strong> will be removed. Their messages are not delivered
      again. This cannot be undone.
    </Confirm>
  );
}
