/** The addresses of the dashboard. What a page filters by stands in its address, so that every state can be linked. */
import { createRootRoute, createRoute, createRouter, lazyRouteComponent } from "@tanstack/react-router";
import { texts } from "./search";
import { Lost } from "./shell/Lost";
import { Shell } from "./shell/Shell";

const root = createRootRoute({ component: Shell, notFoundComponent: Lost });
const getParentRoute = () => root;

const overview = createRoute({
  getParentRoute,
  path: "/",
  validateSearch: texts("range"),
  component: lazyRouteComponent(() => import("./pages/overview/Overview"), "Overview"),
});

const queues = createRoute({
  getParentRoute,
  path: "/queues",
  validateSearch: texts("search", "sort"),
  component: lazyRouteComponent(() => import("./pages/queues/Queues"), "Queues"),
});

const queue = createRoute({
  getParentRoute,
  path: "/queues/$queue",
  validateSearch: texts("tab", "prefix", "only", "range"),
  component: lazyRouteComponent(() => import("./pages/queue/QueuePage"), "QueuePage"),
});

const messages = createRoute({
  getParentRoute,
  path: "/messages",
  validateSearch: texts("queue", "partition", "seq", "status", "span", "id", "live"),
  component: lazyRouteComponent(() => import("./pages/messages/Messages"), "Messages"),
});

const message = createRoute({
  getParentRoute,
  path: "/messages/$partitionId/$transactionId",
  component: lazyRouteComponent(() => import("./pages/message/MessagePage"), "MessagePage"),
});

const groups = createRoute({
  getParentRoute,
  path: "/groups",
  validateSearch: texts("search", "show"),
  component: lazyRouteComponent(() => import("./pages/groups/Groups"), "Groups"),
});

const group = createRoute({
  getParentRoute,
  path: "/groups/$group",
  validateSearch: texts("queue", "tab"),
  component: lazyRouteComponent(() => import("./pages/group/GroupPage"), "GroupPage"),
});

const deadLetters = createRoute({
  getParentRoute,
  path: "/dead-letters",
  validateSearch: texts("queue", "group", "by", "id"),
  component: lazyRouteComponent(() => import("./pages/deadLetters/DeadLetters"), "DeadLetters"),
});

const schedules = createRoute({
  getParentRoute,
  path: "/schedules",
  validateSearch: texts("tab", "queue", "key"),
  component: lazyRouteComponent(() => import("./pages/schedules/Schedules"), "Schedules"),
});

const traces = createRoute({
  getParentRoute,
  path: "/traces",
  validateSearch: texts("trace", "name"),
  component: lazyRouteComponent(() => import("./pages/traces/Traces"), "Traces"),
});

const pipelines = createRoute({
  getParentRoute,
  path: "/pipelines",
  component: lazyRouteComponent(() => import("./pages/pipelines/Pipelines"), "Pipelines"),
});

const load = createRoute({
  getParentRoute,
  path: "/load",
  validateSearch: texts("tab", "status", "queue"),
  component: lazyRouteComponent(() => import("./pages/load/Load"), "Load"),
});

const database = createRoute({
  getParentRoute,
  path: "/database",
  component: lazyRouteComponent(() => import("./pages/database/Database"), "Database"),
});

const system = createRoute({
  getParentRoute,
  path: "/system",
  validateSearch: texts("tab", "search", "who", "act", "queue"),
  component: lazyRouteComponent(() => import("./pages/system/System"), "System"),
});

const signIn = createRoute({
  getParentRoute,
  path: "/sign-in",
  validateSearch: texts("from"),
  component: lazyRouteComponent(() => import("./pages/sign-in/SignIn"), "SignIn"),
});

export const routes = {
  overview,
  queues,
  queue,
  messages,
  message,
  groups,
  group,
  deadLetters,
  schedules,
  traces,
  pipelines,
  load,
  database,
  system,
  signIn,
};

export const router = createRouter({
  routeTree: root.addChildren(Object.values(routes)),
  defaultPreload: "intent",
  scrollRestoration: true,
});

declare module "@tanstack/react-router" {
  interface Register {
    router: typeof router;
  }
}
