/** The command palette: pages, and whatever has the name or the id that is typed. */
import { Spotlight, type SpotlightActionData, type SpotlightActionGroupData } from "@mantine/spotlight";
import { useDebouncedValue } from "@mantine/hooks";
import { useNavigate } from "@tanstack/react-router";
import { CalendarClock, Layers, Mail, Route, Search, Users } from "lucide-react";
import { useState } from "react";
import { useAnswer } from "../live/useLive";
import { groupName } from "../pages/groups/words";
import { PLACES } from "./nav";

type Actions = (SpotlightActionData | SpotlightActionGroupData)[];

const SHOWN = 6;
const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;
const icon = { size: 18, "aria-hidden": true } as const;

export function Palette() {
  const [text, setText] = useState("");
  const [typed] = useDebouncedValue(text.trim(), 150);
  const actions = [...useFound(typed), { group: "Pages", actions: usePlaces() }];
  return (
    <Spotlight
      actions={actions}
      query={text}
      onQueryChange={setText}
      shortcut={["mod + K"]}
      nothingFound="Nothing has that name."
      highlightQuery
      scrollable
      maxHeight={420}
      attributes={{ content: { "aria-label": "Find anything" } }}
      searchProps={{
        leftSection: <Search size={18} aria-hidden />,
        placeholder: "A page, a queue, a group or an id",
        "aria-label": "Search",
      }}
    />
  );
}

function usePlaces(): SpotlightActionData[] {
  const navigate = useNavigate();
  return PLACES.map(({ to, name, about, icon: Icon }) => ({
    id: `page ${to}`,
    label: name,
    description: about,
    leftSection: <Icon {...icon} />,
    onClick: () => void navigate({ to }),
  }));
}

/** Queues, groups and recurring messages by a part of their name; a message or a trace by its whole id. */
function useFound(typed: string): Actions {
  const navigate = useNavigate();
  const enabled = typed.length > 0;
  const queues = useAnswer("/api/v1/status/queues", { query: { search: typed, limit: SHOWN } }, { enabled });
  const groups = useAnswer("/api/v1/consumer-groups", {}, { enabled });
  const crons = useAnswer("/api/v1/crons", { query: { limit: 500 } }, { enabled });
  if (!enabled) return [];
  const matches = (name: string): boolean => name.toLowerCase().includes(typed.toLowerCase());
  const found: SpotlightActionGroupData[] = [
    {
      group: "Queues",
      actions: (queues.data?.queues ?? []).map(({ name }) => ({
        id: `queue ${name}`,
        label: name,
        description: "Queue",
        leftSection: <Layers {...icon} />,
        onClick: () => void navigate({ to: "/queues/$queue", params: { queue: name } }),
      })),
    },
    {
      group: "Groups",
      actions: (groups.data ?? [])
        .filter(({ name }) => matches(groupName(name)))
        .slice(0, SHOWN)
        .map(({ name, queueName }) => ({
          id: `group ${name} ${queueName}`,
          label: groupName(name),
          description: `Group on ${queueName}`,
          leftSection: <Users {...icon} />,
          onClick: () => void navigate({ to: "/groups/$group", params: { group: name }, search: { queue: queueName } }),
        })),
    },
    {
      group: "Recurring messages",
      actions: (crons.data?.crons ?? [])
        .filter(({ name }) => matches(name))
        .slice(0, SHOWN)
        .map(({ name, queue }) => ({
          id: `cron ${name}`,
          label: name,
          description: `Recurring message for ${queue}`,
          leftSection: <CalendarClock {...icon} />,
          onClick: () => void navigate({ to: "/schedules", search: { tab: "cron" } }),
        })),
    },
    { group: "Ids", actions: UUID.test(typed) ? ids(typed, navigate) : [] },
  ];
  return found.filter(({ actions }) => actions.length > 0);
}

function ids(id: string, navigate: ReturnType<typeof useNavigate>): SpotlightActionData[] {
  return [
    {
      id: `message ${id}`,
      label: id,
      description: "The message with this id",
      leftSection: <Mail {...icon} />,
      onClick: () => void navigate({ to: "/messages", search: { id } }),
    },
    {
      id: `trace ${id}`,
      label: id,
      description: "The trace with this id",
      leftSection: <Route {...icon} />,
      onClick: () => void navigate({ to: "/traces", search: { trace: id } }),
    },
  ];
}
