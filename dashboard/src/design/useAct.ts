/** Doing something on the server: busy while it lasts, then everything shown is asked for again. */
import { notifications } from "@mantine/notifications";
import { useState } from "react";
import { refreshAll } from "../live/useLive";

interface Acting {
  run: (act: () => Promise<string>) => void;
  busy: boolean;
  error: unknown;
}

/** `act` says what it has done, in words for the reader. */
export function useAct(onDone?: () => void): Acting {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  async function perform(act: () => Promise<string>): Promise<void> {
    setBusy(true);
    setError(null);
    try {
      const done = await act();
      notifications.show({ message: done, color: "teal", autoClose: 5000 });
      onDone?.();
      await refreshAll();
    } catch (failure) {
      setError(failure);
    } finally {
      setBusy(false);
    }
  }
  return { run: (act) => void perform(act), busy, error };
}
