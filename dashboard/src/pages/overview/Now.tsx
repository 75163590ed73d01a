/** How it is at this moment, in eight figures. */
import { Figure, Figures } from "../../design/Figure";
import { count, duration, rate } from "../../design/format";
import { Failure, type Tone } from "../../design/parts";
import { useLive } from "../../live/useLive";
import { useRates } from "./useRates";

const ANSWERS: Record<string, { value: string; tone: Tone }> = {
  execute: { value: "Normal", tone: "healthy" },
  queue: { value: "Queues", tone: "lagging" },
  shed: { value: "Sheds", tone: "lagging" },
  reject: { value: "Rejects", tone: "dead" },
};
const NORMAL = { value: "Normal", tone: "healthy" as Tone };
const BEHIND_SECONDS = 300;

export function Now() {
  const { data: overview, error } = useLive("/api/v1/resources/overview");
  const { data: operations } = useLive("/api/v1/operations/stats");
  const rates = useRates();
  const oldest = overview?.lag.time?.max ?? null;
  const dead = overview?.messages.deadLetter ?? null;
  const busy = operations?.load.find((one) => one.answer !== "execute");
  const load = busy === undefined ? NORMAL : (ANSWERS[busy.answer] ?? NORMAL);
  const average = overview?.throughput;
  const waiting = operations?.pending.reduce((sum, one) => sum + one.operations, 0) ?? 0;
  return (
    <>
      <Failure error={error} />
      <Figures>
        <Figure
          label="In"
          value={rate(rates?.now?.pushed ?? average?.ingestedPerSecond)}
          unit="/s"
          hint={`${rate(average?.ingestedPerSecond)}/s over 5 min`}
        />
        <Figure
          label="Out"
          value={rate(rates?.now?.acked ?? average?.processedPerSecond)}
          unit="/s"
          hint={`${rate(average?.processedPerSecond)}/s over 5 min`}
        />
        <Figure
          label="Pending"
          value={count(overview?.messages.pending)}
          hint={`of ${count(overview?.messages.total)} stored`}
          to="/queues"
          search={{ sort: "pending" }}
        />
        <Figure
          label="Oldest unread"
          value={duration(oldest)}
          tone={oldest !== null && oldest > BEHIND_SECONDS ? "lagging" : undefined}
          hint="over all groups"
          to="/groups"
          search={{ show: "lagging" }}
        />
        <Figure
          label="In flight"
          value={count(overview?.messages.processing)}
          hint={`${count(rates?.polls)} polls wait`}
        />
        <Figure
          label="Dead letters"
          value={count(dead)}
          tone={dead !== null && dead > 0 ? "dead" : undefined}
          hint={dead === 0 ? "none" : "look at them"}
          to="/dead-letters"
        />
        <Figure
          label="Errors"
          value={rate(rates?.now?.failed)}
          unit="/s"
          tone={(rates?.now?.failed ?? 0) > 0 ? "dead" : undefined}
          hint={`${count(rates?.failedInAll)} since the start`}
        />
        <Figure
          label="Load"
          value={load.value}
          tone={load.tone}
          hint={waiting > 0 ? `${count(waiting)} operations wait` : "nothing held back"}
          to="/load"
        />
      </Figures>
    </>
  );
}
