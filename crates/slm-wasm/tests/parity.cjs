// Runs cases on every kernel tier and prints one line of JSON for each: node parity.cjs GLUE CASES. `cargo xtask parity` compares them.
"use strict";

const fs = require("fs");
const path = require("path");
const { Model } = require(path.resolve(process.argv[2]));
const { model, adapters, cases, repeats } = JSON.parse(fs.readFileSync(process.argv[3], "utf8"));

for (const tier of Model.kernels()) {
  const opened = new Model(fs.readFileSync(model), tier);
  for (const [name, folder] of adapters) {
    const read = (file) => fs.readFileSync(path.join(folder, file));
    opened.addAdapter(name, read("adapter_config.json"), read("adapter_model.safetensors"));
  }
  for (const { stack, tokens, chunk, activations, kv } of cases) {
    const composed = opened.compose(stack);
    let digest;
    let ms = Infinity;
    for (let n = 0; n < repeats; n++) {
      const began = performance.now();
      digest = opened.logitsDigest(tokens, chunk, { activations, kv });
      ms = Math.min(ms, performance.now() - began);
    }
    if (digest.composition !== composed) {
      throw new Error(`composed ${composed}, ran ${digest.composition}`);
    }
    fs.writeSync(1, JSON.stringify({ tier, digest, ms }) + "\n");
  }
  opened.free();
}
