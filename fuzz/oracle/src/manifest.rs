//! The composition manifest: two forms, one value, one digest.

use slm_format::{Coded, Digest, Encoding, Limits};
use slm_manifest::{
    AdapterEntry, AdapterId, BaseId, Manifest, PlanId, Provenance, QuantizationEntry, RawManifest,
    RuntimeTag, TokenizerId,
};

use crate::Verdict;
use crate::recipe::Recipe;

/// Both properties.
pub fn manifest(data: &[u8]) {
    manifest_file(data);
    manifest_recipe(data);
}

/// Reading never panics; an accepted document reads back from its canonical JSON and from its TOML as an equal value with the same digest and
/// the same composition, and the canonical JSON of canonical JSON is itself.
pub fn manifest_file(data: &[u8]) -> Verdict {
    match Manifest::parse(data, &Limits::STANDARD) {
        Ok(manifest) => {
            holds(&manifest);
            Verdict::Accepted
        }
        Err(error) => Verdict::Refused(error.code()),
    }
}

/// A document made by the recipe is accepted in both forms; with one byte changed it is refused or holds as any. Gives the verdict on what was bent.
pub fn manifest_recipe(data: &[u8]) -> Verdict {
    let mut recipe = Recipe::new(data);
    let manifest = Manifest::check(valid(&mut recipe)).expect("a valid document was refused");
    holds(&manifest);
    let mut verdict = Verdict::Accepted;
    for form in [manifest.to_canonical_json(), manifest.to_toml().into_bytes()] {
        assert_eq!(manifest_file(&form), Verdict::Accepted, "a valid document was refused");
        let mut bent = form.clone();
        let at = recipe.below(bent.len());
        bent[at] = recipe.byte();
        verdict = manifest_file(&bent);
        manifest_file(&form[..recipe.below(form.len())]);
    }
    verdict
}

/// The document that a recipe makes.
///
/// # Panics
/// Where the recipe's values are not accepted, which is a finding.
pub fn manifest_sample(recipe: &[u8]) -> Manifest {
    Manifest::check(valid(&mut Recipe::new(recipe))).expect("a valid document was refused")
}

fn holds(manifest: &Manifest) {
    let limits = Limits::STANDARD;
    let json = manifest.to_canonical_json();
    assert_eq!(manifest.digest(), Digest::of(&json), "the digest is not of the canonical form");
    let toml = manifest.to_toml();
    let from_json = Manifest::from_json(&json, &limits).expect("canonical JSON is accepted");
    let from_toml = Manifest::from_toml(&toml, &limits).expect("written TOML is accepted");
    for again in [from_json, from_toml] {
        assert_eq!(&again, manifest, "the value changed");
        assert_eq!(again.to_canonical_json(), json, "the canonical form changed");
        assert_eq!(again.digest(), manifest.digest(), "the digest changed");
        assert_eq!(again.composition_id(), manifest.composition_id(), "the composition changed");
    }
}

fn valid(recipe: &mut Recipe<'_>) -> RawManifest {
    let mut encodings: Vec<Encoding> = Encoding::all().collect();
    let quantization = (0..1 + recipe.below(3))
        .map(|_| {
            let encoding = encodings.swap_remove(recipe.below(encodings.len()));
            QuantizationEntry::of(encoding, 1 + recipe.below(500) as u32)
        })
        .collect();
    let adapters = (0..recipe.below(4)).map(|index| adapter(recipe, index)).collect();
    RawManifest {
        base_model_hash: BaseId::from_digest(digest(recipe, 0)),
        tokenizer_id: TokenizerId::from_digest(digest(recipe, 1)),
        quantization,
        runtime: RuntimeTag::current(),
        timestamp_utc: recipe
            .one_of(&["2026-07-21T00:00:00Z", "2024-02-29T23:59:59Z", "2000-01-01T12:00:00.5Z"])
            .to_owned(),
        plan: recipe.rarely(3).then(|| PlanId::from_digest(digest(recipe, 2))),
        adapters,
        provenance: Provenance {
            base_file_hash: recipe.rarely(2).then(|| digest(recipe, 3)),
            base_source_hash: recipe.rarely(2).then(|| digest(recipe, 4)),
            tokenizer_file_hash: recipe.rarely(2).then(|| digest(recipe, 5)),
        },
        evaluation: recipe.rarely(3).then(|| digest(recipe, 6)),
    }
}

fn adapter(recipe: &mut Recipe<'_>, index: usize) -> AdapterEntry {
    let weights = [1.0, 0.7, -0.0, 0.1, -2.5, f32::MAX, f32::MIN_POSITIVE, 1e-45, 16_777_216.0];
    let targets = ["blk.0.attn_q.weight", "blk.0.attn_v.weight", "output.weight"];
    let bits = f32::from_bits(recipe.u64() as u32);
    let weight = if bits.is_finite() && recipe.rarely(2) { bits } else { recipe.one_of(&weights) };
    AdapterEntry {
        name: format!("adapter-{index}").parse().expect("a valid name"),
        adapter_id: AdapterId::from_digest(digest(recipe, 10 + index as u8)),
        file_hash: digest(recipe, 20),
        load_order: index as u32 + 1,
        merge_weight: weight,
        targets: targets[recipe.below(targets.len())..]
            .iter()
            .map(|&name| name.to_owned())
            .collect(),
        rank: recipe.below(257) as u32,
        nnz: recipe.u64() >> 11,
    }
}

/// A digest of its own for each `role`, so that none stands twice where it must not.
fn digest(recipe: &mut Recipe<'_>, role: u8) -> Digest {
    Digest::of(&[role, recipe.byte()])
}
