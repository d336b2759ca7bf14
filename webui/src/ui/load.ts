/** Data of a view: loaded when it is shown, again at an interval while it is shown and visible. */
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { errorText } from "./notice";

export interface Loaded<T> {
  data: T | undefined;
  error: string;
  reload: () => Promise<void>;
}

/** @param seconds between two loads; 0: once. A page that is not visible loads nothing. */
export function useLoad<T>(load: () => Promise<T>, seconds = 0, keys: unknown[] = []): Loaded<T> {
  const [data, setData] = useState<T>();
  const [error, setError] = useState("");
  const latest = useRef(load);
  latest.current = load;
  const alive = useRef(true);
  const reload = useCallback(async () => {
    try {
      const found = await latest.current();
      if (!alive.current) return;
      setData(found);
      setError("");
    } catch (problem) {
      if (alive.current) setError(errorText(problem));
    }
  }, []);
  useEffect(() => {
    alive.current = true;
    let timer = 0;
    const round = async () => {
      if (!document.hidden) await reload();
      if (alive.current && seconds) timer = window.setTimeout(round, seconds * 1000);
    };
    void round();
    return () => {
      alive.current = false;
      clearTimeout(timer);
    };
  }, [seconds, reload, ...keys]);
  return { data, error, reload };
}
