//! SLM1: the published sizes, a file written, read and written again, and every rule with a twin that keeps it.
//!
//! There is no public file. The sizes are those published for the sample models (mirust.com); the weights here are pseudo-random.

use slm_format::slm1::{
    RawHeader, ScaleOrder, Slm1, Slm1Dtype, Slm1Error, Slm1Header, Slm1Tensor, TIED_OUTPUT,
    name_hash, write,
};
use slm_format::{Coded, Limits};

const LIMITS: Limits = Limits::STANDARD;

fn raw(vocab: u32, hidden: u32, layers: u32, ffn: u32) -> RawHeader {
    RawHeader {
        flags: 0,
        vocab_size: vocab,
        special_token_count: 4,
        hidden_size: hidden,
        layer_count: layers,
        head_count: 4,
        kv_head_count: 4,
        head_dim: hidden / 4,
        ffn_size: ffn,
        max_context: 512,
        rope_theta: 10_000.0,
        rms_norm_epsilon: 1e-5,
        checksum: 0x1234_5678_9abc_def0,
    }
}

/// The names and shapes that the format requires.
fn names(h: &RawHeader) -> Vec<(String, Vec<u32>)> {
    let (v, d, f) = (h.vocab_size, h.hidden_size, h.ffn_size);
    let mut names = vec![("tok_embeddings.weight".to_owned(), vec![v, d])];
    for n in 0..h.layer_count {
        for (part, shape) in [
            ("attn_norm", vec![d]),
            ("ffn_norm", vec![d]),
            ("wq", vec![d, d]),
            ("wk", vec![d, d]),
            ("wv", vec![d, d]),
            ("wo", vec![d, d]),
            ("w1", vec![f, d]),
            ("w2", vec![d, f]),
            ("w3", vec![f, d]),
        ] {
            names.push((format!("layers.{n}.{part}.weight"), shape));
        }
    }
    names.push(("norm.weight".to_owned(), vec![d]));
    if h.flags & TIED_OUTPUT == 0 {
        names.push(("output.weight".to_owned(), vec![v, d]));
    }
    names
}

/// A whole tensor with bytes of its own.
struct Owned {
    hash: u64,
    dtype: Slm1Dtype,
    shape: Vec<u32>,
    block: u32,
    values: Vec<u8>,
    scales: Vec<u8>,
}

impl Owned {
    fn new(name: &str, shape: &[u32], dtype: Slm1Dtype, seed: u64) -> Owned {
        let cols = *shape.last().expect("a shape");
        let n: u64 = shape.iter().map(|&dim| u64::from(dim)).product();
        let mut state = seed | 1;
        let mut byte = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        let (n_bytes, n_scales, block) = match dtype {
            Slm1Dtype::F32 => (0, 0, 0),
            Slm1Dtype::Q8_0 => (n, n / u64::from(cols), cols),
            Slm1Dtype::Q4_0 => (n / 2, n / 32, 32),
        };
        let mut values: Vec<u8> = (0..n_bytes).map(|_| byte()).collect();
        if dtype == Slm1Dtype::F32 {
            values = (0..n).flat_map(|_| (f32::from(byte()) / 256.0).to_le_bytes()).collect();
        }
        let scales =
            (0..n_scales).flat_map(|_| (f32::from(byte()) / 4096.0 + 1e-3).to_le_bytes()).collect();
        Owned { hash: name_hash(name), dtype, shape: shape.to_vec(), block, values, scales }
    }

    fn view(&self) -> Slm1Tensor<'_> {
        let mut dims = [1; 4];
        dims[..self.shape.len()].copy_from_slice(&self.shape);
        Slm1Tensor {
            name_hash: self.hash,
            dtype: self.dtype,
            rank: self.shape.len() as u32,
            dims,
            block_size: self.block,
            reserved: 0,
            values: &self.values,
            scales: &self.scales,
        }
    }
}

fn btok(vocab: u32) -> Vec<u8> {
    let mut bytes = b"BTOK".to_vec();
    for field in [1, vocab, 256, 257, 258, 259] {
        bytes.extend(u32::to_le_bytes(field));
    }
    bytes
}

fn file(h: RawHeader, dtype: Slm1Dtype, order: ScaleOrder) -> Vec<u8> {
    let owned: Vec<Owned> = (1u64..)
        .zip(names(&h))
        .map(|(seed, (name, shape))| Owned::new(&name, &shape, dtype, seed))
        .collect();
    let tensors: Vec<Slm1Tensor<'_>> = owned.iter().map(Owned::view).collect();
    let header = Slm1Header::check(h).expect("a header");
    let mut out = Vec::new();
    let len = write(&mut out, &header, &[], &btok(h.vocab_size), &tensors, order).expect("written");
    assert_eq!(len, out.len() as u64);
    out
}

/// A small file: 260 tokens, 64 wide, one layer.
fn small(dtype: Slm1Dtype) -> Vec<u8> {
    file(raw(260, 64, 1, 96), dtype, ScaleOrder::PerTensor)
}

fn code(bytes: &[u8]) -> &'static str {
    match Slm1::parse(bytes, &LIMITS) {
        Ok(_) => "accepted",
        Err(error) => error.code(),
    }
}

/// The file with other bytes at `at`.
fn with(file: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut bent = file.to_vec();
    bent[at..at + bytes.len()].copy_from_slice(bytes);
    assert_ne!(bent, file, "the change at {at} changes something");
    bent
}

/// The sizes that the format's authors publish for their sample: 260 tokens, 512 wide, 4 layers, 2048 in the feed-forward part, untied.
#[test]
fn the_published_sizes() {
    let h = raw(260, 512, 4, 2048);
    let parameters: u64 = names(&h)
        .iter()
        .map(|(_, shape)| shape.iter().map(|&dim| u64::from(dim)).product::<u64>())
        .sum();
    assert_eq!((parameters, names(&h).len()), (17_048_064, 39));
    for (dtype, len) in
        [(Slm1Dtype::Q8_0, 17_160_000), (Slm1Dtype::Q4_0, 10_657_728), (Slm1Dtype::F32, 68_194_944)]
    {
        for order in [ScaleOrder::PerTensor, ScaleOrder::Last] {
            let bytes = file(h, dtype, order);
            assert_eq!(bytes.len(), len, "{dtype:?}");
            let read = Slm1::parse(&bytes, &LIMITS).expect("a file");
            assert_eq!((read.tensors().len(), **read.header()), (39, h));
            // The directory stands at 192 and the data at 2688, as reconstructed from the published totals.
            assert_eq!(bytes[80..88], 192u64.to_le_bytes());
            assert_eq!(bytes[92..100], 2688u64.to_le_bytes());
        }
    }
}

#[test]
fn what_was_read_is_written_byte_for_byte() {
    let mut h = raw(300, 64, 2, 96);
    h.flags = TIED_OUTPUT;
    for dtype in [Slm1Dtype::F32, Slm1Dtype::Q8_0, Slm1Dtype::Q4_0] {
        for order in [ScaleOrder::PerTensor, ScaleOrder::Last] {
            let bytes = file(h, dtype, order);
            let read = Slm1::parse(&bytes, &LIMITS).expect("a file");
            for extension in [&[][..], &[7; 21]] {
                let mut again = Vec::new();
                let tokenizer = read.tokenizer();
                let (header, tensors) = (read.header(), read.tensors());
                write(&mut again, header, extension, tokenizer, tensors, order).expect("written");
                assert_eq!(again == bytes, extension.is_empty());
                let longer = Slm1::parse(&again, &LIMITS).expect("a file");
                assert_eq!(longer.extension(), extension);
                assert_eq!((longer.tokenizer(), longer.tensors()), (tokenizer, tensors));
            }
        }
    }
}

#[test]
fn every_header_rule_has_its_code() {
    let good = small(Slm1Dtype::Q8_0);
    assert_eq!(code(&good), "accepted");
    let nan = f32::NAN.to_le_bytes();
    let cases: [(&str, usize, &[u8]); 36] = [
        ("slm1-magic", 0, b"SLM2"),
        ("slm1-version", 4, &[2]),
        ("slm1-header-length", 8, &[107]),
        ("slm1-header-length", 8, &[0xff, 0xff, 0xff, 0xff]),
        ("slm1-model-type", 12, &[0]),
        ("slm1-flags", 16, &[2]),
        ("slm1-vocab-size", 20, &[3, 1]),
        ("slm1-special-tokens", 24, &[3]),
        ("slm1-zero-field", 28, &[0; 4]),
        ("slm1-zero-field", 32, &[0; 4]),
        ("slm1-zero-field", 36, &[0; 4]),
        ("slm1-zero-field", 40, &[0; 4]),
        ("slm1-heads", 40, &[3]),
        ("slm1-zero-field", 44, &[0; 4]),
        ("slm1-zero-field", 48, &[0; 4]),
        ("slm1-zero-field", 52, &[0; 4]),
        ("slm1-constant", 56, &nan),
        ("slm1-constant", 56, &[0; 4]),
        ("slm1-constant", 60, &f32::INFINITY.to_le_bytes()),
        ("slm1-constant", 60, &(-1f32).to_le_bytes()),
        ("slm1-range", 64, &u64::MAX.to_le_bytes()),
        ("slm1-overlap", 64, &[107]),
        ("slm1-range", 72, &u64::MAX.to_le_bytes()),
        ("slm1-overlap", 72, &[200]),
        ("slm1-padding", 72, &[20]),
        ("slm1-range", 80, &(1u64 << 40).to_le_bytes()),
        ("slm1-alignment", 80, &[193]),
        ("slm1-range", 88, &[0xff, 0xff, 0]),
        ("slm1-tensor-count", 88, &[0xff; 4]),
        ("slm1-alignment", 92, &[1]),
        ("slm1-range", 92, &(1u64 << 40).to_le_bytes()),
        ("slm1-before-data", 92, &(1u64 << 16).to_le_bytes()),
        ("slm1-checksum", 100, &[0; 8]),
        // The checksum's constants are not public: any other than zero passes.
        ("accepted", 100, &[1]),
        // Fewer key and value heads than heads are a rule of the newer edition.
        ("accepted", 40, &[2]),
        ("accepted", 44, &[32]),
    ];
    for (expected, at, bytes) in cases {
        assert_eq!(code(&with(&good, at, bytes)), expected, "{bytes:?} at {at}");
    }
    for len in 4..108 {
        assert_eq!(code(&good[..len]), "slm1-truncated");
    }
    for len in 0..4 {
        assert_eq!(code(&good[..len]), "slm1-magic");
    }
}

#[test]
fn every_rule_of_an_entry_has_its_code() {
    for dtype in [Slm1Dtype::F32, Slm1Dtype::Q8_0, Slm1Dtype::Q4_0] {
        let good = small(dtype);
        // The second entry: attn_norm, [64].
        let entry = 192 + 64;
        let cases: [(&str, usize, Vec<u8>); 15] = [
            ("slm1-duplicate-tensor", 0, good[192..200].to_vec()),
            ("slm1-dtype", 8, vec![4]),
            ("slm1-dtype", 8, vec![0]),
            ("slm1-rank", 12, vec![0]),
            ("slm1-rank", 12, vec![5]),
            ("slm1-dims", 16, vec![0]),
            ("slm1-dims", 20, vec![2]),
            ("slm1-byte-length", 40, vec![1]),
            ("slm1-alignment", 32, vec![1]),
            ("slm1-range", 32, (1u64 << 40).to_le_bytes().to_vec()),
            ("slm1-before-data", 32, 128u64.to_le_bytes().to_vec()),
            ("slm1-overlap", 32, good[192 + 32..192 + 40].to_vec()),
            ("slm1-scale-offset", 48, {
                let quantized = dtype != Slm1Dtype::F32;
                if quantized { vec![0; 8] } else { vec![64] }
            }),
            ("accepted", 60, vec![9]),
            ("accepted", 20, vec![0]),
        ];
        for (expected, at, bytes) in cases {
            assert_eq!(code(&with(&good, entry + at, &bytes)), expected, "{dtype:?}: {at}");
        }
        // A rank of two: rows of one element, so that a block is none. Plain floats have the same bytes, and a graph looks at the shape.
        let column = if dtype == Slm1Dtype::F32 { "accepted" } else { "slm1-block-size" };
        assert_eq!(code(&with(&good, entry + 12, &[2])), column);
        let huge = [16, 20, 24, 28]
            .iter()
            .fold(with(&good, entry + 12, &[4]), |file, at| with(&file, entry + at, &[0xff; 4]));
        let huge = match dtype {
            Slm1Dtype::F32 => huge,
            Slm1Dtype::Q8_0 => with(&huge, entry + 56, &[0xff; 4]),
            Slm1Dtype::Q4_0 => with(&huge, entry + 56, &[2]),
        };
        assert_eq!(code(&huge), "slm1-overflow");
    }
    for (dtype, blocks) in [(Slm1Dtype::Q8_0, [63, 32, 0]), (Slm1Dtype::Q4_0, [31, 48, 0])] {
        let good = small(dtype);
        for block in blocks {
            assert_eq!(code(&with(&good, 192 + 64 + 56, &[block])), "slm1-block-size", "{block}");
        }
        let entry = &good[192..256];
        let at = |from: usize| u64::from_le_bytes(entry[from..from + 8].try_into().unwrap());
        let scales = at(48) as usize;
        for bad in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            assert_eq!(code(&with(&good, scales, &bad.to_le_bytes())), "slm1-scale", "{bad}");
        }
        assert_eq!(code(&with(&good, scales, &1f32.to_le_bytes())), "accepted");
        for (field, bytes) in [(48, 65u64), (48, 1 << 40)] {
            let expected = if bytes == 65 { "slm1-alignment" } else { "slm1-range" };
            assert_eq!(code(&with(&good, 192 + field, &bytes.to_le_bytes())), expected);
        }
    }
}

#[test]
fn bytes_of_no_part_are_zero() {
    let good = small(Slm1Dtype::Q8_0);
    assert_eq!(good[136..192], [0; 56]);
    assert_eq!(code(&with(&good, 150, &[1])), "slm1-padding");
    let mut longer = good.clone();
    longer.extend([0; 64]);
    assert_eq!(code(&longer), "accepted");
    longer[good.len() + 3] = 1;
    assert_eq!(code(&longer), "slm1-padding");
}

#[test]
fn what_a_reader_would_refuse_is_not_written() {
    let h = raw(260, 64, 1, 96);
    let header = Slm1Header::check(h).expect("a header");
    let owned = Owned::new("norm.weight", &[64], Slm1Dtype::Q8_0, 1);
    let good = owned.view();
    let mut written = Vec::new();
    let mut attempt = |header: &Slm1Header, tensors: &[Slm1Tensor<'_>]| {
        written.clear();
        let result = write(&mut written, header, &[], &btok(260), tensors, ScaleOrder::Last);
        match result {
            Ok(_) => "written",
            Err(error) => {
                assert!(written.is_empty(), "nothing is written of what is refused");
                error.code()
            }
        }
    };
    assert_eq!(attempt(&header, &[good]), "written");
    assert_eq!(attempt(&header, &[good, good]), "slm1-duplicate-tensor");
    let bent: [(&str, Slm1Tensor<'_>); 6] = [
        ("slm1-rank", Slm1Tensor { rank: 5, ..good }),
        ("slm1-dims", Slm1Tensor { dims: [0, 1, 1, 1], ..good }),
        ("slm1-block-size", Slm1Tensor { block_size: 32, ..good }),
        ("slm1-byte-length", Slm1Tensor { values: &[0; 63], ..good }),
        ("slm1-scale-offset", Slm1Tensor { scales: &[], ..good }),
        ("slm1-scale", Slm1Tensor { scales: &[0; 4], ..good }),
    ];
    for (expected, tensor) in bent {
        assert_eq!(attempt(&header, &[tensor]), expected);
    }
    let few = Slm1Header::check(RawHeader { special_token_count: 3, ..h }).expect("a header");
    assert_eq!(attempt(&few, &[good]), "slm1-special-tokens");
    let error = Slm1Error::from(std::io::Error::other("full"));
    assert_eq!((error.code(), error.class().exit_status()), ("slm1-write-io", 8));
}

/// Whatever byte of header, tokenizer or directory is changed, and however: a refusal, or a file whose parts make a file again.
#[test]
fn a_changed_byte_is_refused_or_read() {
    for dtype in [Slm1Dtype::Q4_0, Slm1Dtype::Q8_0] {
        let mut bytes = small(dtype);
        let (mut refused, mut read) = (0, 0);
        for at in 0..960 {
            let good = bytes[at];
            for value in [0, 1, good ^ 1, good ^ 0x80, good.wrapping_add(64), 0xff] {
                bytes[at] = value;
                let Ok(file) = Slm1::parse(&bytes, &LIMITS) else {
                    refused += 1;
                    continue;
                };
                read += 1;
                let mut again = Vec::new();
                let (header, tensors) = (file.header(), file.tensors());
                let (extension, tokenizer) = (file.extension(), file.tokenizer());
                let order = ScaleOrder::PerTensor;
                write(&mut again, header, extension, tokenizer, tensors, order).expect("written");
                let second = Slm1::parse(&again, &LIMITS).expect("a file");
                assert_eq!((second.tensors(), second.header()), (tensors, header));
            }
            bytes[at] = good;
        }
        assert!(refused > 2000 && read > 200, "{refused} refused, {read} read");
    }
}
