/** A filter that stands in the address: typing changes it once the reader pauses. */
import { TextInput, type TextInputProps } from "@mantine/core";
import { useDebouncedCallback } from "@mantine/hooks";
import { Search } from "lucide-react";

interface FilterTextProps extends Omit<TextInputProps, "onChange" | "value" | "defaultValue"> {
  value: string | undefined;
  label: string;
  onType: (value: string | undefined) => void;
}

const PAUSE_MS = 250;

export function FilterText({ value, label, onType, ...others }: FilterTextProps) {
  const type = useDebouncedCallback((typed: string) => onType(typed.trim() || undefined), PAUSE_MS);
  return (
    <TextInput
      // A filter that is removed elsewhere, such as by a link, leaves the field empty.
      key={value === undefined ? "empty" : "given"}
      defaultValue={value}
      onChange={(event) => type(event.currentTarget.value)}
      label={label}
      size="sm"
      leftSection={<Search size={14} />}
      {...others}
    />
  );
}
