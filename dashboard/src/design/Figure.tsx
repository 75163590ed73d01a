/** One number that matters, with its name. */
import { Link } from "@tanstack/react-router";
import type { ReactNode } from "react";
import css from "./design.module.css";
import type { Tone } from "./parts";
import { Sparkline } from "./Sparkline";

interface FigureProps {
  label: string;
  value: string;
  unit?: string;
  hint?: ReactNode;
  tone?: Tone;
  series?: number[];
  colour?: string;
  /** Where more about it stands. */
  to?: string;
  search?: Record<string, unknown>;
}

export function Figure({ label, value, unit, hint, tone, series, colour, to, search }: FigureProps) {
  const inside = (
    <>
      <span className={css.figureLabel}>{label}</span>
      <span className={`${css.figureValue ?? ""} ${(tone && css[tone]) ?? ""}`}>
        {value}
        {unit !== undefined && <span className={css.figureUnit}>{unit}</span>}
      </span>
      {hint !== undefined && <span className={css.figureHint}>{hint}</span>}
      {series !== undefined && <Sparkline values={series} colour={colour} label={`${label} over time`} fill />}
    </>
  );
  if (to === undefined) return <div className={css.figure}>{inside}</div>;
  return (
    <Link to={to} search={search} className={css.figure}>
      {inside}
    </Link>
  );
}

export function Figures({ children }: { children: ReactNode }) {
  return <div className={css.figures}>{children}</div>;
}
