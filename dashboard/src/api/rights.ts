/** What the server says one may do, so that pages leave out what would be refused. The server decides by itself. */
import type { Schemas } from "./client";

export type Right = Schemas["WhoAmIAnswer"]["rights"][number];

const IMPLIED: Partial<Record<Right, Right[]>> = {
  configure: ["configure", "manage"],
  admin: ["push", "pop", "browse", "manage", "configure", "admin"],
};

/** The rights that rules give on some queue. */
export function givenBy(rules: readonly string[]): Set<string> {
  return new Set(rules.flatMap((rule) => rightsOf(rule.split(" ")[0] ?? "")));
}

function rightsOf(text: string): string[] {
  return text.split(",").flatMap((one) => IMPLIED[one as Right] ?? [one]);
}

/** Whether the rules, such as `push,pop orders.*`, give a right on a queue. */
export function may(rules: readonly string[], right: Right, queue: string): boolean {
  return rules.some((rule) => {
    const [rights = "", pattern = ""] = rule.split(" ");
    return rightsOf(rights).includes(right) && matches(pattern, queue);
  });
}

/** A star stands for any text. */
function matches(pattern: string, name: string): boolean {
  const pieces = pattern.split("*");
  const first = pieces[0] ?? "";
  const last = pieces.at(-1) ?? "";
  if (pieces.length === 1) return name === pattern;
  if (name.length < first.length + last.length || !name.startsWith(first) || !name.endsWith(last)) return false;
  let at = first.length;
  const end = name.length - last.length;
  for (const piece of pieces.slice(1, -1)) {
    const found = name.indexOf(piece, at);
    if (found < 0 || found + piece.length > end) return false;
    at = found + piece.length;
  }
  return true;
}
