import type { VNode } from "preact";
export function CompareView(): VNode { return <></>; }
