//! What an independent NumPy float32 program computed: `vectors/numerics/`, whose README says how.

use slm_format::safetensors::SafeTensors;
use slm_format::{Encoding, Limits};
use slm_quant::{Inline, QMatrix, QuantizedRows, Tier, layout};

use crate::checker::{Checker, GUARD, Mismatch, Summary, bits};

const PRODUCTS: [(Encoding, &[u8]); 5] = [
    (Encoding::Q4_0, include_bytes!("../../vectors/numerics/q4_0.safetensors")),
    (Encoding::Q4_1, include_bytes!("../../vectors/numerics/q4_1.safetensors")),
    (Encoding::Q5_0, include_bytes!("../../vectors/numerics/q5_0.safetensors")),
    (Encoding::Q5_1, include_bytes!("../../vectors/numerics/q5_1.safetensors")),
    (Encoding::Q8_0, include_bytes!("../../vectors/numerics/q8_0.safetensors")),
];
const SUMS: &[u8] = include_bytes!("../../vectors/numerics/reduce16.safetensors");
const SUM_LENGTHS: [usize; 7] = [1, 15, 16, 17, 64, 576, 1536];

/// Products of quantized rows, in either layout, and sums in sixteen lanes: the tier's bits, the scalar one's too, are the reference's.
///
/// # Errors
/// The first result that has other bits.
pub fn check_reference(tier: Tier) -> Result<Summary, Mismatch> {
    let mut checker = Checker::new(tier)?;
    for (encoding, file) in PRODUCTS {
        let file = File::open(file)?;
        let blocks = file.tensor("blocks")?;
        let rows = file.shape("blocks")?[0];
        for kind in ["normal", "half", "extreme"] {
            let (x, y) = (file.floats(&format!("x_{kind}"))?, file.floats(&format!("y_{kind}"))?);
            products(&mut checker, encoding, rows, blocks, &x, &y, kind)?;
        }
    }
    let file = File::open(SUMS)?;
    for n in SUM_LENGTHS {
        let tensor = |name: &str| file.floats(&format!("{name}_{n}"));
        let (a, b) = (tensor("a")?, tensor("b")?);
        let (dot, sum) = (bits(&tensor("dot")?), bits(&tensor("sum")?));
        checker.digest(&dot);
        checker.digest(&sum);
        let kernels = checker.tier;
        let found = [[kernels.dot16(&a, &b)], [kernels.sum16(&a)]];
        checker.compare_bits(|| format!("dot16 of {n}"), &dot, &bits(&found[0]))?;
        checker.compare_bits(|| format!("sum16 of {n}"), &sum, &bits(&found[1]))?;
    }
    Ok(checker.summary())
}

fn products(
    checker: &mut Checker,
    encoding: Encoding,
    rows: usize,
    blocks: &[u8],
    x: &[f32],
    y: &[f32],
    kind: &str,
) -> Result<(), Mismatch> {
    let (cols, expected, blank) = (x.len(), bits(y), vec![GUARD; rows]);
    let refused = |error: slm_quant::QuantError| Mismatch::new(error.to_string());
    let mut strips = layout::AlignedBytes::zeroed(blocks.len());
    layout::interleave(encoding, rows, cols, blocks, &mut strips).map_err(refused)?;
    let w = QMatrix::new(encoding, rows, cols, blocks).map_err(refused)?;
    let strips = QMatrix::new_interleaved(encoding, rows, cols, &strips).map_err(refused)?;
    let mut xq = QuantizedRows::new();
    xq.quantize(checker.tier, x, cols).map_err(refused)?;
    checker.digest(&expected);
    for w in [&w, &strips, &strips.read_once()] {
        let name = || format!("the reference's product of {encoding} {:?}, {kind}", w.layout());
        checker.compare(name, &expected, &blank, |kernels, out| {
            kernels.matmul(&Inline, out, w, x, Some(&xq));
        })?;
    }
    Ok(())
}

struct File<'a>(SafeTensors<'a>);

impl<'a> File<'a> {
    fn open(bytes: &'a [u8]) -> Result<File<'a>, Mismatch> {
        let file = SafeTensors::parse(bytes, &Limits::STANDARD);
        file.map(File).map_err(|error| Mismatch::new(error.to_string()))
    }

    fn tensor(&self, name: &str) -> Result<&'a [u8], Mismatch> {
        let tensor = self.0.get(name);
        tensor.map(|tensor| tensor.data).ok_or_else(|| Mismatch::new(format!("no tensor {name}")))
    }

    fn shape(&self, name: &str) -> Result<Vec<usize>, Mismatch> {
        self.tensor(name)?;
        let shape = self.0.get(name).map(|tensor| tensor.shape.as_slice()).unwrap_or_default();
        Ok(shape.iter().map(|&dim| dim as usize).collect())
    }

    fn floats(&self, name: &str) -> Result<Vec<f32>, Mismatch> {
        let (chunks, []) = self.tensor(name)?.as_chunks::<4>() else {
            return Err(Mismatch::new(format!("{name} is not of whole numbers")));
        };
        Ok(chunks.iter().map(|chunk| f32::from_le_bytes(*chunk)).collect())
    }
}
