//! PEFT folders that must be refused: the code, and the store and the active composition as before.

use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

use crate::common::{Place, copy_folder, golden};

/// A copy of the King James Bible adapter that can be bent.
fn adapter(place: &Place, name: &str) -> String {
    copy_folder(&golden("tiny-kjv"), &place.path(name));
    place.arg(name)
}

fn bend_config(folder: &str, from: &str, to: &str) {
    let path = Path::new(folder).join("adapter_config.json");
    let text = std::fs::read_to_string(&path).expect("the configuration");
    assert!(text.contains(from), "{from} in\n{text}");
    std::fs::write(path, text.replacen(from, to, 1)).expect("the configuration is written");
}

/// A tensor's name, its shape, which may be changed, and its bytes, to its bytes; `None` leaves it out.
type Bend<'a> = &'a dyn Fn(&str, &mut Vec<usize>, Vec<u8>) -> Option<Vec<u8>>;

/// Writes the factors again, each through `bend`.
fn bend_weights(folder: &str, bend: Bend<'_>) {
    let path = Path::new(folder).join("adapter_model.safetensors");
    let bytes = std::fs::read(&path).expect("the factors");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let mut kept = Vec::new();
    for (name, view) in file.tensors() {
        let mut shape = view.shape().to_vec();
        if let Some(data) = bend(&name, &mut shape, view.data().to_vec()) {
            kept.push((name, view.dtype(), shape, data));
        }
    }
    let views: Vec<(&str, TensorView<'_>)> = kept
        .iter()
        .map(|(name, dtype, shape, data)| {
            (name.as_str(), TensorView::new(*dtype, shape.clone(), data).expect("a tensor"))
        })
        .collect();
    std::fs::write(path, safetensors::serialize(views, None).expect("a file"))
        .expect("the factors are written");
}

#[test]
fn an_adapter_that_is_wrong_is_refused_and_changes_nothing() {
    let place = Place::with_active();
    let before = place.snapshot();
    let refuses = |folder: &str, codes: &[&str]| {
        let args = ["adapter", "import", folder, "--name", "x", "--base", "tiny"];
        let (exit, code) = place.refused(args);
        assert_eq!(exit, 3, "{folder}: {code}");
        assert!(codes.contains(&code.as_str()), "{folder}: {code}");
        let model = golden("tiny-q8_0.gguf");
        let args = ["run", "x", "--model", &model, "--adapter", folder];
        assert_eq!(place.refused(args), (3, code), "{folder}");
        assert!(place.snapshot() == before, "{folder}: the store has changed");
    };
    // What the folder alone shows is found by inspect too, and before a missing --name or --base.
    let shows = |folder: &str, code: &str| {
        refuses(folder, &[code]);
        for args in [&["inspect", folder][..], &["adapter", "import", folder]] {
            assert_eq!(place.refused(args), (3, code.to_owned()), "{args:?}");
        }
    };
    // The bent copies are made by the same means as this one, which is accepted.
    let twin = adapter(&place, "twin");
    bend_weights(&twin, &|_, _, data| Some(data));
    assert_eq!(place.json(["inspect", &twin])["kind"], "peft-adapter");

    let folder = adapter(&place, "unknown-field");
    bend_config(&folder, "\"bias\": \"none\"", "\"bias\": \"none\", \"novel_trick\": true");
    shows(&folder, "adapter-unknown-field");
    let folder = adapter(&place, "duplicate-key");
    bend_config(&folder, "\"r\": 8", "\"r\": 8, \"r\": 8");
    shows(&folder, "adapter-config-duplicate-key");
    let folder = adapter(&place, "not-json");
    bend_config(&folder, "{", "[");
    shows(&folder, "adapter-config-json");
    let folder = adapter(&place, "dora");
    bend_config(&folder, "\"use_dora\": false", "\"use_dora\": true");
    shows(&folder, "adapter-missing-factor");
    let folder = adapter(&place, "rank-zero");
    bend_config(&folder, "\"r\": 8", "\"r\": 0");
    shows(&folder, "adapter-rank-zero");

    let q = "base_model.model.model.layers.0.self_attn.q_proj";
    let folder = adapter(&place, "missing-b");
    bend_weights(&folder, &|name, _, data| (name != format!("{q}.lora_B.weight")).then_some(data));
    refuses(&folder, &["adapter-missing-b"]);
    let folder = adapter(&place, "missing-a");
    bend_weights(&folder, &|name, _, data| (name != format!("{q}.lora_A.weight")).then_some(data));
    refuses(&folder, &["adapter-missing-a"]);
    let folder = adapter(&place, "missing-module");
    bend_weights(&folder, &|name, _, data| (!name.starts_with(q)).then_some(data));
    // PEFT starts such a module at B = 0, which changes nothing: it is reported. With other starts it would be filled at random.
    let args =
        ["logits", "--tokens", "1", "--model", &golden("tiny-q8_0.gguf"), "--adapter", &folder];
    place.json(args);
    bend_config(&folder, "\"init_lora_weights\": true", "\"init_lora_weights\": false");
    refuses(&folder, &["adapter-missing-module"]);
    let folder = adapter(&place, "nan");
    bend_weights(&folder, &|name, _, mut data| {
        if name == format!("{q}.lora_A.weight") {
            let len = data.len();
            // All ones is a NaN in each of F32, F16 and BF16.
            data[len - 4..].fill(0xff);
        }
        Some(data)
    });
    refuses(&folder, &["adapter-non-finite"]);
    // Made for a model that is twice as narrow: every A has half the columns.
    let folder = adapter(&place, "other-shape");
    bend_weights(&folder, &|name, shape, mut data| {
        if name.ends_with("lora_A.weight") {
            shape[1] /= 2;
            data.truncate(data.len() / 2);
        }
        Some(data)
    });
    refuses(&folder, &["adapter-shape"]);
    // Made for a model with more layers.
    let folder = adapter(&place, "more-layers");
    let path = Path::new(&folder).join("adapter_model.safetensors");
    let bytes = std::fs::read(&path).expect("the factors");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let views: Vec<_> = file
        .tensors()
        .into_iter()
        .map(|(name, view)| (name.replace("layers.3.", "layers.9."), view))
        .collect();
    let bent = safetensors::serialize(views, None).expect("a file");
    std::fs::write(path, bent).expect("the factors are written");
    refuses(&folder, &["adapter-unknown-layer"]);
    // No module of the base is meant.
    let folder = adapter(&place, "no-target");
    let path = Path::new(&folder).join("adapter_config.json");
    let config = std::fs::read_to_string(&path).expect("the configuration");
    let config = config.replace("_proj\"", "_projection\"");
    std::fs::write(path, config).expect("the configuration is written");
    refuses(&folder, &["adapter-no-target"]);

    // Parts that are missing, and a pickle, which is never opened.
    let folder = adapter(&place, "no-weights");
    let weights = Path::new(&folder).join("adapter_model.safetensors");
    std::fs::remove_file(&weights).expect("the factors are removed");
    shows(&folder, "file-missing");
    std::fs::write(Path::new(&folder).join("adapter_model.bin"), "pickle").expect("a file");
    shows(&folder, "adapter-pickle");
    let folder = adapter(&place, "no-config");
    std::fs::remove_file(Path::new(&folder).join("adapter_config.json")).expect("it is removed");
    refuses(&folder, &["file-missing"]);

    let object = place.json(["adapter", "import", &twin, "--name", "twin", "--base", "tiny"]);
    assert_eq!(object["adapter"], place.json(["inspect", "kjv", "--kind", "adapter"])["adapter"]);
}
