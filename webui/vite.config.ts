import { defineConfig, type Plugin } from "vite";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join, relative, resolve } from "node:path";

// The server reads the page's files from one flat folder: text compressed by both codings and nothing
// else, so that no byte is stored twice; fonts as they are. A rebuild is compared by the expanded
// bytes, because compressors differ between versions of Node.
const TARGET = process.env.WEBUI_OUT ?? resolve(import.meta.dirname, "../src/tidemill/webui");
const FOLDER = "webui";

function store(): Plugin {
  return {
    name: "tidemill-store",
    writeBundle(options, bundle) {
      rmSync(TARGET, { recursive: true, force: true });
      mkdirSync(TARGET, { recursive: true });
      const put = (name: string, bytes: Uint8Array) => {
        if (name.endsWith(".woff2")) {
          writeFileSync(join(TARGET, name), bytes);
          return;
        }
        const quality = { [constants.BROTLI_PARAM_QUALITY]: 11 };
        writeFileSync(join(TARGET, `${name}.br`), brotliCompressSync(bytes, { params: quality }));
        writeFileSync(join(TARGET, `${name}.gz`), gzipSync(bytes, { level: 9 }));
      };
      for (const path of Object.keys(bundle)) {
        put(path.replace(`${FOLDER}/`, ""), readFileSync(join(options.dir!, path)));
      }
      put("icon.svg", readFileSync(resolve(import.meta.dirname, "icon.svg")));
      put("licences.txt", Buffer.from(licences()));
      writeFileSync(join(TARGET, "source.sha256"), `${sourceDigest()}\n`);
    },
  };
}

/** A digest of the sources, by which a test finds built files that are older than they are. */
function sourceDigest(): string {
  const root = import.meta.dirname;
  const below = (folder: string): string[] =>
    readdirSync(folder, { withFileTypes: true }).flatMap((entry) =>
      entry.isDirectory() ? below(join(folder, entry.name)) : [join(folder, entry.name)],
    );
  const single = ["icon.svg", "index.html", "package-lock.json", "package.json", "tsconfig.json", "vite.config.ts"];
  const files = [...below(join(root, "src")), ...single.map((name) => join(root, name))];
  const names = files.map((file) => relative(root, file)).sort();
  const digest = createHash("sha256");
  for (const name of names) digest.update(`${name}\0`).update(readFileSync(join(root, name))).update("\0");
  return digest.digest("hex");
}

/** Licences of what the bundle contains. */
function licences(): string {
  const packages = JSON.parse(readFileSync(resolve(import.meta.dirname, "package.json"), "utf8"));
  const names = [...Object.keys(packages.dependencies), "@preact/signals-core"].sort();
  return names
    .map((name) => {
      const folder = resolve(import.meta.dirname, "node_modules", name);
      const file = existsSync(folder)
        ? readdirSync(folder).find((entry) => /^licen[sc]e/i.test(entry))
        : undefined;
      const version = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
      const text = file ? readFileSync(join(folder, file), "utf8") : `${version.license}\n`;
      return `${name} ${version.version}\n\n${text.trim()}\n`;
    })
    .join(`\n${"-".repeat(80)}\n\n`);
}

/** KaTeX's fonts as WOFF2 alone, which every browser that runs this page reads. */
function woff2(): Plugin {
  return {
    name: "tidemill-woff2",
    enforce: "pre",
    transform(code, id) {
      if (!id.includes("katex") || !/\.css$/.test(id)) return null;
      return code.replace(/,\s*url\([^)]*\.(?:woff|ttf)\)\s*format\("[a-z]+"\)/g, "");
    },
  };
}

export default defineConfig({
  base: "./",
  plugins: [woff2(), store()],
  server: { proxy: Object.fromEntries(["/v1", "/admin", "/metrics", "/readyz", "/api"].map((p) => [p, "http://127.0.0.1:8000"])) },
  build: {
    target: "es2022",
    outDir: "dist",
    assetsDir: FOLDER,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
});
