//! Products and 16-lane sums computed by an independent NumPy float32 program: equal bits on every tier.

mod common;

use common::{bits, bytes, file, floats, shape};
use slm_format::Encoding;
use slm_quant::{Inline, Kernels, QMatrix, QuantizedRows, Tier};

#[test]
fn quantized_products() {
    for encoding in [Encoding::Q4_0, Encoding::Q4_1, Encoding::Q5_0, Encoding::Q5_1, Encoding::Q8_0]
    {
        let file = file(&format!("numerics/{}.safetensors", encoding.name().to_lowercase()));
        let blocks = bytes(&file, "blocks");
        let (rows, cols) = (shape(&file, "blocks")[0], shape(&file, "x_normal")[0]);
        let w = QMatrix::new(encoding, rows, cols, &blocks).unwrap();
        for tier in Tier::available() {
            let kernels = Kernels::with_tier(tier).unwrap();
            for kind in ["normal", "half", "extreme"] {
                let (x, y) =
                    (floats(&file, &format!("x_{kind}")), floats(&file, &format!("y_{kind}")));
                let mut xq = QuantizedRows::new();
                xq.quantize(kernels, &x, cols).unwrap();
                let mut out = vec![f32::NAN; rows];
                kernels.matmul(&Inline, &mut out, &w, &x, Some(&xq));
                assert_eq!(bits(&out), bits(&y), "{encoding} {kind} {tier:?}");
            }
        }
    }
}

#[test]
fn sixteen_lanes() {
    let file = file("numerics/reduce16.safetensors");
    for n in [1, 15, 16, 17, 64, 576, 1536] {
        let tensor = |name: &str| floats(&file, &format!("{name}_{n}"));
        for tier in Tier::available() {
            let kernels = Kernels::with_tier(tier).unwrap();
            let (a, b) = (tensor("a"), tensor("b"));
            assert_eq!(bits(&[kernels.dot16(&a, &b)]), bits(&tensor("dot")), "{n} {tier:?}");
            assert_eq!(bits(&[kernels.sum16(&a)]), bits(&tensor("sum")), "{n} {tier:?}");
        }
    }
}
