//! The same composition in another store, and the same base through every format.

mod common;

use std::sync::Arc;

use common::bend::Bend;
use common::{
    Bits, HfFolder, LIMITS, Medium, NOW, Stock, active_bits, adapter_files, bits_of, blob_path,
    code, compose, composition, name, open, resolve, runtime, stocked, tiny,
};
use slm_format::gguf::Value;
use slm_format::{Digest, Encoding};
use slm_golden::TINY_Q8_0;
use slm_manifest::Manifest;
use slm_quant::{Kernels, QMatrix};
use slm_runtime::load::Base;
use slm_runtime::runtime::Reference;
use slm_store::{FsStorage, MemStorage, NameKind};

const PAIR: [(&str, f32); 2] = [("kjv", 0.7), ("python", 0.3)];

/// A store with the pair composed, its manifest, and the bits it gives.
fn source() -> (MemStorage, Stock, Manifest, Bits) {
    let storage = MemStorage::new();
    let (runtime, stock) = stocked(storage.clone());
    let composed = compose(&runtime, "pair", &PAIR);
    runtime.activate_composition(&Reference::Text("pair".to_owned()), NOW).expect("active");
    let bits = active_bits(&runtime);
    (storage, stock, composed.manifest, bits)
}

/// Copies the files behind `blobs`, and nothing else: no names, no history.
fn copy<S: Medium>(from: &MemStorage, to: &S, blobs: &[Digest]) {
    let files = from.files();
    for &blob in blobs {
        let path = blob_path(blob);
        to.put(&path, &files[&path]);
    }
}

fn needed(stock: &Stock, manifest: &Manifest) -> Vec<Digest> {
    let mut blobs = vec![stock.base.blob];
    blobs.extend(manifest.adapters.iter().map(|entry| entry.file_hash));
    blobs
}

fn reproduces<S: Medium>(storage: S, document: &[u8]) {
    let (origin, stock, manifest, bits) = source();
    copy(&origin, &storage, &needed(&stock, &manifest));
    let fresh = runtime(storage);
    let activation =
        fresh.activate_composition(&Reference::Manifest(document.to_vec()), NOW).expect("active");
    assert_eq!(activation.composition, manifest.composition_id());
    assert_eq!(activation.composition, composition(&tiny(), &PAIR).id());
    assert_eq!(activation.manifest, manifest.digest());
    assert_eq!((activation.previous, activation.changed), (None, true));
    assert_eq!(active_bits(&fresh), bits);
    for kind in [NameKind::Base, NameKind::Adapter, NameKind::Composition] {
        assert!(fresh.store().names(kind).expect("names").is_empty(), "{kind:?}");
    }
    // The id is enough from here on, and the manifest is a blob of this store.
    let by_id = Reference::Text(activation.composition.to_string());
    assert_eq!(fresh.manifest_by_reference(&by_id).expect("a manifest"), manifest);
    let by_digest = Reference::Text(activation.manifest.to_string());
    assert!(!fresh.activate_composition(&by_digest, NOW).expect("active").changed);
}

fn a_toml_manifest_and_its_blobs_are_enough<S: Medium>(storage: S) {
    let (_, _, manifest, _) = source();
    reproduces(storage, manifest.to_toml().as_bytes());
}

fn a_json_manifest_and_its_blobs_are_enough<S: Medium>(storage: S) {
    let (_, _, manifest, _) = source();
    reproduces(storage, &manifest.to_canonical_json());
}

/// Each blob is needed: without one of them the fresh store refuses, and with it again it does not.
fn every_blob_is_needed<S: Medium>(storage: S) {
    let (origin, stock, manifest, _) = source();
    let blobs = needed(&stock, &manifest);
    copy(&origin, &storage, &blobs);
    let document = Reference::Manifest(manifest.to_canonical_json());
    for (at, expected) in [(0, "base-absent"), (1, "adapter-absent"), (2, "adapter-absent")] {
        storage.delete(&blob_path(blobs[at]));
        let fresh = runtime(storage.again());
        assert_eq!(code(fresh.activate_composition(&document, NOW)), expected, "blob {at}");
        assert_eq!(code(fresh.status()), "none-active");
        copy(&origin, &storage, &blobs[at..=at]);
    }
    runtime(storage).activate_composition(&document, NOW).expect("active");
}

fn importing_again_gives_the_same_blobs<S: Medium>(storage: S) {
    let (origin, stock, manifest, bits) = source();
    let (again, same) = stocked(storage);
    assert_eq!(same.base, stock.base);
    for (a, b) in [(&same.kjv, &stock.kjv), (&same.python, &stock.python)] {
        assert_eq!((a.adapter, a.base, a.blob), (b.adapter, b.base, b.blob));
    }
    let composed = compose(&again, "pair", &PAIR);
    assert_eq!(composed.manifest, manifest);
    assert_eq!(composed.manifest_digest, manifest.digest());
    // Blob for blob, byte for byte, as in the first store; the store's own generation records aside.
    let (first, second) = (origin.files(), again.store().storage().files());
    for blob in needed(&stock, &manifest) {
        assert_eq!(first[&blob_path(blob)], second[&blob_path(blob)]);
    }
    again.activate_composition(&Reference::Text("pair".to_owned()), NOW).expect("active");
    assert_eq!(active_bits(&again), bits);
    // And once more in the same store: nothing changes.
    let files = again.store().storage().files();
    let base = again.load_base(&tiny(), &name("tiny"), NOW, false).expect("an import");
    assert!(!base.changed);
    assert!(!common::import(&again, "kjv", "tiny").expect("an import").changed);
    assert!(!compose(&again, "pair", &PAIR).changed);
    assert_eq!(again.store().storage().files(), files);
}

/// The same weights with another tokenizer are the same base and another composition; neither gets the other's tokenizer, whatever is
/// resident.
fn a_base_with_two_tokenizers<S: Medium>(storage: S) {
    let bend = Bend::of(TINY_Q8_0).set("tokenizer.ggml.eos_token_id", Value::U32(1));
    let other = open(&bend.to_bytes()).expect("a base");
    assert_eq!(other.id(), tiny().id());
    assert_ne!(other.tokenizer_id(), tiny().tokenizer_id());
    let (first, stock) = stocked(storage);
    let imported = first.load_base(&other, &name("other"), NOW, false).expect("an import");
    assert_eq!((imported.base, imported.tokenizer), (tiny().id(), other.tokenizer_id()));
    assert_ne!(imported.blob, stock.base.blob);
    let a = compose(&first, "a", &[("kjv", 1.0)]);
    // What was imported for one tokenizer is refused on the other: it learned other words. Imported for this one, it is the same adapter.
    let with = |adapter| first.compose(&name("b"), "other", &[(adapter, 1.0)], NOW, false);
    assert_eq!(code(with("kjv")), "tokenizer-mismatch");
    let (config, weights) = adapter_files("kjv");
    let read = |shape: &slm_overlay::BaseShape<'_>| resolve(config, weights, shape);
    let again = first.load_adapter(&read, "other", &name("kjv2"), NOW, false).expect("an import");
    assert_eq!(again.adapter, stock.kjv.adapter);
    assert_ne!(again.blob, stock.kjv.blob);
    let b = with("kjv2").expect("a composition");
    assert_ne!(a.composition, b.composition);
    assert_eq!(b.manifest.tokenizer_id, other.tokenizer_id());
    let mut bits = Vec::new();
    for (composed, tokenizer, eos) in [
        (&a, tiny().tokenizer_id(), tiny().tokenizer().expect("a tokenizer").eos_ids().to_vec()),
        (&b, other.tokenizer_id(), vec![1]),
        (&a, tiny().tokenizer_id(), tiny().tokenizer().expect("a tokenizer").eos_ids().to_vec()),
    ] {
        let document = Reference::Manifest(composed.manifest.to_canonical_json());
        let activation = first.activate_composition(&document, NOW).expect("active");
        assert_eq!(activation.composition, composed.composition);
        let info = first.query_tokenizer_info().expect("a tokenizer");
        assert_eq!((info.tokenizer, info.eos), (tokenizer, eos));
        bits.push(active_bits(&first));
    }
    assert!(bits[0] == bits[1] && bits[1] == bits[2], "a tokenizer is no arithmetic");
    // Without names, the blob with the tokenizer is found; without that blob, the other one says why it will not do.
    let storage = MemStorage::new();
    let files = first.store().storage().files();
    for blob in [stock.base.blob, imported.blob, again.blob] {
        storage.put(&blob_path(blob), &files[&blob_path(blob)]);
    }
    let document = Reference::Manifest(b.manifest.to_canonical_json());
    runtime(storage.clone()).activate_composition(&document, NOW).expect("active");
    storage.delete(&blob_path(imported.blob));
    assert_eq!(code(runtime(storage).activate_composition(&document, NOW)), "tokenizer-mismatch");
}

/// A manifest's list of encodings is in one order however many there are.
fn a_base_of_several_encodings<S: Medium>(storage: S) {
    let mut bend = Bend::of(TINY_Q8_0);
    let norm = bend.tensor("output_norm.weight");
    norm.encoding = Encoding::F16;
    norm.data = [0x00, 0x3c].repeat(256).into();
    let base = open(&bend.to_bytes()).expect("a base");
    assert_eq!(base.quantization().len(), 3);
    let fresh = runtime(storage);
    fresh.load_base(&base, &name("mixed"), NOW, false).expect("an import");
    let composed = fresh.compose(&name("bare"), "mixed", &[], NOW, false).expect("a composition");
    let text = Reference::Text("bare".to_owned());
    let activation = fresh.activate_composition(&text, NOW).expect("active");
    assert_eq!(activation.composition, composed.composition);
    assert_eq!(active_bits(&fresh), bits_of(&composition(&Arc::new(base), &[])));
}

on_both_media!(
    a_base_with_two_tokenizers,
    a_base_of_several_encodings,
    a_toml_manifest_and_its_blobs_are_enough,
    a_json_manifest_and_its_blobs_are_enough,
    every_blob_is_needed,
    importing_again_gives_the_same_blobs,
);

#[test]
fn both_forms_of_a_manifest_have_one_digest() {
    let (_, _, manifest, _) = source();
    let toml = Manifest::from_toml(&manifest.to_toml(), &LIMITS).expect("TOML");
    let json = Manifest::from_json(&manifest.to_canonical_json(), &LIMITS).expect("JSON");
    assert_eq!((toml.digest(), json.digest()), (manifest.digest(), manifest.digest()));
    assert_eq!(toml, json);
}

#[test]
fn another_folder_is_no_other_store() {
    let folder = tempfile::tempdir().expect("a folder");
    let here = folder.path().join("here");
    let (first, _) = stocked(FsStorage::open(&here));
    compose(&first, "pair", &PAIR);
    first.activate_composition(&Reference::Text("pair".to_owned()), NOW).expect("active");
    let (status, bits) = (first.status().expect("active"), active_bits(&first));
    drop(first);
    let there = folder.path().join("moved").join("there");
    std::fs::create_dir_all(there.parent().expect("a folder")).expect("a folder");
    std::fs::rename(&here, &there).expect("a rename");
    let second = runtime(FsStorage::open(&there));
    assert_eq!(second.status().expect("active"), status);
    assert_eq!(active_bits(&second), bits);
}

fn slm_of(base: &Base) -> Vec<u8> {
    let mut file = Vec::new();
    base.write_slm(&mut file).expect("a file");
    file
}

#[test]
fn gguf_and_slm_are_one_base() {
    let gguf = tiny();
    let slm_file = slm_of(&gguf);
    let slm = Arc::new(open(&slm_file).expect("a .slm file"));
    let mut exported = Vec::new();
    slm.write_gguf(&mut exported).expect("a file");
    assert!(exported == TINY_Q8_0, "the way through .slm changed bytes of the GGUF file");
    let again = Arc::new(open(&exported).expect("a GGUF file"));
    for base in [&slm, &again] {
        assert_eq!(base.id(), gguf.id());
        assert_eq!(base.tokenizer_id(), gguf.tokenizer_id());
        assert_eq!(base.config(), gguf.config());
        assert_eq!(base.chat_template_source(), gguf.chat_template_source());
        assert_eq!(base.name(), gguf.name());
        assert_eq!(bits_of(&composition(base, &PAIR)), bits_of(&composition(&gguf, &PAIR)));
        assert!(slm_of(base) == slm_file, "equal bases give different .slm files");
    }
}

/// The identity covers the configuration, names, shapes and contents, and no order or name of the file.
#[test]
fn only_what_is_computed_makes_the_id() {
    let same = {
        let mut bend = Bend::of(TINY_Q8_0).set("general.name", Value::Str("another name"));
        bend.tensors.reverse();
        open(&bend.to_bytes()).expect("the tiny model")
    };
    assert_eq!(same.id(), tiny().id());
    let other = {
        let mut bend = Bend::of(TINY_Q8_0);
        let norm = bend.tensor("output_norm.weight");
        norm.data.to_mut()[0] ^= 1;
        open(&bend.to_bytes()).expect("the tiny model but for one bit")
    };
    assert_ne!(other.id(), tiny().id());
    let eps = "llama.attention.layer_norm_rms_epsilon";
    let other = Bend::of(TINY_Q8_0).set(eps, Value::F32(2e-5));
    assert_ne!(open(&other.to_bytes()).expect("another epsilon").id(), tiny().id());
}

/// q and k rows of the Hugging Face folder stand in GGUF's order in a base. The order is checked against TINY_Q8_0, whose file was written by
/// another program's rule, and against a GGUF file that this test permutes itself.
#[test]
fn hf_rows_are_brought_into_gguf_order() {
    let folder = HfFolder::tiny();
    let hf = folder.open().expect("the tiny folder");
    assert_eq!(hf.tokenizer_id(), tiny().tokenizer_id());
    assert_eq!(hf.config(), tiny().config());
    for (at, tensor) in hf.tensors().iter().enumerate() {
        let (name, shape) = (tensor.name(), tensor.shape());
        let there = tiny().tensors().iter().position(|other| other.name() == name).expect("a twin");
        let (a, b) = (floats(&hf, at), floats(&tiny(), there));
        assert_eq!(a.len(), b.len(), "{name}");
        let norm = |v: &[f32]| v.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        let difference: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a - b).collect();
        // Q8_0 keeps seven bits; rows in another order would differ by more than their size.
        assert!(norm(&difference) < 0.01 * norm(&a), "{name} {shape:?}");
    }
    let twin = gguf_twin(&folder);
    assert_eq!(open(&twin).expect("a GGUF file").id(), hf.id());
    assert_eq!(code(hf.write_gguf(&mut Vec::new())), "not-from-gguf");
    // A folder's base lives in a store as well as any.
    let slm = open(&slm_of(&hf)).expect("a .slm file");
    assert_eq!(slm.id(), hf.id());
}

fn floats(base: &Base, at: usize) -> Vec<f32> {
    let tensor = &base.tensors()[at];
    let cols = tensor.shape()[0] as usize;
    let rows = tensor.shape().get(1).copied().unwrap_or(1) as usize;
    let bytes = base.tensor_bytes(at);
    let matrix = QMatrix::new(tensor.encoding(), rows, cols, &bytes).expect("a matrix");
    let mut values = vec![0.0; rows * cols];
    for (row, out) in values.chunks_exact_mut(cols).enumerate() {
        Kernels::detect().decode_row(out, &matrix, row);
    }
    values
}

/// The folder's bf16 tensors under the metadata of TINY_Q8_0, read and permuted here.
fn gguf_twin(folder: &HfFolder) -> Vec<u8> {
    let file = safetensors::SafeTensors::deserialize(&folder.weights).expect("safetensors");
    let mut bend = Bend::of(TINY_Q8_0);
    for tensor in &mut bend.tensors {
        let hf_name = match tensor.name.as_str() {
            "token_embd.weight" => "model.embed_tokens.weight".to_owned(),
            "output_norm.weight" => "model.norm.weight".to_owned(),
            name => {
                let (layer, part) =
                    name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).expect("blk");
                let part = part
                    .replace("attn_output", "self_attn.o_proj")
                    .replace("attn_norm", "input_layernorm")
                    .replace("ffn_norm", "post_attention_layernorm")
                    .replace("attn_q", "self_attn.q_proj")
                    .replace("attn_k", "self_attn.k_proj")
                    .replace("attn_v", "self_attn.v_proj");
                let part = match part.strip_prefix("ffn_").and_then(|ffn| ffn.split_once('.')) {
                    Some((ffn, _)) => format!("mlp.{ffn}_proj.weight"),
                    None => part,
                };
                format!("model.layers.{layer}.{part}")
            }
        };
        let source = file.tensor(&hf_name).unwrap_or_else(|error| panic!("{hf_name}: {error}"));
        let is_rotated = hf_name.contains("q_proj") || hf_name.contains("k_proj");
        let row_bytes = 2 * tensor.shape[0] as usize;
        let data = source.data();
        tensor.encoding = Encoding::BF16;
        tensor.data = if is_rotated {
            // Within a head of 32 rows, HF has the first members of all pairs, then the second ones; GGUF has pair after pair.
            data.chunks_exact(32 * row_bytes)
                .flat_map(|head| {
                    let (first, second) = head.split_at(16 * row_bytes);
                    let pairs = first.chunks_exact(row_bytes).zip(second.chunks_exact(row_bytes));
                    pairs.flat_map(|(a, b)| [a, b].concat()).collect::<Vec<u8>>()
                })
                .collect()
        } else {
            data.to_vec().into()
        };
    }
    bend.to_bytes()
}
