//! Reductions and functions of rows.

use slm_quant::{Kernels, Tier};

use crate::checker::{Checker, GUARD, Mismatch, Summary, bits};
use crate::random::Random;

/// Every reduction and function of a row, on numbers from subnormal to large.
///
/// # Errors
/// The first result that has other bits than the scalar tier's.
pub fn check_functions(tier: Tier) -> Result<Summary, Mismatch> {
    let mut checker = Checker::new(tier)?;
    let mut random = Random(3);
    for n in [1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 100, 576] {
        for scale in [1.0, 60.0, 1e-40, 3e4] {
            let (x, y) = (random.floats(n, scale), random.floats(n, 2.0));
            let mut halves = vec![0u16; n];
            checker.scalar.to_f16(&mut halves, &random.floats(n, 2.0));
            let s = random.unit();
            let max = checker.scalar.max(&x);
            let name = |what: &str| format!("{what} of {n} elements times {scale}");
            let numbers = |k: Kernels| {
                let mut narrow = vec![0u16; n];
                k.to_f16(&mut narrow, &x);
                let reduced = [k.dot16(&x, &y), k.dot16_f16(&x, &halves), k.sum16(&x), k.max(&x)];
                let mut all = bits(&reduced);
                all.push(u32::from(k.is_finite(&x)));
                all.extend(narrow.iter().map(|&h| u32::from(h)));
                all
            };
            checker.both_bits(|| name("reductions and to_f16"), numbers)?;
            checker.both(|| name("axpy"), &y, |k, y| k.axpy(y, s, &x))?;
            checker.both(|| name("axpy_f16"), &y, |k, y| k.axpy_f16(y, s, &halves))?;
            checker.both(|| name("add"), &y, |k, y| k.add(y, &x))?;
            checker.both(|| name("scale"), &y, |k, y| k.scale(y, s))?;
            checker.both(|| name("div"), &y, |k, y| k.div(y, s))?;
            checker.both(|| name("exp_sub"), &x, |k, x| k.exp_sub(x, max))?;
            checker.both(|| name("silu_mul"), &x, |k, x| k.silu_mul(x, &y))?;
            checker.both(|| name("gelu_mul"), &x, |k, x| k.gelu_mul(x, &y))?;
            let blank = vec![GUARD; n];
            checker.both(|| name("rms_norm"), &blank, |k, out| k.rms_norm(out, &x, &y, 1e-5))?;
        }
    }
    Ok(checker.summary())
}

/// The functions at the ends of their ranges, and what is not finite.
///
/// # Errors
/// The first result that has other bits than the scalar tier's.
pub fn check_extremes(tier: Tier) -> Result<Summary, Mismatch> {
    let mut checker = Checker::new(tier)?;
    let edges = [
        0.0,
        -0.0,
        1e-45,
        -87.33654,
        -87.336_55,
        -88.0,
        88.37626,
        88.376_27,
        89.0,
        f32::NEG_INFINITY,
        f32::MAX,
        f32::MIN,
        0.346_573_6,
        -0.346_573_6,
    ];
    checker.both(|| "exp at its ends".to_owned(), &edges, |k, x| k.exp_sub(x, 0.0))?;
    // Infinite gates lie outside the contract.
    let gates: Vec<f32> = edges.iter().copied().filter(|x| x.is_finite()).collect();
    let ups = vec![1.0; gates.len()];
    checker.both(|| "silu at its ends".to_owned(), &gates, |k, x| k.silu_mul(x, &ups))?;
    checker.both(|| "gelu at its ends".to_owned(), &gates, |k, x| k.gelu_mul(x, &ups))?;
    let mut rows: Vec<Vec<f32>> =
        vec![vec![], vec![-0.0; 9], vec![-0.0, 0.0], vec![0.0, -0.0], vec![f32::MAX; 17]];
    for bad in [f32::INFINITY, f32::NEG_INFINITY] {
        for at in [0, 3, 4, 7, 8, 16] {
            let mut x = vec![f32::MAX; 17];
            x[at] = bad;
            rows.push(x);
        }
    }
    for x in rows {
        let name = || format!("max and is_finite of {x:?}");
        checker.both_bits(name, |k| vec![k.max(&x).to_bits(), u32::from(k.is_finite(&x))])?;
    }
    for at in [0, 3, 4, 7, 8, 16] {
        let mut x = [f32::MAX; 17];
        x[at] = f32::NAN;
        checker.both_bits(|| format!("NaN at {at}"), |k| vec![u32::from(k.is_finite(&x))])?;
    }
    Ok(checker.summary())
}

/// Every f16 there is, both ways, but for NaN; and the numbers between two of them.
///
/// # Errors
/// The first result that has other bits than the scalar tier's.
pub fn check_halves(tier: Tier) -> Result<Summary, Mismatch> {
    let mut checker = Checker::new(tier)?;
    let halves: Vec<u16> = (0..=u16::MAX).filter(|h| h & 0x7fff <= 0x7c00).collect();
    let wide: Vec<f32> = halves.iter().map(|&h| half::f16::from_bits(h).to_f32_const()).collect();
    let zeros = vec![-0.0f32; halves.len()];
    let widened = checker.reference(&zeros, |k, y| k.axpy_f16(y, 1.0, &halves))?;
    checker.compare_bits(|| "widening of scalar".to_owned(), &bits(&wide), &widened)?;
    checker.compare(
        || "widening".to_owned(),
        &widened,
        &zeros,
        |k, y| {
            k.axpy_f16(y, 1.0, &halves);
        },
    )?;
    let between = wide.windows(2).map(|w| (w[0] + w[1]) * 0.5).filter(|x| x.is_finite());
    let between: Vec<f32> = between
        .flat_map(|x| [x, x.next_up(), x.next_down()])
        .chain([65519.9, 65520.0, 1e9, -1e9, 1e-30, f32::MIN_POSITIVE, f32::INFINITY])
        .collect();
    for x in [&wide, &between] {
        let narrow = |k: Kernels| {
            let mut out = vec![0u16; x.len()];
            k.to_f16(&mut out, x);
            out.iter().map(|&h| u32::from(h)).collect()
        };
        checker.both_bits(|| format!("narrowing of {} numbers", x.len()), narrow)?;
    }
    Ok(checker.summary())
}

/// exp over its whole range in 200,000 steps.
///
/// # Errors
/// The first result that has other bits than the scalar tier's.
pub fn check_exp(tier: Tier) -> Result<Summary, Mismatch> {
    let mut checker = Checker::new(tier)?;
    let inputs: Vec<f32> = (0..200_000).map(|i| -87.3 + i as f32 * (175.6 / 200_000.0)).collect();
    checker.both(|| "exp".to_owned(), &inputs, |k, x| k.exp_sub(x, 0.0))?;
    Ok(checker.summary())
}

/// Turned pairs, of both orders.
///
/// # Errors
/// The first result that has other bits than the scalar tier's.
pub fn check_rope(tier: Tier) -> Result<Summary, Mismatch> {
    let mut checker = Checker::new(tier)?;
    let mut random = Random(4);
    for pairs in [1, 3, 4, 5, 7, 8, 9, 16, 32, 33] {
        let x = random.floats(2 * pairs, 3.0);
        let (cos, sin) = (random.floats(pairs, 1.0), random.floats(pairs, 1.0));
        let name = |what: &str| format!("{what} of {pairs} pairs");
        checker.both(|| name("rope_interleaved"), &x, |k, x| k.rope_interleaved(x, &cos, &sin))?;
        checker.both(|| name("rope_half"), &x, |k, x| k.rope_half(x, &cos, &sin))?;
    }
    Ok(checker.summary())
}
