/** JSON as a tree that folds, so that a large payload can be read. */
import { SegmentedControl } from "@mantine/core";
import { ChevronDown, ChevronRight } from "lucide-react";
import { useState, type ReactNode } from "react";
import { Code, Copied } from "./parts";
import css from "./json.module.css";

const OPEN_DEPTH = 3;
const SHOWN_MAX = 200;

interface PayloadProps {
  value: unknown;
  label: string;
}

/** A payload as a tree or as text, whichever the reader wants. */
export function Payload({ value, label }: PayloadProps) {
  const [as, setAs] = useState("tree");
  const text = JSON.stringify(value, null, 2);
  return (
    <div>
      <div className={css.bar}>
        <SegmentedControl
          size="xs"
          aria-label={`${label}: how it is shown`}
          value={as}
          onChange={setAs}
          data={[
            { value: "tree", label: "Tree" },
            { value: "raw", label: "Raw" },
          ]}
        />
        <Copied value={text} label={`Copy ${label.toLowerCase()}`} />
      </div>
      {as === "raw" ? <Code>{text}</Code> : <JsonTree value={value} />}
    </div>
  );
}

export function JsonTree({ value }: { value: unknown }) {
  return (
    <div className={css.tree} tabIndex={0} role="region" aria-label="JSON">
      <Node value={value} depth={0} />
    </div>
  );
}

interface NodeProps {
  name?: string;
  value: unknown;
  depth: number;
}

function Node({ name, value, depth }: NodeProps) {
  const label = name === undefined ? null : <span className={css.name}>{name}: </span>;
  if (typeof value !== "object" || value === null) {
    return (
      <div className={css.line}>
        {label}
        <Scalar value={value} />
      </div>
    );
  }
  return <Branch label={label} value={value} depth={depth} />;
}

function Branch({ label, value, depth }: { label: ReactNode; value: object; depth: number }) {
  const [open, setOpen] = useState(depth < OPEN_DEPTH);
  const entries: [string, unknown][] = Object.entries(value);
  const [left, right] = Array.isArray(value) ? ["[", "]"] : ["{", "}"];
  if (entries.length === 0) {
    return (
      <div className={css.line}>
        {label}
        {left}
        {right}
      </div>
    );
  }
  return (
    <div>
      <button type="button" className={css.fold} aria-expanded={open} onClick={() => setOpen(!open)}>
        {open ? <ChevronDown size={12} aria-hidden /> : <ChevronRight size={12} aria-hidden />}
        {label}
        {left}
        {!open && (
          <span className={css.folded}>
            {entries.length}
            {right}
          </span>
        )}
      </button>
      {open && (
        <div className={css.inside}>
          {entries.slice(0, SHOWN_MAX).map(([key, one]) => (
            <Node key={key} name={key} value={one} depth={depth + 1} />
          ))}
          {entries.length > SHOWN_MAX && <div className="ls-soft">{entries.length - SHOWN_MAX} more: see Raw</div>}
        </div>
      )}
      {open && <div className={css.line}>{right}</div>}
    </div>
  );
}

function Scalar({ value }: { value: unknown }) {
  if (typeof value === "string") return <span className={css.text}>{JSON.stringify(value)}</span>;
  if (typeof value === "number") return <span className={css.number}>{String(value)}</span>;
  return <span className={css.word}>{String(value)}</span>;
}
