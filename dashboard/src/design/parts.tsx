/** The small parts of which every page is made. */
import { ActionIcon, CopyButton, Skeleton, Tooltip } from "@mantine/core";
import { Check, Copy } from "lucide-react";
import { useEffect, type ReactNode } from "react";
import { ApiError } from "../api/client";
import css from "./design.module.css";
import { ago, moment } from "./format";
import { useNow } from "./useNow";

export type Tone = "healthy" | "lagging" | "dead" | "idle";

interface PageProps {
  title: string;
  /** What stands beside the title, such as a badge. */
  beside?: ReactNode;
  note?: ReactNode;
  actions?: ReactNode;
  children: ReactNode;
}

export function Page({ title, beside, note, actions, children }: PageProps) {
  useEffect(() => {
    document.title = `${title} · Lockstep`;
  }, [title]);
  return (
    <div className={css.page}>
      <header className={css.head}>
        <h1>{title}</h1>
        {beside}
        {actions !== undefined && <div className={css.actions}>{actions}</div>}
        {note !== undefined && <p className={css.note}>{note}</p>}
      </header>
      {children}
    </div>
  );
}

interface PanelProps {
  title?: string;
  beside?: ReactNode;
  actions?: ReactNode;
  /** Whether its contents go to its edges, as a table does. */
  flush?: boolean;
  children: ReactNode;
}

export function Panel({ title, beside, actions, flush = false, children }: PanelProps) {
  return (
    <section className={css.panel} aria-label={title}>
      {title !== undefined && (
        <div className={css.panelHead}>
          <h2>{title}</h2>
          {beside}
          {actions !== undefined && <div className={css.actions}>{actions}</div>}
        </div>
      )}
      <div className={flush ? css.flush : css.panelBody}>{children}</div>
    </section>
  );
}

export function Badge({ tone, children }: { tone: Tone; children: ReactNode }) {
  return <span className={`${css.badge ?? ""} ${css[tone] ?? ""}`}>{children}</span>;
}

export function Toned({ tone, children }: { tone: Tone | undefined; children: ReactNode }) {
  return <span className={tone === undefined ? undefined : css[tone]}>{children}</span>;
}

interface EmptyProps {
  icon?: ReactNode;
  title: string;
  /** What to do next. */
  children?: ReactNode;
}

export function Empty({ icon, title, children }: EmptyProps) {
  return (
    <div className={css.empty}>
      {icon}
      <h3>{title}</h3>
      {children}
    </div>
  );
}

/** What the server said, in its words. */
export function Failure({ error }: { error: unknown }) {
  if (error === null || error === undefined) return null;
  const known = error instanceof ApiError;
  return (
    <div className={css.failure} role="alert">
      <strong>{known && error.status > 0 ? `${error.status} ${error.code}` : "Not reached"}</strong>{" "}
      {error instanceof Error ? error.message : "Something failed."}
    </div>
  );
}

export function Loading({ rows = 4 }: { rows?: number }) {
  return (
    <div aria-busy="true" aria-label="Loading">
      {Array.from({ length: rows }, (_, row) => (
        <Skeleton key={row} height={18} my={10} radius="sm" />
      ))}
    </div>
  );
}

export function Copied({ value, label }: { value: string; label: string }) {
  return (
    <CopyButton value={value}>
      {({ copied, copy }) => (
        <Tooltip label={copied ? "Copied" : label}>
          <ActionIcon variant="subtle" color="gray" size="sm" onClick={copy} aria-label={label}>
            {copied ? <Check size={14} /> : <Copy size={14} />}
          </ActionIcon>
        </Tooltip>
      )}
    </CopyButton>
  );
}

export function Code({ children }: { children: string }) {
  return (
    <pre className={css.code} tabIndex={0}>
      {children}
    </pre>
  );
}

/** A time as people say it, with the exact one when asked. */
export function Ago({ at }: { at: string | null | undefined }) {
  const now = useNow();
  if (!at) return <span className="ls-soft">–</span>;
  return (
    <time dateTime={at} title={moment(at)} className="ls-number">
      {ago(at, now)}
    </time>
  );
}

export function Facts({ children }: { children: ReactNode }) {
  return <dl className={css.facts}>{children}</dl>;
}

export function Fact({ name, children }: { name: string; children: ReactNode }) {
  return (
    <>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </>
  );
}

export function Columns({ children }: { children: ReactNode }) {
  return <div className={css.columns}>{children}</div>;
}

export function Filters({ children, label = "Filters" }: { children: ReactNode; label?: string }) {
  return (
    <div className={css.filters} role="search" aria-label={label}>
      {children}
    </div>
  );
}

export function Bar({ part, tone, label }: { part: number; tone?: Tone; label: string }) {
  const width = `${Math.min(Math.max(part, 0), 1) * 100}%`;
  return (
    <div className={`${css.bar ?? ""} ${(tone && css[tone]) ?? ""}`} role="img" aria-label={label}>
      <span style={{ width }} />
    </div>
  );
}
