import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { brotliCompressSync, gzipSync } from "node:zlib";
import react from "@vitejs/plugin-react";
import { defineConfig, type Plugin } from "vite";

const OUT = "../src/lockstep/server/dashboard";

/** The server sends what was packed here: it packs nothing itself. */
function packed(): Plugin {
  return {
    name: "packed",
    apply: "build",
    closeBundle() {
      const folder = join(import.meta.dirname, OUT, "assets");
      for (const name of readdirSync(folder)) {
        if (/\.(js|css|svg)$/.test(name)) {
          const plain = readFileSync(join(folder, name));
          writeFileSync(join(folder, `${name}.gz`), gzipSync(plain, { level: 9 }));
          writeFileSync(join(folder, `${name}.br`), brotliCompressSync(plain));
        }
      }
    },
  };
}

export default defineConfig({
  plugins: [react(), packed()],
  build: {
    outDir: OUT,
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    chunkSizeWarningLimit: 1500,
  },
  server: {
    // `npx vite` beside a server that `make run` started: changes show at once.
    proxy: { "/api": "http://127.0.0.1:6632", "/health": "http://127.0.0.1:6632" },
  },
});
