/** What can be done to a row: buttons, or a menu where there is little room. */
import { ActionIcon, Button, Group, Menu } from "@mantine/core";
import { EllipsisVertical } from "lucide-react";

export interface RowAct {
  name: string;
  act: () => void;
}

export function RowActs({ acts, label }: { acts: RowAct[]; label: string }) {
  if (acts.length === 0) return null;
  return (
    <>
      <Group gap={6} justify="flex-end" wrap="nowrap" visibleFrom="sm">
        {acts.map(({ name, act }) => (
          <Button key={name} size="compact-xs" variant="default" onClick={act}>
            {name}
          </Button>
        ))}
      </Group>
      <Menu position="bottom-end">
        <Menu.Target>
          <ActionIcon variant="subtle" color="gray" hiddenFrom="sm" aria-label={label}>
            <EllipsisVertical size={16} />
          </ActionIcon>
        </Menu.Target>
        <Menu.Dropdown>
          {acts.map(({ name, act }) => (
            <Menu.Item key={name} onClick={act}>
              {name}
            </Menu.Item>
          ))}
        </Menu.Dropdown>
      </Menu>
    </>
  );
}
