/** Series over time, with a scale and a legend. */
import { useMantineColorScheme, useComputedColorScheme } from "@mantine/core";
import { useEffect, useRef, useState } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import css from "./design.module.css";
import { moment } from "./format";

export interface Series {
  name: string;
  /** A colour of the vocabulary, such as --ls-in. */
  colour: string;
  values: (number | null)[];
  filled?: boolean;
}

interface TimeChartProps {
  /** In seconds since 1970. */
  times: number[];
  series: Series[];
  format: (value: number) => string;
  /** The values are counts, so the scale has no fractions. */
  whole?: boolean;
  height?: number;
  label: string;
}

/** Steps of the axis of times: its labels have no seconds. */
const TIME_STEPS = [1, 5, 10, 15, 30, 60, 120, 180, 240, 360, 720, 1440, 2880, 10_080].map((minutes) => minutes * 60);
/** 1, 2, 5, 10, 20 and so on. */
const WHOLE_STEPS = Array.from({ length: 16 }, (_, power) => [1, 2, 5].map((step) => step * 10 ** power)).flat();

export function TimeChart({ times, series, format, whole = false, height = 190, label }: TimeChartProps) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const scheme = useComputedColorScheme("light");
  useMantineColorScheme();
  const shape = series.map((one) => one.name).join("|");
  const [hovered, setHovered] = useState<number | null>(null);

  useEffect(() => {
    const element = place.current;
    if (element === null) return undefined;
    const made = new uPlot(
      options(element.clientWidth, height, series, format, whole, setHovered),
      [[], ...series.map(() => [])],
      element,
    );
    plot.current = made;
    const observer = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      made.destroy();
      plot.current = null;
    };
    // Made anew for other series or colours only; what they hold comes below.
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [shape, scheme, height]);

  useEffect(() => {
    plot.current?.setData([times, ...series.map((one) => one.values)]);
  }, [times, series, shape, scheme, height]);

  const at = hovered ?? times.length - 1;
  return (
    <>
      <div ref={place} role="img" aria-label={label} />
      <div className={css.legend}>
        {series.map((one) => {
          const value = one.values[at];
          return (
            <span key={one.name}>
              <i style={{ background: `var(${one.colour})` }} />
              {one.name}
              <b>{value === null || value === undefined ? "–" : format(value)}</b>
            </span>
          );
        })}
        <span className={css.legendTime}>{times[at] !== undefined && when(times[at])}</span>
      </div>
    </>
  );
}

/** The day and the time, without seconds. */
function when(at: number): string {
  return moment(new Date(at * 1000).toISOString()).slice(5, 16);
}

/** 14:30; at midnight the day. */
function clock(_: uPlot, ticks: number[]): string[] {
  return ticks.map((tick) => {
    const at = new Date(tick * 1000);
    if (at.getHours() === 0 && at.getMinutes() === 0) {
      return at.toLocaleDateString("en", { day: "numeric", month: "short" });
    }
    return `${String(at.getHours()).padStart(2, "0")}:${String(at.getMinutes()).padStart(2, "0")}`;
  });
}

function options(
  width: number,
  height: number,
  series: Series[],
  format: (value: number) => string,
  whole: boolean,
  onHover: (index: number | null) => void,
): uPlot.Options {
  const colour = (name: string): string => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const axis = { stroke: colour("--ls-soft"), font: "11px Inter, sans-serif", ticks: { show: false } };
  return {
    width,
    height,
    padding: [8, 20, 0, 0], // the last time is written around the end of the axis
    cursor: { points: { size: 6 }, drag: { x: false, y: false } },
    legend: { show: false },
    hooks: { setCursor: [(plot) => onHover(plot.cursor.idx ?? null)] },
    scales: { y: { range: (_, low, high) => [Math.min(low, 0), Math.max(high * 1.08, whole ? 1 : 1e-9) || 1] } },
    axes: [
      { ...axis, grid: { show: false }, size: 26, space: 70, incrs: TIME_STEPS, values: clock },
      {
        ...axis,
        size: 66,
        ...(whole ? { incrs: WHOLE_STEPS } : {}),
        grid: { stroke: colour("--ls-line"), width: 1 },
        values: (_, ticks) => ticks.map((tick) => format(tick)),
      },
    ],
    series: [
      {},
      ...series.map((one) => ({
        label: one.name,
        stroke: colour(one.colour),
        width: 1.6,
        fill: one.filled === true ? `${colour(one.colour)}22` : undefined,
        points: { show: false },
      })),
    ],
  };
}
