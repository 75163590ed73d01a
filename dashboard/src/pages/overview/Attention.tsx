/** First of all: what is wrong, in words, with the way to where it can be mended. */
import { Link } from "@tanstack/react-router";
import { CircleAlert, CircleCheck, Info, TriangleAlert, type LucideIcon } from "lucide-react";
import { useState } from "react";
import type { Schemas } from "../../api/client";
import { Ago, Failure, Loading, Panel } from "../../design/parts";
import { several } from "../../design/format";
import { useLive } from "../../live/useLive";
import css from "./overview.module.css";

type Finding = Schemas["FindingRow"];

const ICONS: Record<Finding["severity"], LucideIcon> = { critical: CircleAlert, warning: TriangleAlert, notice: Info };

const FOLDED = 5;
const LISTED_MAX = 50;

export function Attention() {
  const [all, setAll] = useState(false);
  const { data, error } = useLive("/api/v1/attention", { query: { limit: LISTED_MAX } });
  const shown = all ? data?.findings : data?.findings.slice(0, FOLDED);
  const more = (data?.findings.length ?? 0) - FOLDED;
  const title = data && data.total > 0 ? `Needs attention: ${several(data.total, "thing")}` : "Needs attention";
  return (
    <Panel title={title} flush>
      <Failure error={error} />
      {data === undefined && error === null && <Loading rows={2} />}
      {data?.findings.length === 0 && (
        <div className={css.calm}>
          <CircleCheck size={20} aria-hidden /> Nothing needs attention. Groups keep up, and nothing failed.
        </div>
      )}
      <ul className={css.findings}>
        {shown?.map((one) => (
          <FindingLine key={`${one.subject} ${one.title}`} finding={one} />
        ))}
      </ul>
      {more > 0 && (
        <button type="button" className={css.more} aria-expanded={all} onClick={() => setAll(!all)}>
          {all ? "Show fewer" : `Show ${more} more`}
        </button>
      )}
    </Panel>
  );
}

function FindingLine({ finding }: { finding: Finding }) {
  const Icon = ICONS[finding.severity];
  return (
    <li className={css.finding}>
      <Icon size={18} className={css[finding.severity]} aria-label={finding.severity} />
      <div className={css.words}>
        <strong>{finding.title}</strong>
        <span title={finding.text}>
          {finding.text}
          {finding.since !== null && !finding.text.includes("oldest for") && (
            <>
              {" "}
              Since <Ago at={finding.since} />.
            </>
          )}
        </span>
      </div>
      <Way finding={finding} />
    </li>
  );
}

/** Where something can be done about it. */
function Way({ finding: { subject, queue, consumerGroup } }: { finding: Finding }) {
  if (subject === "group" && queue !== null && consumerGroup !== null) {
    return (
      <Link to="/groups/$group" params={{ group: consumerGroup }} search={{ queue, tab: "stuck" }} className={css.way}>
        Open the group
      </Link>
    );
  }
  if (subject === "dead_letters") {
    return (
      <Link to="/dead-letters" search={{ queue: queue ?? undefined }} className={css.way}>
        Look at them
      </Link>
    );
  }
  if (queue !== null) {
    return (
      <Link to="/queues/$queue" params={{ queue }} className={css.way}>
        Open the queue
      </Link>
    );
  }
  const place = PLACES_OF[subject];
  return place === undefined ? null : (
    <Link to={place} className={css.way}>
      Look into it
    </Link>
  );
}

const PLACES_OF: Partial<Record<Finding["subject"], "/load" | "/database" | "/system">> = {
  operations: "/load",
  load: "/load",
  maintenance: "/load",
  duty: "/database",
  database: "/database",
  server: "/system",
};
