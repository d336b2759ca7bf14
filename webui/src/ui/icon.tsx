/** Icons, as paths of 24 by 24. */
import type { VNode } from "preact";

const PATHS = {
  chat: "M4 5h16v11H9l-5 4z",
  models: "M12 3l8 4.5v9L12 21l-8-4.5v-9zM4 7.5l8 4.5 8-4.5M12 12v9",
  machine: "M3 12h4l3-8 4 16 3-8h4",
  admin: "M8 15a4 4 0 1 1 3.5-2H21v3h-2v2h-3v-2h-4.5A4 4 0 0 1 8 15z",
  bench: "M4 20a9 9 0 1 1 16 0M12 14l4-5",
  compare: "M4 4h7v16H4zM13 4h7v16h-7z",
  plus: "M12 5v14M5 12h14",
  send: "M12 20V5M5 12l7-7 7 7",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  check: "M5 12l5 5 9-10",
  edit: "M4 20l1-5L16 4l4 4L9 19zM14 6l4 4",
  again: "M20 5v5h-5M20 10a8 8 0 1 0 0 5",
  left: "M15 5l-7 7 7 7",
  right: "M9 5l7 7-7 7",
  down: "M5 9l7 7 7-7",
  trash: "M4 6h16M9 6V4h6v2M6 6l1 14h10l1-14M10 10v6M14 10v6",
  fork: "M6 4v6a4 4 0 0 0 4 4h8M14 10l4 4-4 4M6 10v10",
  settings: "M4 7h10M18 7h2M4 17h2M10 17h10M14 4v6M10 14v6",
  attach: "M19 11l-8 8a5 5 0 0 1-7-7l9-9a3.5 3.5 0 0 1 5 5l-9 9a2 2 0 0 1-3-3l8-8",
  close: "M6 6l12 12M18 6L6 18",
  menu: "M4 6h16M4 12h16M4 18h16",
  search: "M10.5 4a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13zM15.5 15.5L20 20",
  chart: "M4 20V4M4 20h16M8 16v-5M12 16V8M16 16v-8",
  play: "M8 5l11 7-11 7z",
  more: "M6 12h.01M12 12h.01M18 12h.01",
  save: "M12 4v11M7 11l5 5 5-5M4 20h16",
  open: "M12 16V4M7 9l5-5 5 5M4 20h16",
  key: "M8 15a4 4 0 1 1 3.5-2H21v3h-2v2h-3v-2h-4.5A4 4 0 0 1 8 15z",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }): VNode {
  return (
    <svg class="svg" viewBox="0 0 24 24" aria-hidden="true" focusable="false">
      <path d={PATHS[name]} />
    </svg>
  );
}

interface ButtonProps {
  name: IconName;
  label: string;
  onClick?: (event: Event) => void;
  pressed?: boolean;
  disabled?: boolean;
  class?: string;
}

/** A button that is an icon; its label is read out and shown as a tip. */
export function IconButton({ name, label, onClick, pressed, disabled, class: more = "" }: ButtonProps): VNode {
  return (
    <button type="button" class={`icon ${more}`} title={label} aria-label={label} aria-pressed={pressed} disabled={disabled} onClick={onClick}>
      <Icon name={name} />
    </button>
  );
}
