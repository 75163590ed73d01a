/** A line without axes, for a row of a table or a figure. */
interface SparklineProps {
  values: number[];
  label: string;
  colour?: string;
  width?: number;
  height?: number;
  /** Whether it is as wide as what it stands in. */
  fill?: boolean;
}

export function Sparkline({
  values,
  label,
  colour = "var(--ls-in)",
  width = 110,
  height = 26,
  fill = false,
}: SparklineProps) {
  if (values.length < 2) return <svg width={fill ? "100%" : width} height={height} aria-hidden="true" />;
  const top = Math.max(...values, 1e-9);
  const step = width / (values.length - 1);
  const points = values.map(
    (value, index) => `${round(index * step)},${round(height - 2 - (value / top) * (height - 5))}`,
  );
  return (
    <svg
      width={fill ? "100%" : width}
      height={height}
      viewBox={`0 0 ${width} ${height}`}
      preserveAspectRatio="none"
      role="img"
      aria-label={label}
    >
      <polygon points={`0,${height} ${points.join(" ")} ${width},${height}`} fill={colour} opacity={0.12} />
      <polyline
        points={points.join(" ")}
        fill="none"
        stroke={colour}
        strokeWidth={1.5}
        strokeLinejoin="round"
        vectorEffect="non-scaling-stroke"
      />
    </svg>
  );
}

function round(value: number): string {
  return value.toFixed(1);
}
