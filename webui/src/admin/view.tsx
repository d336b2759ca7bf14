import type { VNode } from "preact";
export function AdminView(): VNode { return <></>; }
