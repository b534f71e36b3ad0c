//! Low-rank factors against the contract's own words, on every tier: any rank, any columns, any run of outputs.

mod common;

use common::{Kind, Random, bits, guarded, others, scalar, weights};
use slm_format::{Coded, Encoding};
use slm_quant::{DownMatrix, Inline, Kernels, QMatrix, UpMatrix};

const ENCODINGS: [Encoding; 3] = [Encoding::F32, Encoding::F16, Encoding::BF16];

/// The elements of a row-major matrix, widened.
fn decoded(encoding: Encoding, rows: usize, cols: usize, data: &[u8]) -> Vec<Vec<f32>> {
    let matrix = QMatrix::new(encoding, rows, cols, data).unwrap();
    let row = |r| {
        let mut row = vec![0.0; cols];
        scalar().decode_row(&mut row, &matrix, r);
        row
    };
    (0..rows).map(row).collect()
}

/// Sixteen lanes, added in pairs.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 16];
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        lanes[i % 16] += a * b;
    }
    for width in [8, 4, 2, 1] {
        for l in 0..width {
            lanes[l] += lanes[l + width];
        }
    }
    lanes[0]
}

#[test]
fn a_down_projection_is_the_dot_products_of_its_rows() {
    let mut random = Random(5);
    for encoding in ENCODINGS {
        for rank in [1, 2, 3, 4, 5, 7, 8, 12, 16, 63, 64] {
            for cols in [1, 7, 16, 33, 48, 576] {
                let data = weights(encoding, rank, cols, Kind::Random, &mut random);
                let x = random.floats(cols, 1.0);
                let expected: Vec<f32> =
                    decoded(encoding, rank, cols, &data).iter().map(|row| dot(row, &x)).collect();
                let mut packed = vec![0; data.len()];
                DownMatrix::pack(encoding, rank, cols, &data, &mut packed).unwrap();
                let a = DownMatrix::new(encoding, rank, cols, &packed).unwrap();
                let given = vec![7.0; rank];
                for kernels in others() {
                    for a in [a, a.read_once()] {
                        let z = guarded(&given, |z| kernels.low_rank_down(&Inline, [z], [&a], &x));
                        assert_eq!(z, bits(&expected), "{encoding} {rank}x{cols}");
                    }
                }
                for first in (0..rank).step_by(8) {
                    let some = a.groups(first, (rank - first).min(8));
                    let mut z = vec![7.0; some.rank()];
                    Kernels::detect().low_rank_down(&Inline, [&mut z], [&some], &x);
                    assert_eq!(bits(&z), bits(&expected[first..][..z.len()]), "from {first}");
                }
            }
        }
    }
}

#[test]
fn an_up_projection_adds_ranks_in_order_to_any_run_of_outputs() {
    let mut random = Random(6);
    for encoding in ENCODINGS {
        for (rows, rank) in
            [(1, 1), (7, 3), (16, 8), (33, 8), (64, 2), (65, 4), (150, 5), (576, 16)]
        {
            let data = weights(encoding, rows, rank, Kind::Random, &mut random);
            let b = decoded(encoding, rows, rank, &data);
            let mut packed = vec![0; data.len()];
            UpMatrix::pack(encoding, rows, rank, &data, &mut packed).unwrap();
            let matrix = UpMatrix::new(encoding, rows, rank, &packed).unwrap();
            for (first, n) in [(0, rows), (0, rows / 2), (rows / 3, rows - rows / 3), (rows - 1, 1)]
            {
                for n_tokens in [1, 2, 5] {
                    let y = random.floats(n_tokens * n, 1.0);
                    let z = random.floats(n_tokens * rank, 1.0);
                    let value = |t: usize, o: usize| {
                        let z = &z[t * rank..][..rank];
                        let u = b[first + o].iter().zip(z).fold(0.0f32, |u, (b, z)| u + b * z);
                        let product = 0.3 * u;
                        y[t * n + o] + product
                    };
                    let expected: Vec<f32> =
                        (0..n_tokens * n).map(|at| value(at / n, at % n)).collect();
                    for (n, kernels) in others().enumerate() {
                        let run = |y: &mut [f32]| {
                            let once = (n + first) % 2 == 1;
                            let b = if once { matrix.read_once() } else { matrix };
                            kernels.low_rank_up(y, 0.3, &b, first, &z, n_tokens);
                        };
                        let name =
                            format!("{encoding} {rows}x{rank} from {first}, {n}, {n_tokens}");
                        assert_eq!(guarded(&y, run), bits(&expected), "{name}");
                    }
                }
            }
        }
    }
}

#[cfg(feature = "rayon")]
#[test]
fn large_down_projections_are_the_same_on_two_threads() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    let two = slm_quant::RayonExecutor::new(pool);
    let mut random = Random(7);
    let (ranks, cols) = ([130, 64, 3], 576);
    let data = ranks.map(|rank| weights(Encoding::F32, rank, cols, Kind::Random, &mut random));
    let x = random.floats(cols, 1.0);
    let mut packed = data.clone();
    for ((rank, data), packed) in ranks.into_iter().zip(&data).zip(&mut packed) {
        DownMatrix::pack(Encoding::F32, rank, cols, data, packed).unwrap();
    }
    let matrix = |n: usize| DownMatrix::new(Encoding::F32, ranks[n], cols, &packed[n]).unwrap();
    let matrices = [matrix(0), matrix(1), matrix(2)];
    let run = |kernels: Kernels, exec: &dyn slm_quant::Executor| {
        let mut outs = ranks.map(|rank| vec![0.0; rank]);
        let [a, b, c] = &mut outs;
        kernels.low_rank_down(exec, [a, b, c], matrices.each_ref(), &x);
        outs.map(|out| bits(&out))
    };
    for kernels in others() {
        assert_eq!(run(kernels, &two), run(scalar(), &Inline));
    }
}

#[test]
fn factors_of_other_sizes_and_types_are_refused() {
    let data = [0u8; 68];
    let mut packed = data;
    let down = |encoding, rank, cols, data: &[u8]| {
        DownMatrix::new(encoding, rank, cols, data).map(drop).map_err(|error| error.code())
    };
    let up = |encoding, rows, rank, data: &[u8]| {
        UpMatrix::new(encoding, rows, rank, data).map(drop).map_err(|error| error.code())
    };
    assert_eq!(down(Encoding::F16, 2, 17, &data), Ok(()));
    assert_eq!(up(Encoding::F16, 2, 17, &data), Ok(()));
    for of in [&down as &dyn Fn(Encoding, usize, usize, &[u8]) -> Result<(), &'static str>, &up] {
        assert_eq!(of(Encoding::Q8_0, 2, 32, &data), Err("quant-unusable"));
        assert_eq!(of(Encoding::F16, 2, 17, &data[1..]), Err("quant-length"));
        assert_eq!(of(Encoding::F16, 0, 17, &[]), Err("quant-shape"));
        assert_eq!(of(Encoding::F16, usize::MAX, 17, &data), Err("quant-shape"));
    }
    let short = DownMatrix::pack(Encoding::F16, 2, 17, &data, &mut packed[1..]);
    assert_eq!(short.unwrap_err().code(), "quant-length");
    let short = UpMatrix::pack(Encoding::F16, 2, 17, &data[1..], &mut packed);
    assert_eq!(short.unwrap_err().code(), "quant-length");
}
