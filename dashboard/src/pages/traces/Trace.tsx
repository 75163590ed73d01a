import { Link } from "@tanstack/react-router";
import { useQueries } from "@tanstack/react-query";
import { useMemo, type ReactNode } from "react";
import { get, type Schemas } from "../../api/client";
import { Figure, Figures } from "../../design/Figure";
import { duration, exact } from "../../design/format";
import { Ago, Empty, Failure, Loading, Panel } from "../../design/parts";
import { useLive } from "../../live/useLive";
import css from "./traces.module.css";
import { waterfall, type Step, type Told } from "./waterfall";

type TraceMessage = Schemas["TraceMessage"];

const TOLD_MAX = 40;

export function Trace({ id }: { id: string }) {
  const { data, error } = useLive("/api/v1/traces/{traceId}", { params: { traceId: id }, query: { limit: 500 } });
  const told = useTold(data?.messages ?? []);
  const found = useMemo(() => waterfall(data?.messages ?? [], told), [data, told]);
  if (error !== null) return <Failure error={error} />;
  if (data === undefined) return <Loading rows={6} />;
  if (found.steps.length === 0) {
    return (
      <Panel>
        <Empty title="No message has this trace id">
          <p>It is matched as a whole. Messages that retention removed are not found any more.</p>
        </Empty>
      </Panel>
    );
  }
  return (
    <>
      <Figures>
        <Figure label="Messages" value={exact(found.steps.length)} />
        <Figure label="Queues" value={exact(found.queues.length)} hint={found.queues.join(" → ")} />
        <Figure label="From first to last" value={duration(found.seconds)} />
      </Figures>
      <Panel title="Its way" flush beside={<Key />}>
        <ol className={css.steps}>
          {found.steps.map((step) => (
            <StepLine key={step.message.id} step={step} seconds={found.seconds} />
          ))}
        </ol>
      </Panel>
    </>
  );
}

/** What consumers told of the first messages of a trace; asking for all of a large one would take too long. */
function useTold(messages: TraceMessage[]): ReadonlyMap<string, Told> {
  return useQueries({
    queries: messages.slice(0, TOLD_MAX).map(({ id, partitionId, transactionId }) => ({
      queryKey: ["trace events", id],
      queryFn: async (): Promise<[string, Told] | null> => {
        const { traces } = await get("/api/v1/traces/{partitionId}/{transactionId}", {
          params: { partitionId, transactionId },
        });
        const [first, last] = [traces[0], traces.at(-1)];
        return first && last ? [id, { first: first.created_at, last: last.created_at }] : null;
      },
    })),
    combine: collected,
  });
}

function collected(results: { data?: [string, Told] | null }[]): ReadonlyMap<string, Told> {
  return new Map(results.map(({ data }) => data).filter((one) => one !== null && one !== undefined));
}

function Key() {
  return (
    <span className={css.key}>
      <span>
        <i className={css.waited} /> Waited
      </span>
      <span>
        <i className={css.worked} /> Worked on
      </span>
      <span>
        <i className={css.unknown} /> Until the next message
      </span>
    </span>
  );
}

function StepLine({ step, seconds }: { step: Step; seconds: number }) {
  const { message } = step;
  return (
    <li className={css.step}>
      <div className={css.what}>
        <Link to="/queues/$queue" params={{ queue: message.queue }}>
          <strong>{message.queue}</strong>
        </Link>
        <Link to="/messages/$partitionId/$transactionId" params={message} className={css.which}>
          {message.partition} #{message.seq}
          {message.kind !== null && ` · ${message.kind}`}
        </Link>
      </div>
      <div className={css.lane} aria-hidden>
        {step.waited === null ? (
          <Stretch at={step.at} length={step.until ?? 0} whole={seconds} kind="unknown" />
        ) : (
          <>
            <Stretch at={step.at} length={step.waited} whole={seconds} kind="waited" />
            <Stretch at={step.at + step.waited} length={step.worked ?? 0} whole={seconds} kind="worked" />
          </>
        )}
      </div>
      <div className={css.when}>
        <span>+{duration(step.at)}</span>
        <span className="ls-soft">{said(step)}</span>
      </div>
    </li>
  );
}

interface StretchProps {
  at: number;
  length: number;
  whole: number;
  kind: "waited" | "worked" | "unknown";
}

function Stretch({ at, length, whole, kind }: StretchProps) {
  const all = Math.max(whole, 0.001);
  const left = Math.min((at / all) * 100, 99.4);
  const width = Math.min(Math.max((length / all) * 100, 0.6), 100 - left);
  return <span className={`${css.span ?? ""} ${css[kind] ?? ""}`} style={{ left: `${left}%`, width: `${width}%` }} />;
}

function said(step: Step): ReactNode {
  if (step.waited !== null) return `waited ${duration(step.waited)}, worked ${duration(step.worked)}`;
  if (step.until !== null) return `${duration(step.until)} to the next`;
  return (
    <>
      stored <Ago at={step.message.createdAt} />
    </>
  );
}
