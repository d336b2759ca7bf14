/** Where the person is: `#/VIEW/REST`. */
import { signal } from "@preact/signals";

export interface Route {
  view: string;
  rest: string;
}

function read(): Route {
  const [view = "", ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  let decoded = rest.join("/");
  try {
    decoded = decodeURIComponent(decoded);
  } catch {
    // as it stands
  }
  return { view: view || "chat", rest: decoded };
}

export const route = signal(read());

addEventListener("hashchange", () => (route.value = read()));

export function go(view: string, rest = "", replace = false): void {
  const hash = `#/${view}${rest ? `/${encodeURIComponent(rest)}` : ""}`;
  if (replace) {
    history.replaceState(null, "", hash);
    route.value = read();
  } else location.hash = hash;
}
