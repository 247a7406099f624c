// Bundles the pages' scripts and style, and the licences of what the script contains. The result is
// committed, because builds of dcpi need no npm; `cargo xtask face` runs this.
import { build } from "esbuild";
import { readFileSync, writeFileSync } from "node:fs";

await build({
  entryPoints: { app: "app/index.tsx", fleet: "app/fleet/index.tsx", style: "app/style.css" },
  outdir: "dist",
  bundle: true,
  minify: true,
  format: "iife",
  target: ["es2021"],
  jsx: "automatic",
  jsxImportSource: "preact",
  // Names of other alphabets in the script would make its bytes depend on the page's encoding.
  charset: "ascii",
  legalComments: "none",
});
const { version } = JSON.parse(readFileSync("node_modules/preact/package.json", "utf8"));
const licence = readFileSync("node_modules/preact/LICENSE", "utf8").trim();
writeFileSync("dist/licences.txt", `Preact ${version}, https://preactjs.com\n\n${licence}\n`);
