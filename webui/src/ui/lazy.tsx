/** Views that are loaded when they are first shown. */
import type { ComponentType, VNode } from "preact";
import { useEffect, useState } from "preact/hooks";
import { t } from "../text";

export function Loading(): VNode {
  return <p class="hint center" role="status">{t("loading")}</p>;
}

export function lazy(load: () => Promise<ComponentType>): ComponentType {
  let loaded: ComponentType | undefined;
  return function Lazy(): VNode {
    const [, setReady] = useState(loaded !== undefined);
    const [failed, setFailed] = useState(false);
    useEffect(() => {
      if (loaded) return;
      load().then(
        (component) => {
          loaded = component;
          setReady(true);
        },
        () => setFailed(true),
      );
    }, []);
    if (failed) return <p class="state bad" role="alert">{t("error.outdated")}</p>;
    const Loaded = loaded;
    return Loaded ? <Loaded /> : <Loading />;
  };
}
