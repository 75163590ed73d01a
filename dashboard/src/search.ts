/** What stands in the address of a page. Anything may be typed there, so each value is checked. */

export type Given = Record<string, unknown>;

/** A reader of addresses that knows these names, and drops others. */
export function texts<K extends string>(...names: K[]): (given: Given) => Partial<Record<K, string>> {
  return (given) => {
    const found: Partial<Record<K, string>> = {};
    for (const name of names) {
      const value = text(given[name]);
      if (value !== undefined) found[name] = value;
    }
    return found;
  };
}

function text(given: unknown): string | undefined {
  if (typeof given === "number" || typeof given === "boolean") return String(given);
  return typeof given === "string" && given !== "" ? given : undefined;
}

/** The value if it is one of those that are known. */
export function one<T extends string>(given: string | undefined, known: readonly T[], otherwise: T): T {
  return known.find((value) => value === given) ?? otherwise;
}

/** A path of this server, whatever stands in the address: nobody is led elsewhere. */
export function ownPath(given: string | undefined): string {
  return given !== undefined && /^\/(?![/\\])/.test(given) ? given : "/";
}
