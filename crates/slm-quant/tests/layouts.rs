//! The interleaved layout is a permutation with an exact inverse, and its bytes are where `slm_quant::layout` says.

mod common;

use common::{Kind, Random, columns, weights};
use slm_format::{Coded, Encoding};
use slm_quant::{Layout, QMatrix, layout};

#[test]
fn deinterleave_inverts_interleave() {
    let mut random = Random(11);
    for encoding in Encoding::all() {
        for cols in columns(encoding) {
            for rows in [0, 1, 15, 16, 17, 31, 32, 50] {
                let data = weights(encoding, rows, cols, Kind::Random, &mut random);
                assert_eq!(layout::interleaved_bytes(encoding, rows, cols), Some(data.len()));
                let (mut strips, mut back) = (vec![0xa5; data.len()], vec![0x5a; data.len()]);
                layout::interleave(encoding, rows, cols, &data, &mut strips).unwrap();
                layout::deinterleave(encoding, rows, cols, &strips, &mut back).unwrap();
                assert_eq!(back, data, "{encoding} {rows}x{cols}");
                let w = QMatrix::new_interleaved(encoding, rows, cols, &strips).unwrap();
                let row_bytes = encoding.row_bytes(cols).unwrap();
                let mut row = vec![0; row_bytes];
                for (r, expected) in data.chunks_exact(row_bytes).enumerate() {
                    w.copy_row(r, &mut row);
                    assert_eq!(row, expected, "{encoding} {rows}x{cols} row {r}");
                }
                let same = w.layout() == Layout::RowMajor;
                assert_eq!(same, !layout::is_interleavable(encoding));
                if same || rows < 16 {
                    assert_eq!(strips, data);
                }
                // Ranges of whole strips can be permuted apart.
                if rows > 16 {
                    let (head, tail) = data.split_at(16 * row_bytes);
                    let mut apart = vec![0; data.len()];
                    let (to_head, to_tail) = apart.split_at_mut(head.len());
                    layout::interleave(encoding, 16, cols, head, to_head).unwrap();
                    layout::interleave(encoding, rows - 16, cols, tail, to_tail).unwrap();
                    assert_eq!(apart, strips);
                }
            }
        }
    }
}

/// Sixteen rows of one block by the table of the documentation: for each byte of a strip, its row and its place in the row.
#[test]
fn bytes_are_where_the_table_says() {
    /// Start, end and size of a piece.
    type Field = (usize, usize, usize);
    let fields: [(Encoding, &[Field]); 8] = [
        (Encoding::Q4_0, &[(0, 2, 2), (2, 18, 4)]),
        (Encoding::Q4_1, &[(0, 2, 2), (2, 4, 2), (4, 20, 4)]),
        (Encoding::Q5_0, &[(0, 2, 2), (2, 6, 4), (6, 22, 4)]),
        (Encoding::Q5_1, &[(0, 2, 2), (2, 4, 2), (4, 8, 4), (8, 24, 4)]),
        (Encoding::Q8_0, &[(0, 2, 2), (2, 34, 4)]),
        (Encoding::Q4_K, &[(0, 2, 2), (2, 4, 2), (4, 16, 4), (16, 144, 4)]),
        (Encoding::Q5_K, &[(0, 2, 2), (2, 4, 2), (4, 16, 4), (16, 48, 4), (48, 176, 4)]),
        (Encoding::Q6_K, &[(208, 210, 2), (192, 208, 4), (0, 128, 4), (128, 192, 4)]),
    ];
    let mut random = Random(12);
    for (encoding, fields) in fields {
        let (cols, unit) = (2 * encoding.block_elements(), encoding.block_bytes());
        let data = weights(encoding, 16, cols, Kind::Random, &mut random);
        let mut expected: Vec<u8> = Vec::new();
        for block in 0..2 {
            for &(start, end, piece) in fields {
                for at in (start..end).step_by(piece) {
                    for r in 0..16 {
                        expected.extend(&data[(2 * r + block) * unit + at..][..piece]);
                    }
                }
            }
        }
        let mut strips = vec![0; data.len()];
        layout::interleave(encoding, 16, cols, &data, &mut strips).unwrap();
        assert_eq!(strips, expected, "{encoding}");
    }
}

#[test]
fn wrong_lengths_are_refused() {
    let (data, mut out) = (vec![0u8; 16 * 34], vec![0u8; 16 * 34]);
    let code = |rows, cols, src: &[u8], dst: &mut [u8]| {
        let one = layout::interleave(Encoding::Q8_0, rows, cols, src, dst).map_err(|e| e.code());
        let two = layout::deinterleave(Encoding::Q8_0, rows, cols, src, dst).map_err(|e| e.code());
        assert_eq!(one, two);
        one
    };
    assert_eq!(code(16, 32, &data, &mut out), Ok(()));
    assert_eq!(code(16, 33, &data, &mut out), Err("quant-shape"));
    assert_eq!(code(usize::MAX, 32, &data, &mut out), Err("quant-shape"));
    assert_eq!(code(15, 32, &data, &mut out), Err("quant-length"));
    assert_eq!(code(16, 32, &data[1..], &mut out), Err("quant-length"));
    assert_eq!(code(16, 32, &data, &mut out[1..]), Err("quant-length"));
    assert_eq!(layout::interleaved_bytes(Encoding::Q8_0, 16, 0), None);
    let w = QMatrix::new_interleaved(Encoding::Q8_0, 17, 32, &data);
    assert_eq!(w.unwrap_err().code(), "quant-length");
}

#[test]
fn aligned_bytes_are_aligned() {
    for len in [0, 1, 64, 1000] {
        let mut bytes = layout::AlignedBytes::zeroed(len);
        assert_eq!(bytes.len(), len);
        assert!(bytes.as_ptr().addr().is_multiple_of(64));
        bytes.fill(7);
        assert!(bytes.iter().all(|&b| b == 7));
    }
}

#[cfg(feature = "rayon")]
#[test]
fn weights_that_are_read_once_give_the_same_pieces_to_two_threads() {
    use slm_quant::{Executor, Inline, Kernels, Piece, QuantizedRows};

    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    let (two, kernels) = (slm_quant::RayonExecutor::new(pool), Kernels::detect());
    let (rows, cols, mut random) = (400, 512, Random(5));
    let next: Vec<u8> = vec![1; 4096];
    for encoding in Encoding::all().filter(|&encoding| layout::is_interleavable(encoding)) {
        let data = weights(encoding, rows, cols, Kind::Random, &mut random);
        let mut strips = layout::AlignedBytes::zeroed(data.len());
        layout::interleave(encoding, rows, cols, &data, &mut strips).unwrap();
        let w = QMatrix::new_interleaved(encoding, rows, cols, &strips).unwrap();
        let x: Vec<f32> = (0..cols).map(|i| (i * 37 % 101) as f32 - 50.0).collect();
        let mut xq = QuantizedRows::new();
        xq.quantize(kernels, &x, cols).unwrap();
        let made = |w: &QMatrix<'_>, exec: &dyn Executor| {
            let mut outs = [vec![0.0; rows], vec![0.0; rows], vec![0.0; rows]];
            let [a, b, c] = &mut outs;
            kernels.matmul(exec, a, w, &x, Some(&xq));
            let ahead = |_: Piece| &next[..];
            kernels.matmul_pair(exec, [b, c], [w, w], &x, Some(&xq), Some(&ahead), &|_, _, _| {});
            outs.map(|out| out.into_iter().map(f32::to_bits).collect::<Vec<u32>>())
        };
        let expected = made(&w, &Inline);
        assert_eq!(expected[0], expected[1], "{encoding}");
        assert_eq!(made(&w.read_once(), &two), expected, "{encoding}");
    }
}
