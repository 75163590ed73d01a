import { TextInput } from "@mantine/core";
import { useState } from "react";
import { ApiError, send } from "../../api/client";
import { Confirm } from "../../design/Confirm";
import { localInput, moment } from "../../design/format";
import type { ScheduleRow } from "./Waiting";

interface RescheduleProps {
  row: ScheduleRow;
  onClose: () => void;
}

export function Reschedule({ row, onClose }: RescheduleProps) {
  const [local, setLocal] = useState(localInput(new Date(row.dueAt)));
  async function act(): Promise<string> {
    const at = new Date(local);
    if (Number.isNaN(at.getTime())) throw new ApiError(400, "invalid_request", "This is not a time.");
    const body = { deliverAt: at.toISOString() };
    const moved = await send("patch", "/api/v1/schedules/{id}", { params: { id: row.id }, body });
    return `The message is due ${moment(moved.dueAt)}.`;
  }
  return (
    <Confirm title="Another time" verb="Move it" act={act} onClose={onClose}>
      <TextInput
        type="datetime-local"
        step={1}
        label="Due"
        description="Your local time"
        value={local}
        onChange={(event) => setLocal(event.currentTarget.value)}
        data-autofocus
      />
    </Confirm>
  );
}
