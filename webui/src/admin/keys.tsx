/** API keys: create, rotate, disable, revoke. A secret is shown once. */
import type { VNode } from "preact";
import { useState } from "preact/hooks";
import { call, setApiKey } from "../api/client";
import { isAdmin, managesKeys, me } from "../api/server";
import { formatTime, t } from "../text";
import { CopyButton } from "../ui/copy";
import { Dialog } from "../ui/dialog";
import { useLoad } from "../ui/load";
import { notifyError } from "../ui/notice";

interface Key {
  id: string;
  name: string;
  prefix: string;
  role: string;
  team: string | null;
  user: string | null;
  state: string;
  created: number;
  expires: number | null;
  disabled: boolean;
  models: string[] | null;
  key?: string;
}

export function KeysView(): VNode {
  const [revoked, setRevoked] = useState(false);
  const { data, error, reload } = useLoad(() => call<{ keys: Key[] }>(`admin/keys${revoked ? "?revoked=true" : ""}`), 0, [revoked]);
  const [secret, setSecret] = useState<Key | null>(null);
  const act = async (path: string, method: string, body?: unknown) => {
    try {
      const found = await call<Key>(path, { method, body });
      if (found.key) setSecret(found);
      // The server closes in a moment: who made its first key goes on with it.
      if (found.key && !me.value?.keys && found.role === "admin") {
        setApiKey(found.key);
        me.value = { ...me.value!, name: found.name, keys: true };
      }
    } catch (problem) {
      notifyError(problem);
    }
    await reload();
  };
  return (
    <>
      {error ? <p class="state bad" role="alert">{error}</p> : null}
      {managesKeys.value && data ? <NewKey first={!me.value?.keys && data.keys.length === 0} onCreate={(body) => act("admin/keys", "POST", body)} /> : null}
      <label class="check"><input type="checkbox" checked={revoked} onChange={(event) => setRevoked(event.currentTarget.checked)} /> <span>{t("keys.show-revoked")}</span></label>
      <div class="table" tabIndex={0} role="region" aria-label={t("admin.keys")}>
        <table>
          <thead><tr><th>{t("keys.name")}</th><th>{t("keys.prefix")}</th><th>{t("keys.role")}</th><th>{t("keys.team")}</th><th>{t("keys.state")}</th><th>{t("keys.expires")}</th><th>{t("models.actions")}</th></tr></thead>
          <tbody>
            {data?.keys.map((key) => (
              <tr key={key.id}>
                <td dir="auto">{key.name}{key.models ? <small> {key.models.join(", ")}</small> : null}</td>
                <td><code>{key.prefix}…</code></td>
                <td>{key.role}</td>
                <td dir="auto">{[key.team, key.user].filter(Boolean).join(" / ")}</td>
                <td><span class={`badge ${key.state}`}>{key.state}</span></td>
                <td>{key.expires ? formatTime(key.expires * 1000) : "–"}</td>
                <td>{managesKeys.value && key.state !== "revoked" ? <Actions name={key} act={act} /> : null}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {secret ? <Secret found={secret} onClose={() => setSecret(null)} /> : null}
    </>
  );
}

function Actions({ name: key, act }: { name: Key; act: (path: string, method: string, body?: unknown) => Promise<void> }): VNode {
  const path = `admin/keys/${encodeURIComponent(key.id)}`;
  const revoke = () => confirm(t("keys.revoke.sure", key.name)) && void act(path, "DELETE");
  const rotate = () => confirm(t("keys.rotate.sure", key.name)) && void act(`${path}/rotate`, "POST", { overlap: 3600 });
  return (
    <span class="row">
      <button type="button" onClick={rotate}>{t("keys.rotate")}</button>
      <button type="button" onClick={() => void act(path, "PATCH", { disabled: !key.disabled })}>{t(key.disabled ? "keys.enable" : "keys.disable")}</button>
      <button type="button" onClick={revoke}>{t("keys.revoke")}</button>
    </span>
  );
}

function NewKey({ first, onCreate }: { first: boolean; onCreate: (body: unknown) => Promise<void> }): VNode {
  const [name, setName] = useState("");
  const [role, setRole] = useState(first ? "admin" : "user");
  const [days, setDays] = useState("");
  const [models, setModels] = useState("");
  const roles = isAdmin.value ? ["user", "manager", "admin", "metrics", "auditor"] : ["user", "manager"];
  const create = async (event: Event) => {
    event.preventDefault();
    const expires = days ? { expires: Math.round(Date.now() / 1000 + Number(days) * 86_400) } : {};
    const patterns = models.split(/[\s,]+/).filter(Boolean);
    await onCreate({ name: name.trim(), role, ...expires, ...(patterns.length ? { models: patterns } : {}) });
    setName("");
  };
  return (
    <form class="card" onSubmit={create}>
      <h2>{t("keys.new")}</h2>
      {first ? <p class="state bad">{t("keys.first")}</p> : null}
      <div class="row">
        <label class="field grow"><span>{t("keys.name")}</span><input dir="auto" value={name} required maxLength={100} onInput={(event) => setName(event.currentTarget.value)} /></label>
        <label class="field"><span>{t("keys.role")}</span><select value={role} onChange={(event) => setRole(event.currentTarget.value)}>{roles.map((one) => <option key={one}>{one}</option>)}</select></label>
        <label class="field"><span>{t("keys.days")}</span><input type="number" min={1} value={days} onInput={(event) => setDays(event.currentTarget.value)} /></label>
        <label class="field"><span>{t("keys.models")}</span><input value={models} placeholder="*" onInput={(event) => setModels(event.currentTarget.value)} /></label>
        <button type="submit" class="primary field" disabled={!name.trim()}>{t("keys.create")}</button>
      </div>
    </form>
  );
}

function Secret({ found, onClose }: { found: Key; onClose: () => void }): VNode {
  return (
    <Dialog title={t("keys.secret", found.name)} onClose={onClose}>
      <p>{t("keys.secret.help")}</p>
      <p class="row"><span class="secret">{found.key}</span><CopyButton text={found.key!} /></p>
    </Dialog>
  );
}
