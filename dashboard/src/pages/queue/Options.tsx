import { Button, Group, NumberInput, Select, Switch, TextInput } from "@mantine/core";
import { useState } from "react";
import { send } from "../../api/client";
import { several } from "../../design/format";
import { Failure, Loading, Panel } from "../../design/parts";
import { useAct } from "../../design/useAct";
import { useMay } from "../../live/useWho";
import css from "./queue.module.css";
import { problem, SECTIONS, spoken, useOptionTable, type OptionInfo, type Value } from "./optionTable";
import type { QueueDetail } from "./QueuePage";

type Values = Record<string, Value>;

export function Options({ queue }: { queue: QueueDetail }) {
  const table = useOptionTable();
  const may = useMay(queue.name);
  const [changes, setChanges] = useState<Values>({});
  const { run, busy, error } = useAct(() => setChanges({}));
  if (table === undefined) return <Loading rows={10} />;
  const now = queue.config as unknown as Values;
  const changed = Object.entries(changes).filter(([name, value]) => value !== now[name]);
  const wrong = changed.some(([name, value]) => {
    const option = table.get(name);
    return option !== undefined && problem(option, value) !== null;
  });
  async function save(): Promise<string> {
    const options = Object.fromEntries(changed);
    await send("patch", "/api/v1/queues/{queue}", { params: { queue: queue.name }, body: { options } });
    return `${several(changed.length, "option")} of ${queue.name} changed.`;
  }
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        run(save);
      }}
    >
      {SECTIONS.map((section) => (
        <Panel key={section.name} title={section.name} flush>
          {section.options.map((name) => {
            const option = table.get(name);
            if (option === undefined) return null;
            const value = changes[name] ?? now[name] ?? null;
            return (
              <Line
                key={name}
                option={option}
                value={value}
                changed={name in changes && changes[name] !== now[name]}
                onChange={(given) => setChanges({ ...changes, [name]: given })}
              />
            );
          })}
        </Panel>
      ))}
      <Failure error={error} />
      {may("manage") && (
        <Group justify="flex-end" className={css.save}>
          <span className="ls-soft">{changed.length > 0 && `${several(changed.length, "change")} not saved`}</span>
          <Button variant="default" disabled={changed.length === 0} onClick={() => setChanges({})}>
            Discard
          </Button>
          <Button type="submit" disabled={changed.length === 0 || wrong} loading={busy}>
            Save
          </Button>
        </Group>
      )}
    </form>
  );
}

interface LineProps {
  option: OptionInfo;
  value: Value;
  changed: boolean;
  onChange: (value: Value) => void;
}

function Line({ option, value, changed, onChange }: LineProps) {
  return (
    <div className={`${css.option ?? ""} ${changed ? (css.changed ?? "") : ""}`}>
      <div>
        <label htmlFor={`option-${option.name}`} className={css.optionName}>
          {spoken(option.name)}
        </label>
        <div className={css.meaning} id={`meaning-${option.name}`}>
          {option.meaning} {value !== option.default && <em>Default: {shown(option.default)}.</em>}
        </div>
      </div>
      <Field option={option} value={value} onChange={onChange} />
    </div>
  );
}

function shown(value: Value): string {
  return value === null ? "none" : String(value);
}

function Field({ option, value, onChange }: Omit<LineProps, "changed">) {
  const shared = { id: `option-${option.name}`, "aria-describedby": `meaning-${option.name}` };
  if (option.kind === "flag") {
    return <Switch {...shared} checked={value === true} onChange={(event) => onChange(event.currentTarget.checked)} />;
  }
  if (option.kind === "choice") {
    return (
      <Select
        {...shared}
        data={option.choices ?? []}
        value={String(value)}
        allowDeselect={false}
        onChange={(given) => onChange(given)}
      />
    );
  }
  if (option.kind === "text") {
    const text = typeof value === "string" ? value : "";
    return <TextInput {...shared} value={text} onChange={(event) => onChange(event.currentTarget.value || null)} />;
  }
  return (
    <NumberInput
      {...shared}
      value={typeof value === "number" ? value : ""}
      onChange={(given) => onChange(typeof given === "number" ? given : null)}
      error={problem(option, value)}
      thousandSeparator=","
      hideControls
    />
  );
}
