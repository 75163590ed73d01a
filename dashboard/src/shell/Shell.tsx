/** What surrounds every page: where one can go, whether what is shown is live, and the search. */
import { ActionIcon, AppShell, Burger, Kbd, Tooltip, UnstyledButton, useMantineColorScheme } from "@mantine/core";
import { useComputedColorScheme } from "@mantine/core";
import { useDisclosure, useHotkeys } from "@mantine/hooks";
import { spotlight } from "@mantine/spotlight";
import { Link, Outlet, useRouterState } from "@tanstack/react-router";
import { Moon, Search, ShieldAlert, Sun } from "lucide-react";
import { useEffect } from "react";
import { useLive, useStreamState } from "../live/useLive";
import { Badge } from "../design/parts";
import { Caller } from "./Caller";
import { Palette } from "./Palette";
import { SECTIONS } from "./nav";
import css from "./shell.module.css";

export function Shell() {
  const [opened, { toggle, close }] = useDisclosure();
  const path = useRouterState({ select: (state) => state.location.pathname });
  useEffect(close, [path, close]);
  useHotkeys([["/", () => spotlight.open()]]);
  return (
    <AppShell header={{ height: 52 }} navbar={{ width: 216, breakpoint: "sm", collapsed: { mobile: !opened } }}>
      <AppShell.Header className={css.header}>
        <a href="#main" className={css.skip}>
          Skip to the page
        </a>
        <Burger opened={opened} onClick={toggle} hiddenFrom="sm" size="sm" aria-label="Pages" />
        <Link to="/" className={css.brand}>
          <svg viewBox="0 0 32 32" width="24" height="24" aria-hidden="true">
            <rect width="32" height="32" rx="8" fill="var(--ls-accent)" />
            <path d="M8 10h10M8 16h16M8 22h6" stroke="var(--ls-surface)" strokeWidth="3" strokeLinecap="round" />
          </svg>
          Lockstep
        </Link>
        <UnstyledButton className={css.search} onClick={() => spotlight.open()} aria-keyshortcuts="/">
          <Search size={15} aria-hidden />
          <span className={css.searchText}>Search queues, groups, messages…</span>
          <Kbd size="xs" className={css.key}>
            /
          </Kbd>
        </UnstyledButton>
        <StreamBadge />
        <Caller />
        <Scheme />
      </AppShell.Header>
      <AppShell.Navbar className={css.nav} aria-label="Pages">
        <div>
          {SECTIONS.map((section) => (
            <div key={section.name} className={css.section}>
              <div className={css.sectionName}>{section.name}</div>
              {section.places.map(({ to, name, icon: Icon }) => (
                <Link
                  key={to}
                  to={to}
                  className={css.place}
                  activeOptions={{ exact: to === "/", includeSearch: false }}
                  activeProps={{ className: css.here, "aria-current": "page" }}
                >
                  <Icon size={16} strokeWidth={1.9} aria-hidden />
                  {name}
                </Link>
              ))}
            </div>
          ))}
        </div>
        <div className={css.foot}>
          <a href="/docs/">Documentation</a>
          <a href="/docs/api">HTTP routes</a>
          <a href="/metrics/prometheus">Metrics</a>
        </div>
      </AppShell.Navbar>
      <AppShell.Main id="main">
        <Insecure />
        <Outlet />
      </AppShell.Main>
      <Palette />
    </AppShell>
  );
}

/** Over every page, as long as it is so. */
function Insecure() {
  // Followed on every page, so that what says Live is right on all of them.
  const { data } = useLive("/health");
  if (data?.insecure !== true) return null;
  return (
    <p role="alert" className={css.insecure}>
      <ShieldAlert size={18} aria-hidden />
      This server asks nobody who they are: everybody who reaches it over a network may do everything.
    </p>
  );
}

function StreamBadge() {
  const state = useStreamState();
  if (state === "live") return <Badge tone="healthy">Live</Badge>;
  if (state === "connecting") return <Badge tone="idle">Connecting</Badge>;
  return (
    <Tooltip label="What is shown may be old. It goes on by itself once the server answers.">
      <span role="status">
        <Badge tone="dead">Reconnecting</Badge>
      </span>
    </Tooltip>
  );
}

function Scheme() {
  const { setColorScheme } = useMantineColorScheme();
  const dark = useComputedColorScheme("light") === "dark";
  const label = dark ? "Light colours" : "Dark colours";
  return (
    <Tooltip label={label}>
      <ActionIcon
        variant="subtle"
        color="gray"
        size="lg"
        aria-label={label}
        onClick={() => setColorScheme(dark ? "light" : "dark")}
      >
        {dark ? <Sun size={17} /> : <Moon size={17} />}
      </ActionIcon>
    </Tooltip>
  );
}
