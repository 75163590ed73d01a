import { createTheme, type MantineColorsTuple } from "@mantine/core";

const lock: MantineColorsTuple = [
  "#e3f6f9",
  "#cdeaf0",
  "#9fd4df",
  "#6cbccd",
  "#43a8bd",
  "#2899b1",
  "#0b7f96",
  "#0b6e82",
  "#085b6c",
  "#044857",
];

/** From the lightest text to the deepest ground, as the vocabulary in tokens.css has them. */
const dark: MantineColorsTuple = [
  "#e6eaef",
  "#c3cbd5",
  "#9aa6b4",
  "#5d6a79",
  "#2f3944",
  "#252d36",
  "#1a2129",
  "#171d24",
  "#11171d",
  "#0f1419",
];

export const theme = createTheme({
  primaryColor: "lock",
  primaryShade: { light: 7, dark: 6 },
  autoContrast: true,
  colors: { lock, dark },
  fontFamily: "var(--ls-font)",
  fontFamilyMonospace: "var(--ls-mono)",
  headings: { fontFamily: "var(--ls-font)", fontWeight: "650" },
  defaultRadius: "md",
  cursorType: "pointer",
});

/** The nonce under which the page's policy allows style elements. */
export function styleNonce(): string {
  return document.querySelector<HTMLMetaElement>("meta[name=style-nonce]")?.content ?? "";
}
