//! Refusals that only some kinds know: factors of convolutions, and gains that are no numbers. Each has a twin that is accepted.

mod common;

use std::sync::Arc;

use common::{Tensor, config, f32_bytes, file, ramp, resolve, tiny, weights};
use slm_format::safetensors::{Dtype, SafeTensors};
use slm_format::{Coded, Encoding, Limits};
use slm_manifest::BaseId;
use slm_overlay::{
    Adapter, BaseShape, BaseWeights, Delta, Dora, Factor, Ia3, Lora, Module, OverlayError, Side,
    Stack,
};

const TARGET: &str = "blk.0.attn_v.weight";

fn factor(rows: u64, cols: u64, values: &[f32]) -> Factor {
    Factor::new("x", Encoding::F32, rows, cols, f32_bytes(values).into()).unwrap()
}

/// `t1`, `t2` of LoHa and `t2` of LoKr turn the factors into a convolution's, which changes what the other factors mean.
#[test]
fn factors_of_a_convolution_are_refused() {
    for (name, suffixes) in
        [("loha", &["hada_t1", "hada_t2"][..]), ("lokr", &["lokr_t2", "lokr_t1"])]
    {
        let bytes = weights(name);
        let parsed = SafeTensors::parse(&bytes, &Limits::STANDARD).unwrap();
        let tensors: Vec<Tensor> = parsed
            .tensors()
            .iter()
            .map(|t| (t.name.clone(), t.dtype, t.shape.clone(), t.data.to_vec()))
            .collect();
        resolve(&config(name), &file(&tensors)).unwrap();
        let module = tensors[0].0.rsplit_once('.').unwrap().0;
        for suffix in suffixes {
            let mut more = tensors.clone();
            let shape = vec![4, 4, 3, 3];
            let data = f32_bytes(&ramp(144, 1));
            more.push((format!("{module}.{suffix}"), Dtype::F32, shape, data));
            let error = resolve(&config(name), &file(&more)).unwrap_err();
            // LoKr has no t1: that is a tensor of nothing.
            let expected =
                if *suffix == "lokr_t1" { "adapter-unused-tensor" } else { "adapter-convolution" };
            assert_eq!(error.code(), expected, "{suffix}");
            assert!(error.to_string().contains(suffix), "{error}");
        }
    }
}

/// A base of which one row of one tensor is zero.
struct OneZeroRow(Option<usize>);

impl BaseWeights for OneZeroRow {
    fn row(&self, _tensor: &str, row: usize, out: &mut [f32]) {
        out.fill(if Some(row) == self.0 { 0.0 } else { 0.5 });
    }

    fn encoding(&self, _tensor: &str) -> Option<Encoding> {
        Some(Encoding::F32)
    }
}

fn stacked(adapter: Adapter, base: &BaseShape<'_>, weight: f32) -> Result<Stack, OverlayError> {
    let id = BaseId::of_canonical(b"a base");
    Stack::new(id, vec![(Arc::new(Arc::new(adapter).bind(id, base)?), weight)])
}

#[test]
fn a_row_without_length_has_no_gain() {
    let dora = |magnitude: f32| {
        // B is zero, so that the delta leaves the row as it is.
        let mut magnitudes = vec![1.0; 128];
        magnitudes[7] = magnitude;
        let dora = Dora {
            scale: 1.0,
            a: factor(2, 256, &ramp(512, 1)),
            b: factor(128, 2, &[0.0; 256]),
            magnitude: factor(1, 128, &magnitudes),
        };
        Adapter::new(vec![Module { target: TARGET.into(), delta: Delta::Dora(dora) }]).unwrap()
    };
    let refused = |magnitude: f32, row: Option<usize>, weight: f32| {
        let weights = OneZeroRow(row);
        let base = BaseShape { weights: Some(&weights), ..tiny() };
        stacked(dora(magnitude), &base, weight)
    };
    for magnitude in [1.0, 0.0] {
        let error = refused(magnitude, Some(7), 1.0).unwrap_err();
        assert_eq!(error.code(), "adapter-gain", "{magnitude} over a length of zero");
        let OverlayError::Gain { tensor, row, gain } = error else { panic!("{error}") };
        assert_eq!((tensor.as_str(), row), (TARGET, 7));
        assert!(!gain.is_finite());
        // The twins: the same adapter where the row has a length, and one that is left out.
        assert!(refused(magnitude, None, 1.0).is_ok());
        assert!(refused(magnitude, Some(7), 0.0).is_ok());
    }
    // A magnitude that the row's length lifts beyond f32: 0.5 in each of 256 columns is a length of 8.
    assert!(refused(f32::MAX, None, 1.0).is_ok());
    let weights = Small;
    let base = BaseShape { weights: Some(&weights), ..tiny() };
    assert_eq!(stacked(dora(f32::MAX), &base, 1.0).unwrap_err().code(), "adapter-gain");
    assert!(stacked(dora(1.0), &base, 1.0).is_ok());
}

/// Rows of a length below one.
struct Small;

impl BaseWeights for Small {
    fn row(&self, _tensor: &str, _row: usize, out: &mut [f32]) {
        out.fill(1e-3);
    }

    fn encoding(&self, _tensor: &str) -> Option<Encoding> {
        Some(Encoding::F32)
    }
}

#[test]
fn a_weight_that_makes_a_factor_infinite_is_refused() {
    let ia3 = |l: f32| {
        let mut values = vec![1.0; 128];
        values[3] = l;
        let delta = Delta::Ia3(Ia3 { side: Side::Output, l: factor(1, 128, &values) });
        Adapter::new(vec![Module { target: TARGET.into(), delta }]).unwrap()
    };
    let error = stacked(ia3(5.0), &tiny(), f32::MAX).unwrap_err();
    assert_eq!(error.code(), "adapter-gain");
    let OverlayError::Gain { row, .. } = error else { panic!("{error}") };
    assert_eq!(row, 3);
    assert!(stacked(ia3(5.0), &tiny(), 1.0).is_ok());
    assert!(stacked(ia3(1.0), &tiny(), f32::MAX).is_ok());
}

/// The base has 1024 tokens: id 1024 is in no prompt, so an adapter that waits for it would never act.
#[test]
fn an_invocation_that_no_prompt_can_contain_is_refused() {
    let bound = |invocation: &[u32]| {
        let (a, b) = (factor(2, 256, &ramp(512, 1)), factor(128, 2, &ramp(256, 2)));
        let delta = Delta::Lora(Lora { scale: 1.0, a, b, bias: None });
        let module = Module { target: TARGET.into(), delta };
        let adapter = Adapter::with_invocation(vec![module], invocation.to_vec()).unwrap();
        let bound = Arc::new(adapter).bind(BaseId::of_canonical(b"a base"), &tiny());
        bound.map(|_| ()).map_err(|error| (error.code(), error.to_string()))
    };
    assert_eq!(bound(&[5, 1023]), Ok(()));
    for token in [1024, u32::MAX] {
        let (code, text) = bound(&[5, token]).unwrap_err();
        assert_eq!(code, "adapter-invocation");
        assert!(text.contains(&token.to_string()) && text.contains("1024"), "{text}");
    }
}
