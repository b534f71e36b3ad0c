// What the class accepts and what it throws: node api.cjs GLUE FOLDER, the folder being golden/files. Run by `cargo xtask parity`.
"use strict";

const assert = require("assert");
const fs = require("fs");
const path = require("path");
const { Model } = require(path.resolve(process.argv[2]));
const read = (file) => fs.readFileSync(path.join(process.argv[3], file));

const bytes = read("tiny-q8_0.gguf");
const config = read("tiny-kjv/adapter_config.json");
const weights = read("tiny-kjv/adapter_model.safetensors");
const tokens = [767, 261, 305, 71, 266, 78, 298];

/** Asserts that `f` throws an Error with this code. */
function throws(code, f) {
  assert.throws(f, (error) => {
    assert(error instanceof Error, String(error));
    assert.strictEqual(error.code, code, error.message);
    assert(error.message.length > 0);
    return true;
  });
}

// Twins: what differs in one thing from what is accepted below.
throws("unknown-format", () => new Model(new Uint8Array(0)));
throws("unknown-format", () => new Model(bytes.subarray(1)));
throws("option-value", () => new Model(bytes, "none"));
const model = new Model(bytes, "scalar");
assert(Model.kernels().includes("scalar"));

const bare = model.logitsDigest(tokens, 64);
throws("not-found", () => model.compose([["kjv", 0.7]]));
throws("adapter-config-json", () => model.addAdapter("kjv", config.subarray(1), weights));
assert.match(model.addAdapter("kjv", config, weights), /^sha256:[0-9a-f]{64}$/);

for (const stack of [undefined, "kjv", ["kjv"], [["kjv"]], [["kjv", "0.7"]], [["kjv", 0.7, 1]], [["kjv", 1e-60]]]) {
  throws("option-value", () => model.compose(stack));
}
throws("adapter-weight", () => model.compose([["kjv", NaN]]));
throws("duplicate-adapter", () => model.compose([["kjv", 0.7], ["kjv", 0.3]]));
assert.deepStrictEqual(model.logitsDigest(tokens, 64), bare, "a refusal changes nothing");

const id = model.compose([["kjv", 0.7]]);
const digest = model.logitsDigest(Uint32Array.from(tokens), 5, { activations: "int8", kv: "f16" });
assert.deepStrictEqual(Object.keys(digest), ["composition", "execution", "logits_blake3", "all_blake3", "kernels"]);
assert.strictEqual(digest.composition, id);
assert.deepStrictEqual(digest.kernels, { F32: "scalar-f32", Q8_0: "scalar-int8" });
assert.notStrictEqual(digest.all_blake3, bare.all_blake3);

throws("empty-prompt", () => model.logitsDigest([], 64));
throws("token-out-of-range", () => model.logitsDigest([1024], 64));
throws("option-value", () => model.logitsDigest(tokens, 64, { kv: "f64" }));
throws("option-value", () => model.logitsDigest(tokens, 64, { kv: 16 }));
throws("option-value", () => model.logitsDigest(tokens, 64, { cache: "f16" }));
throws("option-value", () => model.logitsDigest(tokens, 64, 16));

// f32 activations have an f32 cache, as on the command line.
const oracle = model.logitsDigest(tokens, 64, { activations: "f32" });
assert.deepStrictEqual(oracle, model.logitsDigest(tokens, 1, { activations: "f32", kv: "f32" }));
throws("profile-contradicts", () => model.logitsDigest(tokens, 64, { activations: "f32", kv: "f16" }));
assert.deepStrictEqual(model.logitsDigest(tokens, 64, null), model.logitsDigest(tokens, 64, {}));

model.compose([]);
assert.deepStrictEqual(model.logitsDigest(tokens, 64), bare);
