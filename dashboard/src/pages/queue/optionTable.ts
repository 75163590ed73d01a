/** The options of a queue as the server describes them: their meaning, range and default come from its document. */
import { useQuery } from "@tanstack/react-query";
import { request } from "../../api/client";

export type Value = string | number | boolean | null;

export interface OptionInfo {
  name: string;
  kind: "number" | "flag" | "choice" | "text";
  meaning: string;
  default: Value;
  low?: number;
  high?: number;
  choices?: string[];
}

interface Property {
  description?: string;
  type?: string;
  enum?: string[];
  minimum?: number;
  maximum?: number;
  default?: Value;
}

interface OpenApi {
  components: { schemas: Record<string, { properties?: Record<string, Property> }> };
}

export const SECTIONS: { name: string; options: string[] }[] = [
  {
    name: "Delivery and retries",
    options: ["leaseTime", "retryLimit", "retryDelay", "retryBackoff", "retryDelayMax", "onExhausted", "deadQueue"],
  },
  {
    name: "When messages are seen",
    options: ["priority", "delayedProcessing", "windowBuffer", "maxWaitTimeSeconds", "expireSeconds", "onExpired"],
  },
  {
    name: "How much is kept, and how",
    options: [
      "maxSize",
      "retentionEnabled",
      "retentionSeconds",
      "completedRetentionSeconds",
      "partitions",
      "groupMode",
      "compression",
      "encryptionEnabled",
    ],
  },
];

export function optionTable(document: OpenApi): Map<string, OptionInfo> {
  const properties = document.components.schemas.Options?.properties ?? {};
  return new Map(Object.entries(properties).map(([name, property]) => [name, optionInfo(name, property)]));
}

function optionInfo(name: string, property: Property): OptionInfo {
  const kind = property.enum
    ? "choice"
    : property.type === "boolean"
      ? "flag"
      : property.type === "integer" || property.type === "number"
        ? "number"
        : "text";
  return {
    name,
    kind,
    meaning: (property.description ?? "").replaceAll("`", ""),
    default: property.default ?? null,
    low: property.minimum,
    high: property.maximum,
    choices: property.enum,
  };
}

export function useOptionTable(): Map<string, OptionInfo> | undefined {
  const { data } = useQuery({
    queryKey: ["openapi"],
    queryFn: () => request("GET", "/openapi.json") as Promise<OpenApi>,
    staleTime: Infinity,
    select: optionTable,
  });
  return data;
}

/** leaseTime: Lease time. */
export function spoken(name: string): string {
  const words = name.replace(/([A-Z])/g, (letter) => ` ${letter.toLowerCase()}`);
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** What is wrong with a value before the server is asked; null if nothing is. */
export function problem(option: OptionInfo, value: Value): string | null {
  if (option.kind !== "number") return null;
  if (typeof value !== "number") return "A number is needed";
  const { low, high } = option;
  if ((low !== undefined && value < low) || (high !== undefined && value > high)) {
    return `From ${low ?? "any"} to ${high ?? "any"}`;
  }
  return null;
}
