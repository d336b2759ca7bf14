import { render } from "preact";
import { App } from "./app";
import { applyTheme } from "./preferences";
import "./style/base.css";
import "./style/chat.css";
import "./style/views.css";

applyTheme();
render(<App />, document.getElementById("app")!);
