/** The pages, in the order in which somebody with trouble goes over them. */
import {
  Activity,
  CalendarClock,
  Database,
  Gauge,
  Layers,
  type LucideIcon,
  Mail,
  MailX,
  Route,
  Settings,
  Users,
  Workflow,
} from "lucide-react";

export interface Place {
  to: string;
  name: string;
  icon: LucideIcon;
  about: string;
}

export const SECTIONS: { name: string; places: Place[] }[] = [
  {
    name: "Now",
    places: [
      { to: "/", name: "Overview", icon: Activity, about: "What needs attention, rates and lag" },
      { to: "/queues", name: "Queues", icon: Layers, about: "Queues, partitions and their options" },
      { to: "/groups", name: "Groups", icon: Users, about: "Lag and leases of consumer groups; seek" },
      { to: "/dead-letters", name: "Dead letters", icon: MailX, about: "What failed, and sending it again" },
    ],
  },
  {
    name: "Messages",
    places: [
      { to: "/messages", name: "Messages", icon: Mail, about: "Browse what is stored; live tail" },
      { to: "/traces", name: "Traces", icon: Route, about: "The way of a message through queues" },
      { to: "/schedules", name: "Scheduled", icon: CalendarClock, about: "What comes when, and what recurs" },
      { to: "/pipelines", name: "Pipelines", icon: Workflow, about: "Steps and streams on Spark" },
    ],
  },
  {
    name: "Machinery",
    places: [
      { to: "/load", name: "Load", icon: Gauge, about: "Decisions, queued operations, maintenance mode" },
      { to: "/database", name: "Database", icon: Database, about: "Tables, long transactions, duties, verify" },
      { to: "/system", name: "System", icon: Settings, about: "Servers, settings, keys, audit log" },
    ],
  },
];

export const PLACES = SECTIONS.flatMap((section) => section.places);
