import { routes } from "../../router";
import { Page, Columns } from "../../design/parts";
import { Attention } from "./Attention";
import { Busiest } from "./Busiest";
import { History } from "./History";
import { RequestHistory } from "./RequestHistory";
import { Now } from "./Now";
import { RangeControl, rangeOf } from "./Range";

export function Overview() {
  const { range } = routes.overview.useSearch();
  const navigate = routes.overview.useNavigate();
  const chosen = rangeOf(range);
  return (
    <Page
      title="Overview"
      actions={<RangeControl value={chosen} onChange={(value) => void navigate({ search: { range: value } })} />}
    >
      <Attention />
      <Now />
      <Columns>
        <History range={chosen} />
        <RequestHistory range={chosen} />
      </Columns>
      <Busiest />
    </Page>
  );
}
