import type { VNode } from "preact";
export function MachineView(): VNode { return <></>; }
