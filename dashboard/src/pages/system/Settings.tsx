import type { Schemas } from "../../api/client";
import { createColumnHelper, DataTable } from "../../design/DataTable";
import { FilterText } from "../../design/FilterText";
import { Badge, Empty, Failure, Filters, Loading, Panel } from "../../design/parts";
import { useAnswer } from "../../live/useLive";
import { routes } from "../../router";

type SettingRow = Schemas["SettingRow"];

const column = createColumnHelper<SettingRow>();
const COLUMNS = [
  column.accessor("name", { header: "Setting", cell: (one) => <span className="ls-mono">{one.getValue()}</span> }),
  column.accessor("value", {
    header: "Value",
    cell: (one) => <SettingValue value={one.getValue()} />,
  }),
  column.accessor("source", {
    header: "From",
    cell: (one) => <Badge tone={one.getValue() === "default" ? "idle" : "healthy"}>{one.getValue()}</Badge>,
  }),
  column.accessor("meaning", {
    header: "Meaning",
    cell: (one) => <span title={one.getValue()}>{one.getValue().replaceAll("`", "")}</span>,
    meta: { wide: true, width: "45%" },
    enableSorting: false,
  }),
];

function SettingValue({ value }: { value: unknown }) {
  if (value === null || value === "") return <span className="ls-soft">not set</span>;
  return <span className="ls-mono">{typeof value === "string" ? value : JSON.stringify(value)}</span>;
}

export function Settings() {
  const { search } = routes.system.useSearch();
  const navigate = routes.system.useNavigate();
  const { data, error } = useAnswer("/api/v1/system/settings");
  const text = search?.toLowerCase() ?? "";
  const rows = data?.settings.filter((row) => `${row.name} ${row.meaning}`.toLowerCase().includes(text));
  return (
    <>
      <Filters>
        <FilterText
          label="Setting"
          value={search}
          onType={(typed) => void navigate({ search: (before) => ({ ...before, search: typed }), replace: true })}
          w={260}
        />
      </Filters>
      <Panel flush>
        <Failure error={error} />
        {rows === undefined && error === null && <Loading rows={8} />}
        {rows !== undefined && (
          <DataTable
            rows={rows}
            columns={COLUMNS}
            rowId={(row) => row.name}
            label="Settings"
            height={640}
            empty={<Empty title="No setting matches" />}
          />
        )}
      </Panel>
    </>
  );
}
