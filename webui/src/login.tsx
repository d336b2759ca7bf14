/** The dialog that asks for an API key. */
import type { VNode } from "preact";
import { useState } from "preact/hooks";
import { apiKey, loginReason, setApiKey } from "./api/client";
import { connect } from "./api/server";
import { t } from "./text";
import { Dialog } from "./ui/dialog";

export function Login({ onClose }: { onClose: () => void }): VNode {
  const [key, setKey] = useState("");
  const [failed, setFailed] = useState(loginReason.value === "rejected");
  const submit = async (event: Event) => {
    event.preventDefault();
    setApiKey(key.trim());
    if (await connect()) onClose();
    else setFailed(true);
  };
  const forget = () => {
    setApiKey("");
    location.reload();
  };
  return (
    <Dialog title={t("login")} onClose={onClose}>
      <form onSubmit={submit}>
        <p>{t("login.help")}</p>
        <label class="field">
          <span>{t("login.key")}</span>
          <input type="password" name="key" autocomplete="off" autofocus value={key} aria-invalid={failed} onInput={(event) => (setKey(event.currentTarget.value), setFailed(false))} />
        </label>
        {failed ? <p class="state bad" role="alert">{t("login.failed")}</p> : null}
        <div class="buttons">
          {apiKey.value ? <button type="button" onClick={forget}>{t("login.forget")}</button> : null}
          <button type="submit" class="primary" disabled={!key.trim()}>{t("login.enter")}</button>
        </div>
      </form>
    </Dialog>
  );
}
