import { Link } from "@tanstack/react-router";
import { Empty, Page } from "../design/parts";

export function Lost() {
  return (
    <Page title="No such page">
      <Empty title="There is no page at this address">
        <p>
          The <Link to="/">overview</Link> leads everywhere.
        </p>
      </Empty>
    </Page>
  );
}
